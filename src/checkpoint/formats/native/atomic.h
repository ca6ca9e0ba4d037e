// Atomic: a training's state independent of any layout: one folder per parameter, one file per state.
//
//   <parameter>/weight.safetensors, exp_avg.safetensors, exp_avg_sq.safetensors, step.safetensors, ...
//   atomic.json: the parameters' names, their folders, and which file is which state
//
// What always holds: each file is a safetensors file of one tensor, whole, without padding, under the key
// <parameter>/<role> (role_key), so that a file that was moved into another folder is noticed; 16-bit floats are
// float32, other types as they were; a weight is the master where there was one. Folders have the parameters' own names
// as far as these can be names of folders everywhere (atomic_folder_names); atomic.json is written last and makes the
// others a checkpoint. Record: docs/format.md.
// The reader executes nothing, opens nothing outside the folder, and reads no tensor's bytes.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/output/output_plan.h"
#include "checkpoint/view/checkpoint_view.h"
#include "env/files.h"

namespace pawl::checkpoint {

inline constexpr std::string_view kAtomicIndexName = "atomic.json";

// A folder for each name, in their order: plain, at most 200 bytes, different also where letters' case doesn't count.
// Letters, digits, '.', '_' and '-' stay, others become %2F; a '.' in front or at the end too. A long name is cut and
// gets '~' and its hash; what differs by case only, or is called as the index is, gets '~' and a number. Pure.
[[nodiscard]] std::vector<std::string> atomic_folder_names(std::span<const std::string> names);

// Fails: `not_found` without any tensor; `invalid` for another type than float32 and for names that are no UTF-8.
[[nodiscard]] Result<OutputPlan> plan_atomic(const CheckpointView& view, const WriteOptions& options);

// Fails: `corrupt` where the index is none; `not_found`, `io`. A state's file that is missing, or is another's, becomes
// a problem.
[[nodiscard]] Result<CheckpointView> view_atomic(const std::string& folder, Files& files = real_files());

}  // namespace pawl::checkpoint
