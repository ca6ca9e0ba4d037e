// RankFilesJoin: one view of what several files of torch.save, one or more from each rank, hold together.
//
// The other half of rank_files.h, which finds the files. Three steps: what ranks hold of the same path is one item; the
// optimizers' numbers become names (rank_files_optimizers.cc) and flat parameters are joined (rank_files_flat.cc);
// then items become tensors. Works on what torch_state.h read; opens nothing.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "checkpoint/formats/read_options.h"
#include "checkpoint/formats/torch/torch_state.h"
#include "checkpoint/names/parameter_order.h"
#include "checkpoint/view/checkpoint_view.h"
#include "env/files.h"

namespace pawl::checkpoint {

struct RankState {
  std::uint32_t rank = kNoRank;  // none: a file by itself
  TorchState state;
};

// In the order of ranks. Fails: `invalid` where `names` don't fit; `corrupt` where ranks contradict each other.
[[nodiscard]] Result<CheckpointView> join_ranks(std::vector<RankState> ranks,
                                                const std::optional<ParameterNames>& names, std::string format);

// Whether something in the files says that they are ranks of one job: sharded or flat tensors, their own numbers,
// optimizers or names that differ.
[[nodiscard]] bool shows_ranks(std::span<const RankState> ranks);

// --- Between the two halves' files.

inline constexpr std::size_t kNoItem = ~std::size_t{0};

struct JoinPart {
  std::uint32_t state = 0;  // index in the list of ranks
  const TorchPart* part = nullptr;
};

struct JoinItem {
  std::vector<PathStep> path;
  std::vector<JoinPart> parts;  // in the order of ranks
  bool in_optimizer = false;
  std::optional<std::string> model;  // in an optimizer: what leads to its model, where that is known
  bool is_taken = false;             // its elements are in others
  std::size_t alias_of = kNoItem;    // the same bytes on every rank
  std::optional<StoredTensor> made;  // joined already; files are view_file's
};

struct JoinGroup {  // one param group of an optimizer, as all ranks have it that say the same of it
  HyperGroup hyperparameters;
  std::vector<std::size_t> items;    // of the parameters' states
  std::vector<std::size_t> weights;  // items of parameters that have no state
};

struct Join {
  std::vector<RankState> ranks;
  std::vector<JoinItem> items;
  std::vector<JoinGroup> groups;
  bool keeps_roots = false;  // somebody gave names with what leads to their model
  CheckpointView view;
  std::vector<std::vector<std::uint32_t>> file_of;  // [state][file of the state]: in the view, or kNoRank

  // A file of a state, in the view.
  [[nodiscard]] std::uint32_t view_file(std::uint32_t state, std::uint32_t file);
};

// A serial form of a path, to tell paths apart.
[[nodiscard]] std::string key_of(std::span<const PathStep> path);
// Without the parts that wrappers put in: module., _orig_mod., _fsdp_wrapped_module., _checkpoint_wrapped_module.
[[nodiscard]] std::string bare_name(std::string_view name);
[[nodiscard]] std::string rank_label(const RankState& rank);  // "rank 3", or the file's name

// Appends the optimizers' tensors as items; with names in their paths where those can be told, and then their groups.
[[nodiscard]] Status add_optimizers(Join& join, const std::optional<ParameterNames>& names);
// Joins what FSDP cut from flat parameters.
[[nodiscard]] Status join_flat(Join& join, const std::optional<ParameterNames>& names);
[[nodiscard]] bool is_flat_parameter(const TorchPart& part);

}  // namespace pawl::checkpoint
