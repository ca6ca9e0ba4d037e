// For tests: names of an optimizer's numbers, as a person gives them with --param-names.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/text.h"
#include "checkpoint/formats/fixtures.h"
#include "checkpoint/formats/read_options.h"
#include "checkpoint/view/checkpoint_view.h"
#include "env/files.h"
#include "env/temporary_directory.h"
#include "tensor/element_type.h"

namespace pawl::checkpoint::fixtures {

// What may be a parameter, in the model's order, one a line. Only those of so many dimensions.
inline std::string names_of_weights(const CheckpointView& view, std::size_t from = 0, std::size_t up_to = ~0ull) {
  std::string names;
  for (const StoredTensor& tensor : view.tensors) {
    const std::string_view type = name_of(tensor.type);
    const bool is_float = type.starts_with("float") || type.starts_with("bfloat");
    const bool is_wanted = tensor.shape.size() >= from && tensor.shape.size() <= up_to;
    if (tensor.role == "weight" && is_float && is_wanted && tensor.name.find("running_") == std::string::npos)
      append_text(names, text(tensor.name, '\n'));
  }
  return names;
}

// The same as two groups: matrices, which decay, and the rest. Most jobs of the fixtures have these.
inline std::string names_by_decay(const CheckpointView& view) {
  return text(names_of_weights(view, 2), '\n', names_of_weights(view, 0, 1));
}

// The names of G6_ddp_zero_w3's numbers, by group: 13 matrices, then the rest.
inline std::string names_of_groups(const std::string& folder) {
  const json order = golden(folder)["optimizer_index_to_fqn"];
  json groups = {json::array(), json::array()};
  for (std::size_t i = 0; i < order.size(); ++i) groups[i < 13 ? 0 : 1].push_back(order[text(i)]);
  return groups.dump();
}

inline bool asks_for_names(const CheckpointView& view) {
  bool asks = !view.unnamed.empty();
  for (const std::string& what : view.problems) asks = asks || what.find("--param-names") != std::string::npos;
  return asks;
}

// A file of them, while it lives.
class GivenNames {
 public:
  explicit GivenNames(const std::string& names) {
    options_.parameter_names_file = folder_.path("names");
    EXPECT_TRUE(write_file_atomically(options_.parameter_names_file, names));
  }
  [[nodiscard]] const ReadOptions& options() const { return options_; }

 private:
  const TemporaryDirectory folder_;
  ReadOptions options_;
};

// What `read(options)` sees; where it asks for names, with those of the weights. An optimizer of DeepSpeed without ZeRO
// is keyed by number.
template <class Read>
Result<CheckpointView> read_named(const Read& read) {
  Result<CheckpointView> view = read(ReadOptions{});
  if (!view) return view;
  if (!asks_for_names(*view)) return view;
  Result<CheckpointView> named = read(GivenNames(names_of_weights(*view)).options());
  if (named && !asks_for_names(*named)) return named;
  return read(GivenNames(names_by_decay(*view)).options());
}

}  // namespace pawl::checkpoint::fixtures
