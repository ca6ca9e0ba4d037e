// ModelPairs: what the keys of a training's state say of which optimizer trains which of several models.
//
// Programs with several models call both of a pair alike: netG and optG, g and g_optim, models.0 and optims.0. And an
// average of a model (ema, g_ema) has its names and shapes, and no optimizer. Both only decide between models that fit
// an optimizer equally well by names and shapes. Pure.
#pragma once

#include <string_view>

namespace pawl::checkpoint {

// Whether two keys differ only in the words for what they are, or shorten a word ("g", "generator"): "optimizer", "opt", "model", "net", "state_dict", ...
[[nodiscard]] bool are_paired(std::string_view optimizer, std::string_view model);
// Whether a key says that its model is a mean of trained ones, or follows one: "ema", "swa", "teacher", ...
[[nodiscard]] bool is_average(std::string_view model);

}  // namespace pawl::checkpoint
