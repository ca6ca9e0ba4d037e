// Report: what statebench says of its steps and at its end, for people and as JSON lines.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "settings.h"

namespace statebench {

struct StepReport {
  std::uint64_t seat = 0;
  std::uint64_t generation = 0;
  std::uint64_t step = 0;
  double seconds = 0;        // from its begin to its window
  double fence_seconds = 0;  // that the training thread waited for the copy
  double barrier_seconds = 0;
  std::uint64_t window = 0;  // the step whose window was fenced; 0: there was none
  bool captured = false;
  std::string why_void;
  std::uint64_t committed = 0;
};

// Of one process. Counts of a seat that moved are those of the process that has it at the end.
struct Totals {
  std::uint64_t seat = 0, world = 0, bytes = 0, tensors = 0, steps = 0;
  std::uint64_t captured = 0, voided = 0, recoveries = 0, restores = 0;
  double cold_touch_seconds = 0;  // writing all of the state into memory that nobody had used
  double touch_seconds = 0;       // and once more
  double attach_seconds = 0;      // sealing the layout: pawl makes its arena
  double first_seal_seconds = 0;  // from the first window that was sealed until it was; 0: none was
  std::uint64_t first_sealed_step = 0;
  double restore_seconds = 0;  // the longest
  double finish_seconds = 0;
  double fence_seconds_max = 0;
  std::vector<double> barriers;
  bool bitwise = false;
};

class Report {
 public:
  ~Report();
  // False: the folder can't be written.
  [[nodiscard]] bool begin(const Settings& settings);
  void step(const StepReport& step);
  void end(Totals totals);

 private:
  void write(const std::string& line);
  bool json_ = false, quiet_ = false;
  std::FILE* file_ = nullptr;
};

}  // namespace statebench
