#include "settings.h"

#include <charconv>
#include <string_view>
#include <system_error>

namespace charlm {
namespace {

template <class Number>
Outcome parse_within(std::string_view flag, std::string_view text, Number least, Number most, Number* value) {
  Number parsed{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed);
  if (error == std::errc() && end == text.data() + text.size() && parsed >= least && parsed <= most) {
    *value = parsed;
    return {};
  }
  std::string range = std::to_string(least) + " to " + std::to_string(most);
  return Outcome::refused(std::string(flag) + " " + std::string(text) + ": must be a number from " + range);
}

Outcome parse_value(std::string_view flag, std::string_view value, Settings* settings) {
  if (flag == "--steps") return parse_within<std::uint64_t>(flag, value, 1, 1'000'000'000, &settings->steps);
  if (flag == "--seed") return parse_within<std::uint64_t>(flag, value, 0, UINT64_MAX, &settings->seed);
  if (flag == "--batch") return parse_within<std::uint64_t>(flag, value, 1, 65536, &settings->batch);
  if (flag == "--hidden") return parse_within<std::uint64_t>(flag, value, 4, 8192, &settings->hidden);
  if (flag == "--device-ms") return parse_within<std::uint64_t>(flag, value, 0, 60'000, &settings->device_ms);
  if (flag == "--learning-rate") return parse_within(flag, value, 1e-9, 10.0, &settings->learning_rate);
  if (flag != "--data" && flag != "--record") {
    return Outcome::refused("unknown flag " + std::string(flag) + "; --help lists them");
  }
  if (value.empty()) return Outcome::refused(std::string(flag) + " needs a path");
  (flag == "--data" ? settings->data : settings->record) = value;
  return {};
}

}  // namespace

Outcome parse_settings(int count, const char* const* arguments, Settings* settings) {
  for (int i = 1; i < count; ++i) {
    std::string_view flag = arguments[i];
    if (flag == "--help" || flag == "-h") {
      settings->help = true;
    } else if (flag == "--verbose" || flag == "-v") {
      settings->verbose = true;
    } else if (const auto equals = flag.find('='); flag.starts_with("--") && equals != flag.npos) {
      CHARLM_TRY(parse_value(flag.substr(0, equals), flag.substr(equals + 1), settings));
    } else if (!flag.starts_with("--")) {
      return Outcome::refused("unknown argument " + std::string(flag) + "; --help lists the flags");
    } else {
      const bool has_value = i + 1 < count;
      CHARLM_TRY(parse_value(flag, has_value ? arguments[i + 1] : "", settings));
      ++i;
    }
  }
  return {};
}

const char* usage() {
  return "charlm: learns to predict the next byte of a text, on all ranks of a data-parallel job\n"
         "\n"
         "  --steps N           training steps (200)\n"
         "  --seed N            of weights, samples and dropout (1)\n"
         "  --batch N           samples per seat and step (384)\n"
         "  --hidden N          width of the two hidden layers (512)\n"
         "  --device-ms N       wait so long in each step, as for a device that computes while the cores are free (0)\n"
         "  --learning-rate X   of Adam, after 20 steps of warm-up (0.003)\n"
         "  --data FILE|DIR     text to learn; a folder with all below it (the Python standard library's sources)\n"
         "  --record DIR        write losses, and the state after the last step, to this folder\n"
         "  --verbose           rank 0 prints a line per step\n"
         "\n"
         "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say who this process is where pawl does not;\n"
         "PAWL_NODE_ADDRESS is where it listens for its neighbour (127.0.0.1).\n"
         "Exit code: 0 finished, 1 failed, 2 usage, 3 stopped by pawl.\n";
}

}  // namespace charlm
