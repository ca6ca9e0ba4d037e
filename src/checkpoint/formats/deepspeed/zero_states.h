// ZeroStates: one ZeRO rank's flat tensors, as pieces of the parameters that lie in them.
//
// What always holds: pieces lie inside their flat tensors and are real elements, never padding or gaps. A rank whose
// sizes don't fit the model's shapes, or the other ranks', adds nothing: the error names file, group and sizes.
// All ranks of a group must have the same step: another step means a file of another checkpoint.
// Pure but for its table and the view's list of files, to which the rounded forms of masters are added (ZeRO-3).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/result.h"
#include "checkpoint/formats/deepspeed/degrees.h"
#include "checkpoint/formats/deepspeed/experts.h"
#include "checkpoint/formats/deepspeed/model_states.h"
#include "checkpoint/formats/deepspeed/optimizer_states.h"
#include "checkpoint/formats/deepspeed/parameters.h"
#include "checkpoint/formats/deepspeed/zero_flat.h"

namespace pawl::checkpoint::deepspeed {

// What the files of all data-parallel ranks of one model-parallel rank have in common.
struct ZeroJob {
  const ModelStates* model = nullptr;
  ModelPosition position;
  ParallelDegrees degrees;
  bool adds_weights = false;                     // ZeRO-3 keeps no others
  std::map<std::string, ElementType> types;      // of ZeRO-3's placeholders: the training's own
  std::map<std::string, std::uint64_t> experts;  // local ones, by path
};

class ZeroStates {
 public:
  ZeroStates(ZeroJob job, ParameterTable& table, CheckpointView& view);

  // Fails: `corrupt`, naming `path`.
  [[nodiscard]] Status add(const OptimizerStates& states, std::uint64_t data_rank, const std::string& path);
  [[nodiscard]] std::uint64_t expert_degree() const { return expert_degree_; }
  // The furthest that any group's optimizer has counted. Nothing: none counts.
  [[nodiscard]] std::optional<double> step() const;
  // What the ranks say of the optimizer's groups, with the names that their parameters have in the whole model.
  [[nodiscard]] std::vector<HyperGroup> param_groups() const;
  // Parameters whose weights can't be made of their masters.
  [[nodiscard]] const std::set<std::string>& weights_left_out() const { return weights_left_out_; }

 private:
  struct Group {                             // one that is being added
    std::vector<ParameterShape> parameters;  // under their names in the whole model
    std::vector<std::uint64_t> counts;
    std::vector<FlatFragment> fragments;
    std::uint64_t expert_rank = 0;
  };
  struct Seen {
    double step;
    std::string path;
  };
  struct Told {
    HyperGroup group;
    std::set<std::size_t> of;  // which flat groups' parameters are named
  };
  Status add_joined(const OptimizerStates& states, std::uint64_t data_rank, const std::string& path);
  Status add_parted(const OptimizerStates& states, std::uint64_t data_rank, const std::string& path);
  Result<Group> joined_group(const OptimizerStates& states, std::size_t index, std::uint64_t data_rank);
  Status check_partition(const OptimizerStates& states, std::size_t index, std::uint64_t group_size,
                         std::uint64_t parts, std::uint64_t partition_size, std::uint64_t part);
  Status add_group(const Group& group, const GroupState& state, std::size_t index, std::uint64_t data_rank,
                   const std::string& path);
  void add_fragment(const ParameterShape& parameter, const FlatFragment& fragment, const FlatTensor& flat,
                    std::uint64_t at, std::string_view role, std::uint64_t data_rank);
  void add_flat(const Group& group, const FlatTensor& flat, std::string_view role, std::uint64_t data_rank);
  void add_names(const Group& group, const OptimizerStates& states, std::size_t index);
  void add_rounded_weights(const Group& group, const FlatTensor& master, std::uint64_t data_rank);

  ZeroJob job_;
  ParameterTable& table_;
  CheckpointView& view_;
  std::map<std::size_t, std::uint64_t> partition_size_;                       // of each group, as the first rank has it
  std::map<std::pair<std::size_t, std::uint64_t>, Seen> steps_;               // of each group and expert-parallel rank
  std::map<std::tuple<std::size_t, std::uint64_t, HyperValues>, Told> told_;  // by param group and expert-parallel rank
  std::uint64_t expert_degree_ = 1;
  std::set<std::string> weights_left_out_;
};

}  // namespace pawl::checkpoint::deepspeed
