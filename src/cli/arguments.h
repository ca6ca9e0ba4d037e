// The command line of `pawl`: words in, exit code out. Throws nothing.
#pragma once

namespace pawl {

[[nodiscard]] int run_command_line(int argc, char** argv);

}  // namespace pawl
