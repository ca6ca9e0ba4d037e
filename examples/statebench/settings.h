// Settings: the command line.
#pragma once

#include <cstdint>
#include <string>

namespace statebench {

struct Settings {
  std::uint64_t bytes = std::uint64_t{64} << 20;  // of state a seat; a multiple of 4096 after parsing
  std::uint64_t tensors = 16;
  std::uint64_t steps = 20;
  std::uint64_t step_ms = 500;  // of each step, waited as if a device computed
  std::uint64_t seed = 1;
  double touch = 0.01;  // which part of the state a step changes, 0 < touch <= 1
  bool cuda = false;    // the state lies in the memory of a CUDA device
  std::string record;   // folder for one file of JSON lines a process; empty: none
  bool json = false;    // one line of JSON at the end
  bool quiet = false;   // no line a step
  bool timed = false;   // nothing is read through after a restore: what it costs would be taken for pawl's
  bool help = false;
};

// False: `why` is the sentence for the user.
[[nodiscard]] bool parse_settings(int count, const char* const* arguments, Settings* settings, std::string* why);
[[nodiscard]] const char* usage();

}  // namespace statebench
