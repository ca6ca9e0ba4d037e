// SafetensorsWriter: a view as safetensors: one file that tells roles, or Hugging Face's folder with an index.
//
// Files are laid out by checkpoint/containers/safetensors_layout.h, and nothing is written here:
// checkpoint/output/output_plan.h does that. Pure but for one read.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/containers/safetensors_layout.h"
#include "checkpoint/output/output_plan.h"
#include "checkpoint/view/checkpoint_view.h"
#include "env/files.h"

namespace pawl::checkpoint {

// One file, keys <name>/<role>. Fails: `not_found` where no tensor has a role, or there is none; `invalid` where a role
// has a slash; as lay_out_safetensors.
[[nodiscard]] Result<OutputPlan> plan_safetensors(const CheckpointView& view, const WriteOptions& options);

// --- The other way: what a conversion (or anybody who follows it) wrote is understood again.

// A view of one safetensors file whose keys all end in a role (weight, master, exp_avg, exp_avg_sq, step, buffer, an
// optimizer's word; checkpoint/names/state_names.h; where the file's metadata say that they do (kKeysKey), any) gets
// these roles. Any other view stays as it is. Reads at most the header. Fails as open_safetensors.
[[nodiscard]] Status take_roles_from_keys(CheckpointView& view, Files& files = real_files());
// Tensors that metadata of the view's files say to be of a type that the format lacks get it back, where sizes agree.
// Reads headers. Fails as open_safetensors.
[[nodiscard]] Status take_true_types(CheckpointView& view, Files& files = real_files());

// --- Hugging Face: several files and an index.

// "model.safetensors" of one; else "model-00002-of-00007.safetensors".
[[nodiscard]] std::string huggingface_file_name(std::uint32_t file, std::uint32_t file_count);
// The index over `names`, of which names[i] lies in file `file_of[i]` of `file_count`.
// Fails: `invalid` if a name is no UTF-8.
[[nodiscard]] Result<std::string> huggingface_index(std::span<const std::string> names,
                                                    std::span<const std::uint32_t> file_of, std::uint32_t file_count,
                                                    std::uint64_t total_bytes);
// A folder, keys as the tensors' names. Without roles it takes weights and buffers. Fails as plan_safetensors.
[[nodiscard]] Result<OutputPlan> plan_huggingface(const CheckpointView& view, const WriteOptions& options);

}  // namespace pawl::checkpoint
