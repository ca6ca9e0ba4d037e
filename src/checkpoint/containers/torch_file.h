// TorchFile: the tensors inside one file of torch.save, and where their bytes lie. Zip files and the older stream.
//
// Also those of archives that torch.jit.save and torch.export.save write: weights, buffers and constants by their names;
// the program in them is not looked at.
//
// Each tensor has a path (the keys, indices and attributes that lead to it), its type, shape, strides, and a storage,
// which is a range of the file; tensors that share a storage name the same one. The whole object stays at hand as a
// Pickle: what isn't a tensor is read there by whoever knows what it means. Executes nothing
// (checkpoint/containers/pickle.h).
//
// What always holds of an opened one: every storage lies inside the file and has the size its elements need; every
// element of every tensor lies inside its storage; tensors with their paths take no more than copy_budget.h allows.
// Names may repeat ("a.b" may be a key, and a path), and in unusual
// files so may paths: a caller that needs unique names checks them. A storage may be deflated (a zip file that was
// packed again): then its range is of the packed bytes, and whoever reads it unpacks it whole.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/containers/copy_budget.h"
#include "checkpoint/containers/pickle.h"
#include "checkpoint/containers/zip.h"
#include "checkpoint/view/checkpoint_view.h"
#include "env/byte_source.h"
#include "tensor/element_type.h"

namespace pawl::checkpoint {

struct PathStep {
  enum class Kind : std::uint8_t { key, index, attribute };  // ["a"], [0] (of a list, or a key that is no string), .a
  Kind kind = Kind::key;
  std::string text;
  bool operator==(const PathStep&) const = default;
};

struct TorchStorage {
  std::string key;
  std::optional<ElementType> type;  // nothing: untyped
  std::uint64_t offset_bytes = 0;   // in the file
  std::uint64_t size_bytes = 0;
  std::uint64_t packed_bytes = 0;  // deflated: its length in the file
  bool has_data = true;            // not on the device "meta"
  bool deflated = false;
  std::uint32_t crc32 = 0;  // of its bytes; 0: not known
};

inline constexpr std::uint32_t kNoStorage = ~0u;
inline constexpr std::size_t kTorchDimensionsMax = 64;

struct TorchTensor {
  std::vector<PathStep> path;  // empty: it is the whole object
  ElementType type = ElementType::float32;
  std::vector<std::uint64_t> shape;
  std::vector<std::uint64_t> strides;  // in elements
  std::uint64_t storage_offset = 0;    // in elements
  std::uint32_t storage = kNoStorage;  // index in storages(); none: see `layout`
  std::string layout;  // empty: strided. Else sparse_coo, sparse_csr, ..., nested, meta, wrapper: its parts are tensors
                       // of their own, with paths below this one
  std::string class_name;  // "torch.Tensor", or the subclass: "torch.distributed.tensor.DTensor"
  bool requires_grad = false;
  bool is_parameter = false;
  bool conjugated = false;  // the values are the conjugates of what is stored
  bool negated = false;     // likewise
  Pickle::Value value = Pickle::kNothing;
};

class TorchFile {
 public:
  // Reads the directory and the pickle, no tensor's bytes. `source` is used during the call only.
  // Fails: `corrupt` with offset and reason; `invalid` for what we know and don't read; `full` past a limit; `io`.
  [[nodiscard]] static Result<TorchFile> read(ByteSource& source);
  // As read, of a file; errors name it.
  [[nodiscard]] static Result<TorchFile> open(const std::string& path, Files& files = real_files());

  [[nodiscard]] const Pickle& pickle() const { return pickle_; }
  [[nodiscard]] const std::vector<TorchTensor>& tensors() const { return tensors_; }  // in the order of the object
  [[nodiscard]] const std::vector<TorchStorage>& storages() const { return storages_; }
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }
  // Sentences: tensors to which no path leads, since they are keys of dicts.
  [[nodiscard]] const std::vector<std::string>& unreached() const { return unreached_; }
  // Sentences: tensors that the file says it holds, and whose bytes are not there.
  [[nodiscard]] const std::vector<std::string>& problems() const { return problems_; }
  // What is left for those who make more of the same values.
  [[nodiscard]] const CopyBudget& copies() const { return copies_; }
  [[nodiscard]] bool is_big_endian() const { return big_endian_; }
  [[nodiscard]] std::string_view format() const { return format_; }  // "torch.save", "TorchScript", "torch.export"
  // Where the storages' records lie, for those who want to prove checksums. Empty for a stream.
  [[nodiscard]] const std::vector<ZipRecord>& records() const { return records_; }

