// UniversalZero: zero/<parameter>/<state>.pt and zero/optimizer_state.pt of a universal folder, into a view.
//
// What always holds: an alias, and what model_states keeps as it was, is not listed a second time. A weight that is not
// stored is its master, rounded to the training's type, as DeepSpeed makes it. What can't be read is a problem of the
// view that names the file.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "base/result.h"
#include "checkpoint/formats/deepspeed/universal_read_kept.h"
#include "checkpoint/formats/deepspeed/universal_read_model.h"
#include "checkpoint/view/checkpoint_view.h"
#include "env/files.h"

namespace pawl::checkpoint::deepspeed {

struct UniversalZero {
  std::map<std::string, std::set<std::string>> states;  // parameter -> what its folder has: "fp32", "exp_avg"
  bool has_optimizer_state = false;                     // zero/optimizer_state.pt
  std::size_t buffers_written = 0;                      // a second time, as float32
  std::size_t weights_rounded = 0;

  // Some parameter has a step.pt. ZeRO-3 writes none.
  [[nodiscard]] bool has_steps() const;
};

// The folders of zero/. Fails: `io` if zero/ can't be listed.
[[nodiscard]] Result<UniversalZero> read_universal_zero(const std::string& folder, const UniversalModel& model,
                                                        const KeptTensors& kept, Files& files, CheckpointView& view);

// A parameter's, or an optimizer's, file that is missing although model_states names it, or others of its kind have it.
void check_complete(const std::string& folder, const UniversalModel& model, const UniversalZero& zero,
                    CheckpointView& view);

// zero/optimizer_state.pt is rank 0's own. ZeRO-3 keeps its steps there, with the groups; the others what the groups
// say (universal_read_optimizer.cc).
void read_optimizer_state(const std::string& folder, const UniversalModel& model, const UniversalZero& zero,
                          Files& files, CheckpointView& view);

// A number that no tensor holds is a float32 of no dimensions, as torch's optimizers keep it.
void append_step_number(const std::string& name, const std::string& path, double number, CheckpointView& view);

}  // namespace pawl::checkpoint::deepspeed
