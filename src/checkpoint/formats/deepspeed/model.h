// SavedModel: what all model_states files of a save say together: its ranks, buffers, tied weights and degrees.
//
// What always holds: ranks are in the order of their numbers, and each has one file (ZeRO-3 writes one for each
// data-parallel rank: the first is the rank's, of the others only the parts of frozen parameters are kept). Files that
// contradict the first one are problems of the save.
// Does not read what layer, expert and optimizer files hold (weights.h, optimizers.h).
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/formats/deepspeed/degrees.h"
#include "checkpoint/formats/deepspeed/model_states.h"
#include "checkpoint/formats/deepspeed/save_folder.h"
#include "checkpoint/formats/deepspeed/shard_file.h"
#include "checkpoint/formats/deepspeed/tensor_parallel.h"

namespace pawl::checkpoint::deepspeed {

struct ModelRank {
  std::uint32_t number = 0;  // model-parallel rank
  ShardFile file;
  ModelStates states;
};

struct FrozenParts {  // ZeRO-3: what one data-parallel rank keeps of frozen parameters
  std::uint32_t model_rank = 0;
  std::uint32_t data_rank = 0;
  std::map<std::string, StoredTensor> parts;
};

struct SavedModel {
  bool is_zero3 = false;
  std::vector<ModelRank> ranks;
  std::vector<FrozenParts> frozen_parts;
  std::set<std::string> buffers;
  std::map<std::string, std::string> ties;  // alias -> name

  [[nodiscard]] const ModelStates* first() const { return ranks.empty() ? nullptr : &ranks[0].states; }
  // Neither a buffer nor another name of a tied weight.
  [[nodiscard]] bool is_parameter(const std::string& name) const {
    return !buffers.contains(name) && !ties.contains(name);
  }
};

[[nodiscard]] SavedModel read_model(SaveFolder& save);

// From what the files say and, where they say nothing, from their names. Fails: `corrupt` if there are far more ranks
// than files.
[[nodiscard]] Result<ParallelDegrees> find_degrees(const SaveFolder& save, const SavedModel& model);

// An earlier save of more ranks may have left files beyond `degrees`: they are left out, and a note says so.
void leave_out_stale_ranks(const ParallelDegrees& degrees, SavedModel& model, SaveFolder& save);

// How tensor-parallel parts join, by the first rank that says it. Fails: as TensorParallelRules::read, naming the file.
[[nodiscard]] Result<TensorParallelRules> read_rules(const SavedModel& model);

}  // namespace pawl::checkpoint::deepspeed