 private:
  friend class TorchReader;
  friend class TorchProgramReader;
  // As read, but for archives of torch.export, which are `invalid`: one does not lie in another.
  [[nodiscard]] static Result<TorchFile> read_saved(ByteSource& source);
  // Takes the tensors of `part`, a file that lies in this one from `base_bytes` on; their paths begin with `path`. They
  // are no values of this file's pickle. Fails: `invalid` where its byte order is another; `full`.
  [[nodiscard]] Status take(TorchFile part, const std::vector<PathStep>& path, std::uint64_t base_bytes);

  Pickle pickle_;
  std::vector<TorchTensor> tensors_;
  std::vector<TorchStorage> storages_;
  std::vector<std::string> notes_, unreached_, problems_;
  std::vector<ZipRecord> records_;
  CopyBudget copies_;
  std::string_view format_ = "torch.save";
  bool big_endian_ = false;
};

// Whether a file that begins so is one of torch.save, or an archive.
inline constexpr std::size_t kTorchHeadBytes = 32;  // as many say it
[[nodiscard]] bool begins_like_torch_file(std::string_view head);
[[nodiscard]] bool looks_like_torch_file(const std::string& path, Files& files = real_files());  // of that file
// Fails: `corrupt` unless all of the tensor's elements lie inside the storage.
[[nodiscard]] Status check_inside(const TorchTensor& tensor, const TorchStorage& storage);

[[nodiscard]] std::string name_of(const std::vector<PathStep>& path);      // "model.0.weight"
[[nodiscard]] std::string accessor_of(const std::vector<PathStep>& path);  // "['model'][0].weight"
[[nodiscard]] std::uint64_t bytes_of(const std::vector<PathStep>& path);   // that a copy of it takes

// The tensor's elements, row-major and little-endian, conjugated and negated as it says.
// Fails: `invalid` without a storage; `full` if they are more than `size_bytes_max`; `corrupt`, `io`.
[[nodiscard]] Result<std::string> read_elements(ByteSource& source, const TorchFile& file, const TorchTensor& tensor,
                                                std::uint64_t size_bytes_max);
// A tensor of one element and at most one dimension, as a number; nothing where it is another. Fails: as read_elements.
[[nodiscard]] Result<std::optional<double>> number_of(ByteSource& source, const TorchFile& file,
                                                      const TorchTensor& tensor);
// Whether the storage agrees with the checksum that the archive gives, if it gives one. Fails: `corrupt`; `io`.
[[nodiscard]] Status prove_storage(ByteSource& source, const TorchFile& file, std::uint32_t storage);
// What torch's own values say, for readers of other pickles: a torch.Size (or a tuple of sizes), at most 64 long; and a
// global such as torch.bfloat16. `what` names it in errors, which are `corrupt`.
[[nodiscard]] Result<std::vector<std::uint64_t>> torch_sizes(const Pickle& pickle, Pickle::Value value,
                                                             std::string_view what);
[[nodiscard]] Status read_torch_sizes(const Pickle& pickle, Pickle::Value value, std::string_view what,
                                      std::vector<std::uint64_t>& out);  // the same, in a vector that has room
[[nodiscard]] std::optional<ElementType> torch_type(const Pickle& pickle, Pickle::Value value);

// Elements that a tensor has, and the number of the last one it touches in its storage. Nothing where 63 bits don't
// hold them, or where the tensor has no strides (sparse, wrapped).
struct TorchReach {
  std::uint64_t count = 1;
  std::uint64_t last = 0;
};
[[nodiscard]] std::optional<TorchReach> reach_of(const TorchTensor& tensor);
// The bytes of a storage of the file at `path`, as a view's pieces name them: offsets count from `origin_of`.
[[nodiscard]] StoredFile stored_file_of(const TorchStorage& storage, const std::string& path);
[[nodiscard]] inline std::uint64_t origin_of(const TorchStorage& storage) {
  return storage.deflated ? 0 : storage.offset_bytes;
}

// Its tensors as pieces of one file, each whole. What has no bytes of its own, or more than eight dimensions, becomes a
// note.
[[nodiscard]] CheckpointView view_of(const TorchFile& file, const std::string& path);

}  // namespace pawl::checkpoint
