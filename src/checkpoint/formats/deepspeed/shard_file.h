// ShardFile: one file of a DeepSpeed checkpoint, opened: its object, and its tensors by where they are in it.
//
// What always holds: a tensor that it gives has plain bytes inside the file. Errors name the file.
// Executes nothing. Keeps the file open, for numbers that are stored as tensors; one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "checkpoint/containers/torch_file.h"
#include "checkpoint/names/hyperparameters.h"
#include "checkpoint/view/checkpoint_view.h"
#include "env/byte_source.h"

namespace pawl::checkpoint::deepspeed {

// A flat tensor, dense: what a rank keeps of a group of parameters.
struct FlatTensor {
  std::uint32_t file = 0;  // index in CheckpointView::files
  std::uint64_t offset_bytes = 0;
  std::uint64_t count = 0;
  ElementType type = ElementType::float32;
  bool swapped = false;
};

class ShardFile {
 public:
  // `index` is the file's in the view.
  [[nodiscard]] static Result<ShardFile> open(const std::string& path, std::uint32_t index, Files& files);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const Pickle& pickle() const { return torch_.pickle(); }
  [[nodiscard]] const TorchFile& torch() const { return torch_; }
  [[nodiscard]] std::uint64_t size_bytes() const { return bytes_->size_bytes(); }
  // What the object's dict holds under that string.
  [[nodiscard]] Pickle::Value find(std::string_view key) const { return pickle().find(pickle().root(), key); }

  [[nodiscard]] const TorchTensor* tensor(Pickle::Value value) const;  // null: no tensor
  // A tensor as one piece, or none if it is empty; role "weight". Fails: `corrupt`.
  [[nodiscard]] Result<StoredTensor> stored(const TorchTensor& tensor, std::string name) const;
  [[nodiscard]] Result<FlatTensor> flat(Pickle::Value value, std::string_view what) const;  // Fails: `corrupt`
  // A number, or a tensor of one element, proven by its checksum; nothing if it is neither. Fails: `io`, `corrupt`.
  [[nodiscard]] Result<std::optional<double>> number(Pickle::Value value) const;
  // The same for hyperparameters, while this and `fault` live. One that can't be read is none, and a fault.
  [[nodiscard]] TensorNumber numbers(Status& fault) const;

  [[nodiscard]] Error damaged(std::string why) const;  // `corrupt`, naming the file
  // Before what many values may share is copied. Fails: `full`, naming the file (copy_budget.h).
  [[nodiscard]] Status take_copies(std::uint64_t count, std::uint64_t bytes_each) const;

 private:
  Status prove(std::uint32_t number) const;

  std::string path_;
  std::uint32_t index_ = 0;
  std::unique_ptr<ByteSource> bytes_;
  TorchFile torch_;
  std::unique_ptr<CopyBudget> copies_;
  std::unordered_map<Pickle::Value, std::uint32_t> tensor_of_;
  mutable std::unordered_set<std::uint32_t> proven_;  // storages that number() has proven
};

// Short ways through pickles that hold what a program wrote.
[[nodiscard]] std::optional<std::uint64_t> count_at(const Pickle& pickle, Pickle::Value dict, std::string_view key);
[[nodiscard]] std::string text_at(const Pickle& pickle, Pickle::Value dict, std::string_view key);
[[nodiscard]] bool flag_at(const Pickle& pickle, Pickle::Value dict, std::string_view key);

}  // namespace pawl::checkpoint::deepspeed
