#include "settings.h"

#include <charconv>
#include <string_view>
#include <system_error>

#include "state.h"

namespace statebench {
namespace {

template <class Number>
bool parse_number(std::string_view text, Number* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

// "4096", "64K", "512M", "1G".
bool parse_bytes(std::string_view text, std::uint64_t* bytes) {
  unsigned shift = 0;
  if (!text.empty()) {
    const std::size_t unit = std::string_view("KMG").find(text.back());
    if (unit != std::string_view::npos) shift = static_cast<unsigned>(10 * (unit + 1));
    if (shift > 0) text.remove_suffix(1);
  }
  std::uint64_t count = 0;
  if (!parse_number(text, &count) || count > kStateBytesMax >> shift) return false;
  *bytes = count << shift;
  return true;
}

bool parse_value(std::string_view flag, std::string_view value, Settings* settings) {
  if (flag == "--bytes") return parse_bytes(value, &settings->bytes) && settings->bytes > 0;
  if (flag == "--tensors") return parse_number(value, &settings->tensors) && settings->tensors > 0;
  if (flag == "--steps") return parse_number(value, &settings->steps) && settings->steps > 0;
  if (flag == "--step-ms") return parse_number(value, &settings->step_ms) && settings->step_ms <= 3'600'000;
  if (flag == "--seed") return parse_number(value, &settings->seed);
  if (flag == "--touch") return parse_number(value, &settings->touch) && settings->touch > 0 && settings->touch <= 1;
  if (flag == "--device") return (settings->cuda = value == "cuda") || value == "cpu";
  if (flag == "--record") settings->record = value;
  if (flag == "-o" || flag == "--output") settings->json = value == "json";
  return !value.empty() && (flag == "--record" || value == "json" || value == "text");
}

bool takes_value(std::string_view flag) {
  for (const std::string_view known :
       {"--bytes", "--tensors", "--steps", "--step-ms", "--seed", "--touch", "--device", "--record", "-o", "--output"})
    if (flag == known) return true;
  return false;
}

}  // namespace

bool parse_settings(int count, const char* const* arguments, Settings* settings, std::string* why) {
  for (int i = 1; i < count; ++i) {
    const std::string_view flag = arguments[i];
    if (flag == "--help" || flag == "-h") {
      settings->help = true;
    } else if (flag == "--quiet") {
      settings->quiet = true;
    } else if (flag == "--timed") {
      settings->timed = true;
    } else if (!takes_value(flag)) {
      *why = "unknown argument " + std::string(flag) + "; --help lists the flags";
      return false;
    } else {
      const std::string_view value = i + 1 < count ? arguments[++i] : "";
      if (!parse_value(flag, value, settings)) {
        *why = std::string(flag) + " " + std::string(value) + ": not a value that is possible; --help lists them";
        return false;
      }
    }
  }
  settings->bytes = (settings->bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  if (settings->tensors * kBlockBytes > settings->bytes) {
    *why = "--tensors " + std::to_string(settings->tensors) + ": a tensor has at least 4096 bytes, so --bytes " +
           std::to_string(settings->bytes) + " has room for " + std::to_string(settings->bytes / kBlockBytes);
    return false;
  }
  return true;
}

const char* usage() {
  return "statebench: a training of any number of bytes, whose state can be checked bit for bit at any step\n"
         "\n"
         "  --bytes N       of state a seat, with K, M or G (64M)\n"
         "  --tensors N     that the state is divided into (16)\n"
         "  --steps N       (20)\n"
         "  --step-ms N     wait so long in each step, as for a device that computes (500)\n"
         "  --seed N        of the state (1)\n"
         "  --touch X       part of the state that a step changes, up to 1 (0.01)\n"
         "  --device cuda   the state lies in the memory of the first CUDA device; or cpu (cpu)\n"
         "  --record DIR    write what is said as JSON lines, too: one file a process\n"
         "  --quiet         no line a step\n"
         "  --timed         check the state at the end only, not after a restore: for who measures recoveries\n"
         "  -o json         one line of JSON at the end\n"
         "\n"
         "Start it with `pawl run`. Exit code: 0 finished and every byte is right, 1 failed, 2 usage, 3 stopped by "
         "pawl.\n";
}

}  // namespace statebench
