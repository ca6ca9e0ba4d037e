// Settings: the command line.
#pragma once

#include <cstdint>
#include <string>

#include "outcome.h"

namespace charlm {

struct Settings {
  std::uint64_t steps = 200;
  std::uint64_t seed = 1;
  std::uint64_t batch = 384;  // samples per seat and step
  std::uint64_t hidden = 512;
  double learning_rate = 3e-3;
  std::uint64_t device_ms = 0;  // of each step, waited as if a device computed: the cores are free meanwhile
  std::string data;             // file or folder; empty: text that ships with the machine
  std::string record;           // folder for the record of this run; empty: none is written
  bool verbose = false;
  bool help = false;
};

// Fails with the sentence for the user: an unknown flag, a missing or senseless value.
Outcome parse_settings(int count, const char* const* arguments, Settings* settings);
[[nodiscard]] const char* usage();

}  // namespace charlm
