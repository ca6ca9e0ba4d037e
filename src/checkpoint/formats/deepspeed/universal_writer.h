// UniversalWriter: what a folder is made of that DeepSpeed loads with `checkpoint.load_universal: true`.
//
//   zero/<parameter>/fp32.pt, exp_avg.pt, ... step.pt   each whole, in float32, without padding
//   zero/optimizer_state.pt                             hyperparameters of the groups, the loss scaler
//   mp_rank_MM_model_states.pt, zero_pp_rank_D_mp_rank_MM_model_states.pt   counters, the job's own state
//   latest_universal                                    says that it is this folder: load_checkpoint(<folder>)
//
// What always holds: fp32.pt is the master where there is one, else the weight, cast. DeepSpeed chooses what it opens
// by the stage that it loads into, so both forms of everything are there: a checkpoint of any stage goes into any. Of a
// DeepSpeed source the files of its own form are carried over byte for byte, and those of the other form are small ones
// without weights, marked as twins (kTwinKey), which our reader leaves alone. Of another source they are made of what
// the view says; what it does not say (hyperparameters, schedulers, the job's own state) the new training keeps from
// its own configuration, and a note says so.
// Each part has a chapter: universal_write_states.h (which tensor goes where), universal_write_parameters.h
// (zero/<parameter>/), universal_write_optimizer.h, universal_write_model_states.h, universal_write_source.h (what is
// taken over from the source's own files). DeepSpeed restores neither buffers nor frozen parameters from such a folder;
// they are in it all the same.
// Plans only: nothing but the source's small files is read.
#pragma once

#include "base/result.h"
#include "checkpoint/formats/deepspeed/universal_write_output.h"
#include "checkpoint/output/output_plan.h"
#include "checkpoint/view/checkpoint_view.h"
#include "env/files.h"

namespace pawl::checkpoint {

// Fails: `invalid` for another type than float32, for names that can't be folders, and for sub-parameters that don't
// fit; `not_found` without any weight; `corrupt`, `io` for the source's own files; `full`.
[[nodiscard]] Result<UniversalOutput> plan_universal(CheckpointView view, const WriteOptions& options,
                                                     Files& files = real_files());

}  // namespace pawl::checkpoint
