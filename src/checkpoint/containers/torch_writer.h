// TorchWriter: a file that torch.load reads: values of a pickle, and tensors whose bytes somebody else writes.
//
//   TorchWriter writer;
//   writer.pickle().empty_dict();
//   writer.pickle().string("param");
//   writer.tensor(ElementType::float32, {3, 4});   // record 0
//   writer.pickle().set_item();
//   PAWL_ASSIGN(TorchLayout layout, std::move(writer).finish("fp32.pt", index));
// is {"param": a tensor of 3 x 4} in a file whose twelve numbers belong at layout.offset_bytes[0].
// What always holds: tensors are contiguous, on the CPU, want no gradient, and each has a storage of its own of exactly
// its size; torch.load reads the file, weights_only too if only such values are in it as that allows.
// Pure; TorchCopy reads what it copies.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "checkpoint/containers/pickle_writer.h"
#include "checkpoint/containers/torch_file.h"
#include "checkpoint/containers/zip_writer.h"
#include "checkpoint/output/output_plan.h"
#include "env/byte_source.h"
#include "tensor/box.h"
#include "tensor/element_type.h"

namespace pawl::checkpoint {

struct TorchLayout {
  PlannedFile file;
  std::vector<std::uint64_t> offset_bytes;  // of each record's first byte
};

class TorchWriter {
 public:
  [[nodiscard]] PickleWriter& pickle() { return pickle_; }
  // Pushes a tensor. The answer is its record's number, which counts from 0. `content` are its bytes, row-major and
  // little-endian; nothing: they are for who asked to write.
  std::uint32_t tensor(ElementType type, const Shape& shape, std::optional<std::string> content = std::nullopt);
  void size(const Shape& shape);  // pushes a torch.Size

  // What was written, as a file of that name (the folders before it are no part of the archive's). `index` is what it
  // will be in OutputPlan::files. Fails: `invalid` for a tensor of a type that torch has not, or that is no whole
  // number of bytes, or whose content has another size; `full`.
  // `at`: where in that file it begins, if it is one of several there.
  [[nodiscard]] Result<TorchLayout> finish(std::string name, std::uint32_t index, std::uint64_t at = 0) &&;
  // The same where every tensor has its content: the bytes of the file.
  [[nodiscard]] Result<std::string> finish_in_memory(std::string_view archive) &&;

 private:
  [[nodiscard]] Result<ZipLayout> lay_out(std::string_view archive, std::uint32_t index, std::uint64_t at);

  PickleWriter pickle_;
  std::vector<ZipMember> records_;
  std::string refused_;  // why the first tensor can't be written; empty: none
};

// Torch's class of storages of that type: "FloatStorage". Nothing where it has none.
[[nodiscard]] std::optional<std::string_view> storage_class_of(ElementType type);

// Values of one file's pickle, written into another as they are: objects by the names of their classes, small tensors
// with their bytes. What is shared in the one is shared in the other. Both must outlive it.
class TorchCopy {
 public:
  TorchCopy(ByteSource& source, const TorchFile& file, TorchWriter& writer);
  // Pushes the value. Fails: `invalid` for a storage that is no tensor's, `full` for tensors above `tensor_bytes_max`.
  [[nodiscard]] Status copy(Pickle::Value value, std::uint64_t tensor_bytes_max = 1 << 20);
  // Whether copy() would succeed: it leaves half a value behind where it does not.
  [[nodiscard]] bool fits(Pickle::Value value, std::uint64_t tensor_bytes_max = 1 << 20) const;

 private:
  [[nodiscard]] Status copy_items(Pickle::Value value, std::uint64_t tensor_bytes_max);
  [[nodiscard]] Status copy_object(Pickle::Value value, std::uint64_t tensor_bytes_max);
  [[nodiscard]] Status copy_tensor(const TorchTensor& tensor, std::uint64_t tensor_bytes_max);

  ByteSource& source_;
  const TorchFile& file_;
  TorchWriter& writer_;
  std::unordered_map<Pickle::Value, std::uint32_t> tensors_;  // by their values
  std::unordered_map<Pickle::Value, std::uint32_t> memo_;     // what was written before
};

}  // namespace pawl::checkpoint
