// StoreFolder: pawl's own checkpoint on a file system: a folder that many ranks write at once, published whole.
//
// One process begins the folder; any number of processes write a part each, side by side, from their own memory into a
// data file of their own; each answers its share of the manifest, and the first process, given all shares, publishes.
// What always holds:
//  * at `path` there is what stood there before, or all of the new checkpoint, at any instant and after any crash:
//    everything grows in `<path>.pawl-partial`, is synced, the marker last, and is then renamed
//    (checkpoint/output/partial_output.h). A folder that is replaced is exchanged in one step, so the disk has to hold
//    both for a while;
//  * a checkpoint is only published if its pieces tile each tensor exactly, and each has its checksum in the manifest;
//  * two saves to one path at once: the second fails. The next save empties and takes over what a killed one left.
// Written past the page cache where that is possible: what lies together in memory in one pass over it (part_writer.h), the
// rest by the executor (checkpoint/reshape/execute.h). What the bytes are: docs/format.md. Read by checkpoint/formats/native/store_view.h, as any format by open_checkpoint(). Shares travel
// from rank to rank by the caller's own means.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "checkpoint/formats/native/store_manifest.h"
#include "checkpoint/output/partial_output.h"
#include "checkpoint/reshape/execute.h"
#include "checkpoint/store/memory_sums.h"
#include "tensor/box.h"
#include "tensor/element_type.h"

namespace pawl::checkpoint {

// A box of a tensor, and the memory that holds it. Memory is the caller's, and stays as it is during the call.
struct StorePiece {
  std::string name;
  std::string role = "weight";  // as StoredTensor's
  ElementType type = ElementType::float32;
  Shape shape;                        // of the whole tensor
  Box box;                            // empty: nothing of it; the part only says that there is such a tensor
  const std::byte* memory = nullptr;  // the box's first element; may be null where the box is empty
  PerDimension stride_bytes{};        // of one step along each dimension: a multiple of the element's size
};

struct StorePartOptions {
  StorePartOptions() { execution.memory_bytes = std::uint64_t{256} << 20; }
  ExecuteOptions execution;  // `observe` is the store's own
  // All of this memory is proven, most of it by what is read of it for the pieces anyway. May be null.
  const MemorySums* proof = nullptr;
  // Called before that many bytes are written, by each thread that writes: returns when they may be. Empty: at once. Pieces that don't
  // lie in memory as in the file are written without.
  std::function<void(std::uint64_t bytes)> pace = {};
};

// Writes and syncs the data file of one part; the answer is the part's share of the manifest, a text for publish().
// `folder` is StoreFolder::folder() of the save. From any process; each part once. A part of no pieces is allowed.
// Equal pieces in equal order give equal bytes.
// Fails: `invalid`, naming up to five pieces: a name that is no UTF-8, a box outside of its tensor, strides that are no
// multiple of the element, packed types (four and six bits), a piece twice; or the part is there already; `not_found`
// if the folder is not there (the save ended); `corrupt` if the memory of `proof` has other sums; `full`; `io`; `cancelled`.
// After an error the save has to be abandoned.
[[nodiscard]] Result<std::string> write_store_part(const std::string& folder, std::uint32_t part,
                                                   std::span<const StorePiece> pieces,
                                                   const StorePartOptions& options = {});

struct StoreOptions {
  bool overwrite = false;    // a checkpoint of this format that stands there is replaced; else it is refused
  std::uint64_t bytes = 0;   // of all parts, as far as known: refused at once where the disk has less
  std::string attempt = {};  // as PartialOptions has it
};

// A box of a tensor that several parts hold. `keep_first`: the manifest names that of the part that comes first; where their bytes
// differ publishing fails, unless the tensor is in `may_differ`.
enum class EqualBoxes : std::uint8_t { refuse, keep_first };

struct StorePublishOptions {
  std::string values = "{}";  // what is no tensor: any JSON text; the reader gets it back as it is
  std::vector<std::pair<std::string, std::string>> aliases;  // tied names: alias, the name that is kept
  EqualBoxes equal_boxes = EqualBoxes::refuse;
  std::set<std::pair<std::string, std::string>> may_differ = {};  // name, role
  StoreIdentity identity = {};
};

class StoreFolder {
 public:
  // Fails: `invalid` if something stands there and overwrite is off, or it is no checkpoint of this format; `stale` if
  // another save to that path is going on; `not_found` if the folder above is not there; `full`; `io`.
  [[nodiscard]] static Result<StoreFolder> begin(const std::string& path, const StoreOptions& options = {});
  // What was not published is removed; at once by abandon(), or with this.
  StoreFolder(StoreFolder&&) noexcept = default;

  [[nodiscard]] const std::string& folder() const { return folder_; }  // for write_store_part
  // All shares, in any order. Afterwards the checkpoint is at its path, and on the disk.
  // Fails: `invalid`, naming up to five tensors that differ in shape or type between parts, overlap, or have a region
  // that no part holds; if a part is there twice or was written to another folder; or values are no JSON; `corrupt` if
  // a share is damaged or its file is not as long as it says; `full`; `io`. Then nothing is published.
  [[nodiscard]] Status publish(std::span<const std::string> shares, const StorePublishOptions& options = {});
  void abandon() { output_.reset(); }

 private:
  StoreFolder(PartialOutput output, std::string folder) : output_(std::move(output)), folder_(std::move(folder)) {}
  std::optional<PartialOutput> output_;
  std::string folder_;
};

}  // namespace pawl::checkpoint
