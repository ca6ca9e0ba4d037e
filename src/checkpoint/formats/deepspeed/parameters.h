// ParameterTable: what the files hold of each parameter, gathered rank by rank and joined into whole tensors.
//
// Pieces come in as boxes of one tensor-parallel rank's tensor; finish() joins the ranks by the job's rules and gives
// tensors under the model's names, in the order in which they were first named. What always holds: of a parameter that
// several pipeline stages hold, the first stage's is kept (copies of tied modules may differ, only their tied weight is
// kept in step). What doesn't fit becomes a problem in the view that names parameter and shapes; nothing is dropped
// without one. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint/formats/deepspeed/degrees.h"
#include "checkpoint/formats/deepspeed/tensor_parallel.h"
#include "checkpoint/view/checkpoint_view.h"

namespace pawl::checkpoint::deepspeed {

class ParameterTable {
 public:
  explicit ParameterTable(std::uint32_t tensor_degree) : tensor_degree_(tensor_degree) {}

  // Keeps a name's turn in the order, and the shape of that rank's part. Stages come in ascending order. False: an
  // earlier stage has it.
  bool declare(const std::string& name, ModelPosition position, const Shape& local_shape);
  // Pieces of that rank's part. Nothing happens where an earlier stage has it.
  void add(const std::string& name, ModelPosition position, const Shape& local_shape, std::string_view role,
           ElementType type, std::span<const StoredPiece> pieces);
  void add_step(const std::string& name, ModelPosition position, double step, std::string_view found_in);
  // A whole tensor that is no parameter: the first one that comes under its name is kept.
  void add_buffer(StoredTensor tensor);

  [[nodiscard]] bool has(const std::string& name) const { return index_.contains(name); }
  [[nodiscard]] std::optional<std::uint32_t> stage_of(const std::string& name) const;
  // A role's type and pieces as they were added; nothing where there are none.
  struct Held {
    ElementType type;
    std::vector<StoredPiece> pieces;
  };
  [[nodiscard]] std::optional<Held> held(const std::string& name, std::uint32_t tensor, std::string_view role) const;

  // Appends tensors (and files of content for steps) to the view. Once.
  void finish(const TensorParallelRules& rules, CheckpointView& view);

 private:
  struct Role {
    std::string word;
    ElementType type = ElementType::float32;
    std::vector<std::vector<StoredPiece>> pieces;  // of each tensor-parallel rank
  };
  struct Parameter {
    std::string name;
    std::uint32_t stage = 0;
    std::vector<std::optional<Shape>> local;  // of each tensor-parallel rank
    std::vector<Role> roles;
    std::optional<double> step;
    std::string step_found_in;
    std::optional<StoredTensor> buffer;
  };
  Parameter* find(const std::string& name, ModelPosition position);
  void finish_parameter(Parameter& parameter, const TensorParallelRules& rules, CheckpointView& view);
  void finish_step(const Parameter& parameter, CheckpointView& view);

  std::uint32_t tensor_degree_;
  std::vector<Parameter> parameters_;
  std::unordered_map<std::string, std::size_t> index_;
  std::map<float, std::uint32_t> step_files_;
  std::vector<std::string> problems_;
};

// The model's own name: without the wrappers that jobs put around a model.
[[nodiscard]] std::string model_name(const std::string& stored);

}  // namespace pawl::checkpoint::deepspeed
