// What a conversion writes: the command's words as a plan of the format's own (checkpoint/output/output_plan.h). Pure.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/output/output_plan.h"
#include "checkpoint/view/checkpoint_view.h"
#include "cli/checkpoint/commands.h"

namespace pawl::checkpoint {

// As --to has it.
[[nodiscard]] std::string_view name_of(ConvertOptions::To to);
// The problems of a view that stand in the way of these options: what is wrong with an optimizer's state alone does no
// harm to weights and buffers.
[[nodiscard]] std::vector<std::string> problems_for(const CheckpointView& view, const ConvertOptions& options);

// Takes out of the view what the target has no form for (types that safetensors lacks). Sentences: these tensors, and
// those that are not read at all.
[[nodiscard]] std::vector<std::string> take_out_unsupported(CheckpointView& view, const ConvertOptions& options);

// The formats that --to can name, in the order of --help.
inline constexpr std::array kTargets = {ConvertOptions::To::safetensors, ConvertOptions::To::huggingface,
                                        ConvertOptions::To::dcp,         ConvertOptions::To::universal,
                                        ConvertOptions::To::atomic,      ConvertOptions::To::pawl};

// What of the options any writer of a format takes. Fails: `invalid` for a type that is none.
[[nodiscard]] Result<WriteOptions> write_options(const ConvertOptions& options);

// `view` has its final names. Not of universal, whose plan reads files (checkpoint/formats/deepspeed/universal_writer.h). Fails:
// `not_found` where no tensor has a role, or none is left; `invalid` for a type that is none, and where two tensors
// would get one name; `full`.
[[nodiscard]] Result<OutputPlan> plan_conversion(const CheckpointView& view, const ConvertOptions& options);

}  // namespace pawl::checkpoint
