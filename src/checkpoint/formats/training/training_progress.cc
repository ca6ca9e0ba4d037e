#include "checkpoint/formats/training/training_progress.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/text.h"
#include "checkpoint/containers/json_scan.h"
#include "checkpoint/formats/torch/torch_state.h"
#include "checkpoint/reshape/stored_file.h"

namespace pawl::checkpoint {
namespace {

constexpr std::uint64_t kStateBytesMax = 256 << 20;  // it keeps every line of the log
constexpr std::size_t kStepsMax = 256;               // of parameters; each is a read
constexpr std::uint64_t kPackedBytesMax = 1 << 20;   // of what a step lies in, where it must be unpacked for each
constexpr double kStepMost = 1e15;                   // beyond it a float is no count

struct Progress {
  std::optional<std::uint64_t> step;
  std::string epoch;
};

// What begins at the scan's next token, as it stands.
std::string token_of(JsonScan& scan, std::string_view json) {
  (void)scan.peek();
  const std::size_t begin = scan.offset();
  if (!scan.skip()) return {};
  return std::string(json.substr(begin, scan.offset() - begin));
}

// Its other entries may be no JSON (NaN): what stands before them counts.
Progress parse_trainer_state(std::string_view json, std::string& why) {
  Progress out;
  JsonScan scan(json);
  std::string key;
  scan.begin_object();
  while (scan.next_key(key)) {
    if (key == "global_step" && scan.peek() == '0') {
      std::uint64_t step = 0;
      if (scan.number(step)) out.step = step;
    } else if (key == "epoch" && scan.peek() == '0') {
      out.epoch = token_of(scan, json);
    } else {
      (void)scan.skip();
    }
  }
  if (scan.failed()) why = scan.error().what;
  return out;
}

Progress read_progress(const std::string& path, Files& files, std::string& why) {
  Progress out;
  if (path.ends_with(".json")) {
    const Result<std::string> json = read_file(path, kStateBytesMax, files);
    if (json) return parse_trainer_state(*json, why);
    why = json.error().what;
    return out;
  }
  const Result<TorchState> state = read_torch_state(path, files);
  if (!state) {
    why = state.error().what;
    return out;
  }
  for (const auto& [name, number] : state->numbers) {
    std::uint64_t step = 0;
    if (name == "global_step" && parse_number(number, step)) out.step = step;
    if (name == "epoch") out.epoch = number;
  }
  return out;
}

// The greatest of all parameters': one that had no gradient in some steps has done fewer.
std::optional<std::uint64_t> step_of_optimizers(const CheckpointView& view, Files& files) {
  std::optional<std::uint64_t> out;
  std::size_t looked_at = 0;
  for (const StoredTensor& tensor : view.tensors) {
    if (tensor.role != "step" || ++looked_at > kStepsMax) continue;
    if (!tensor.pieces.empty() && view.files[tensor.pieces[0].file].decoded_bytes > kPackedBytesMax) continue;
    const std::optional<double> number = number_in(tensor, view, files);
    if (!number || *number < 0 || *number > kStepMost || *number != std::floor(*number)) continue;
    out = std::max(out.value_or(0), static_cast<std::uint64_t>(*number));
  }
  return out;
}

std::optional<std::uint64_t> step_of_scheduler(const std::string& path, Files& files) {
  const Result<TorchState> state = read_torch_state(path, files);
  if (!state) return std::nullopt;
  for (const auto& [name, number] : state->numbers)
    if (std::uint64_t step = 0; name == "last_epoch" && parse_number(number, step)) return step;
  return std::nullopt;
}

// "checkpoint-500": 500.
std::optional<std::uint64_t> step_of_name(const std::string& folder) {
  constexpr std::string_view kPrefix = "checkpoint-";
  const std::string name = last_name(folder);
  std::uint64_t step = 0;
  if (!name.starts_with(kPrefix) || !parse_number(std::string_view(name).substr(kPrefix.size()), step))
    return std::nullopt;
  return step;
}

void compare(const std::string& folder, const TrainingParts& parts, std::uint64_t said,
             const std::optional<std::uint64_t>& optimizer, CheckpointView& view, Files& files) {
  if (const std::optional<std::uint64_t> named = step_of_name(folder); named && *named != said)
    view.notes.push_back(
        text("the folder is called ", last_name(folder), ", and ", parts.progress, " says step ", said));
  const bool repeats = optimizer && said != 0 && *optimizer > said && *optimizer % said == 0;
  if (repeats)  // as reinforcement learning does, with several passes over what was played
    view.notes.push_back(text("the optimizer has done ", *optimizer, " steps, and ", parts.progress, " says ", said,
                              ": it does several in each, or the files are of different saves"));
  if (optimizer && *optimizer > said && !repeats)
    view.problems.push_back(text(kOfOptimizerState, ": it has done ", *optimizer, " steps, and ", parts.progress,
                                 " says ", said, ": the files are of different saves"));
  if (optimizer && *optimizer < said)
    view.notes.push_back(
        text("the optimizer has done ", *optimizer, " steps, and ", parts.progress, " says ", said,
             ": it began anew, or left out steps (as fp16 does), or the files are of different saves"));
  if (parts.scheduler != "scheduler.pt") return;  // Accelerate's counts the steps of all processes
  const std::optional<std::uint64_t> scheduler = step_of_scheduler(join_path(folder, parts.scheduler), files);
  if (scheduler && *scheduler != said)
    view.notes.push_back(text(parts.scheduler, " is at step ", *scheduler, ", and ", parts.progress, " says ", said));
}

}  // namespace

void add_progress(const std::string& folder, const TrainingParts& parts, CheckpointView& view, Files& files) {
  std::string why;
  Progress progress;
  if (!parts.progress.empty()) progress = read_progress(join_path(folder, parts.progress), files, why);
  const std::optional<std::uint64_t> optimizer = step_of_optimizers(view, files);
  if (!parts.progress.empty() && !progress.step)
    view.notes.push_back(text(parts.progress, " does not say the step", why.empty() ? "" : text(": ", why)));
  if (progress.step) compare(folder, parts, *progress.step, optimizer, view, files);
  const std::optional<std::uint64_t> step = progress.step ? progress.step : optimizer;
  if (step) view.facts.emplace_back("step", text(*step));
  if (!progress.epoch.empty()) view.facts.emplace_back("epoch", progress.epoch);
}

}  // namespace pawl::checkpoint
