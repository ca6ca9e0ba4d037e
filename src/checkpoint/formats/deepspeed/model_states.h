// ModelStates: what one *_model_states.pt file says: a rank's weights, and the facts that the other files are read by.
//
// What always holds: shapes have at most eight dimensions and fewer than 2^63 elements; names of one list differ.
// Pure but for the tensors' places, which come from the file (shard_file.h). Nothing is compared across files here.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "checkpoint/formats/deepspeed/shard_file.h"

namespace pawl::checkpoint::deepspeed {

struct ParameterShape {
  std::string name;
  Shape shape;  // of this tensor-parallel rank's part
  std::uint64_t count = 0;
};
using ParameterGroup = std::vector<ParameterShape>;  // in the order in which they were flattened

// How the job was cut, and how far it was.
struct ModelFacts {
  std::optional<std::uint64_t> step;
  std::optional<std::uint64_t> skipped_steps;
  std::optional<std::uint64_t> iteration;
  std::optional<std::uint64_t> data_world;   // number of data-parallel ranks
  std::optional<std::uint64_t> model_world;  // number of model-parallel ranks
  std::optional<std::uint64_t> pipeline_degree;
  std::optional<std::uint64_t> tensor_degree;
  std::uint64_t stage = 0;  // of ZeRO, by the job's configuration
  bool data_before_expert = false;
  std::vector<std::uint64_t> expert_counts;  // of each layer with experts
  std::string writer_version;
  std::string optimizer_name;  // by the job's configuration
};

struct ModelStates {
  ModelFacts facts;
  bool has_module = false;            // pipelines keep their weights in layer files
  std::vector<StoredTensor> weights;  // names as stored; parameters of ZeRO-3 are empty placeholders
  std::set<std::string> buffers;      // which of the names are buffers
  std::vector<std::pair<std::string, std::string>> ties;  // alias, name
  bool has_groups = false;                                // ZeRO only
  std::vector<ParameterGroup> groups;                     // trainable parameters
  ParameterGroup frozen;
  std::map<std::string, StoredTensor> frozen_parts;  // ZeRO-3: this rank's flat part of each
  bool has_autoep = false;
  Pickle::Value optimizer = Pickle::kNothing;       // without ZeRO: the optimizer's state
  Pickle::Value universal_info = Pickle::kNothing;  // how tensor-parallel parts join (tensor_parallel.h)
  std::vector<std::string> objects;                 // what the job put in beside
  std::vector<std::string> unsupported;             // sentences: tensors that have no plain bytes
};

[[nodiscard]] Result<ModelStates> read_model_states(const ShardFile& file);

// A layer's or an expert's file: nothing but its tensors. `unsupported` gets those without plain bytes.
[[nodiscard]] Result<std::vector<StoredTensor>> read_weights(const ShardFile& file,
                                                             std::vector<std::string>& unsupported);

}  // namespace pawl::checkpoint::deepspeed
