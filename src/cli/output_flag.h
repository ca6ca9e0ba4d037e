// The flag by which a subcommand prints JSON instead of a table. Only for what is compiled with exceptions: CLI11 throws.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace pawl {

inline void add_output(CLI::App& app, bool& as_json) {
  app.add_option_function<std::string>(
         "-o,--output", [&as_json](const std::string& form) { as_json = form == "json"; }, "table or json")
      ->check(CLI::IsMember({"table", "json"}));
}

}  // namespace pawl
