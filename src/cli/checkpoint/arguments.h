// The command line of inspect, convert, diff, ls, prune and verify. Compiled with exceptions, as arguments.cc is.
#pragma once

#include <functional>
#include <string>

#include "cli/checkpoint/commands.h"

namespace CLI {
class App;
}

namespace pawl::checkpoint {

struct CheckpointArguments {
  InspectOptions inspect;
  ConvertOptions convert;
  DiffOptions diff;
  LsOptions ls;
  PruneOptions prune;
  VerifyOptions verify;
  std::string convert_to, family, inspect_family;  // as they were typed
};

// Adds the subcommands; `chosen` becomes the call of the one that was typed. Both outlive the parsing.
void add_checkpoints(CLI::App& app, CheckpointArguments& all, std::function<int()>& chosen);

// A flag for a number of bytes: 512MiB, 1GiB, 5GB.
void add_bytes(CLI::App& app, const std::string& flag, std::uint64_t& bytes, const std::string& help);

}  // namespace pawl::checkpoint
