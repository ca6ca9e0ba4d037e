// For tests: names of an optimizer's numbers, as a person gives them with --param-names.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/text.h"
#include "checkpoint/formats/read_options.h"
#include "checkpoint/view/checkpoint_view.h"
#include "env/files.h"
#include "env/temporary_directory.h"
#include "tensor/element_type.h"

namespace pawl::checkpoint::fixtures {

// What may be a parameter, in the model's order, one a line.
inline std::string names_of_weights(const CheckpointView& view) {
  std::string names;
  for (const StoredTensor& tensor : view.tensors) {
    const std::string_view type = name_of(tensor.type);
    const bool is_float = type.starts_with("float") || type.starts_with("bfloat");
    if (tensor.role == "weight" && is_float && tensor.name.find("running_") == std::string::npos)
      append_text(names, text(tensor.name, '\n'));
  }
  return names;
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
  bool asks = !view->unnamed.empty();
  for (const std::string& what : view->problems) asks = asks || what.find("--param-names") != std::string::npos;
  return asks ? read(GivenNames(names_of_weights(*view)).options()) : std::move(view);
}

}  // namespace pawl::checkpoint::fixtures
