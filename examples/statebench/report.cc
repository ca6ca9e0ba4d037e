#include "report.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

namespace statebench {
namespace {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6f", value);
  return text;
}

// The reasons are pawl's own words; quotes and control characters would end the line.
std::string quoted(const std::string& words) {
  std::string out = "\"";
  for (const char c : words) out += c == '"' || c == '\\' || static_cast<unsigned char>(c) < ' ' ? '\'' : c;
  return out + "\"";
}

class Object {
 public:
  Object& add(const char* name, const std::string& value) {
    text_ += (text_.empty() ? "{\"" : ",\"") + std::string(name) + "\":" + value;
    return *this;
  }
  Object& add(const char* name, std::uint64_t value) { return add(name, std::to_string(value)); }
  Object& add(const char* name, double value) { return add(name, number(value)); }
  Object& add(const char* name, bool value) { return add(name, std::string(value ? "true" : "false")); }
  [[nodiscard]] std::string text() const { return text_ + "}"; }

 private:
  std::string text_;
};

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

}  // namespace

Report::~Report() {
  if (file_ != nullptr) std::fclose(file_);
}

bool Report::begin(const Settings& settings) {
  json_ = settings.json;
  quiet_ = settings.quiet;
  if (settings.record.empty()) return true;
  (void)mkdir(settings.record.c_str(), 0700);  // there already, or the next call says so
  file_ = std::fopen((settings.record + "/statebench." + std::to_string(getpid()) + ".jsonl").c_str(), "we");
  return file_ != nullptr;
}

void Report::step(const StepReport& step) {
  Object object;
  object.add("t_ns", static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()));
  object.add("seat", step.seat).add("generation", step.generation).add("step", step.step).add("s", step.seconds);
  object.add("fence_s", step.fence_seconds).add("barrier_s", step.barrier_seconds).add("window", step.window);
  object.add("captured", step.captured).add("why_void", quoted(step.why_void)).add("committed", step.committed);
  write(object.text());
  if (quiet_) return;
  std::string window = "no window";
  if (step.window > 0) window = "step " + std::to_string(step.window) + (step.captured ? " captured" : " void: ");
  std::printf("seat %llu step %llu: %.3f s, fence %.3f s, %s%s, committed %llu\n",
              static_cast<unsigned long long>(step.seat), static_cast<unsigned long long>(step.step), step.seconds,
              step.fence_seconds, window.c_str(), step.why_void.c_str(),
              static_cast<unsigned long long>(step.committed));
  std::fflush(stdout);
}

void Report::end(Totals totals) {
  const double ratio = totals.touch_seconds > 0 ? totals.first_seal_seconds / totals.touch_seconds : 0;
  Object object;
  object.add("seat", totals.seat).add("world", totals.world).add("bytes", totals.bytes).add("tensors", totals.tensors);
  object.add("steps", totals.steps).add("captured", totals.captured).add("voided", totals.voided);
  object.add("recoveries", totals.recoveries).add("restores", totals.restores);
  object.add("cold_touch_s", totals.cold_touch_seconds).add("touch_s", totals.touch_seconds);
  object.add("layout_seal_s", totals.attach_seconds).add("first_seal_s", totals.first_seal_seconds);
  object.add("first_sealed_step", totals.first_sealed_step).add("first_seal_to_touch", ratio);
  object.add("fence_s_max", totals.fence_seconds_max).add("barrier_s_p50", median(totals.barriers));
  object.add("restore_s", totals.restore_seconds).add("finish_s", totals.finish_seconds);
  object.add("bitwise", totals.bitwise);
  write(object.text());
  if (json_) {
    std::printf("%s\n", object.text().c_str());
  } else {
    std::printf(
        "seat %llu: %llu captured, %llu void, %llu recoveries, %llu restores, first seal %.3f s (%.2f x touching "
        "the state once), %s\n",
        static_cast<unsigned long long>(totals.seat), static_cast<unsigned long long>(totals.captured),
        static_cast<unsigned long long>(totals.voided), static_cast<unsigned long long>(totals.recoveries),
        static_cast<unsigned long long>(totals.restores), totals.first_seal_seconds, ratio,
        totals.bitwise ? "every byte is right" : "BYTES ARE WRONG");
  }
  std::fflush(stdout);
}

void Report::write(const std::string& line) {
  if (file_ == nullptr) return;
  std::fputs((line + "\n").c_str(), file_);
  std::fflush(file_);  // the process may be killed at any time
}

}  // namespace statebench
