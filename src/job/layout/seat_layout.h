// SeatLayout: what one seat declared, and where each entry lies in its snapshot's payload.
//
// What always holds of a built or parsed one: (name, role) pairs are unique; each box lies inside its tensor's shape,
// and is all of it if the tensor is replicated; each mesh covers the world. The payload has the stable entries in
// declared order, then the volatile entries and blobs in declared order, each at a multiple of 64 bytes. The bytes
// between are zero. Derived entries are listed and not captured. The canonical text travels between nodes and lies in
// the arena: equal layouts have equal texts and digests, and parse_layout accepts exactly what text_of writes. Other
// placements (shards, flat groups, means) are those of tensor/enumerate.h. Pure. Used by libpawl and pawld.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "tensor/box.h"
#include "tensor/element_type.h"
#include "tensor/mesh.h"

namespace pawl::job {

// The numbers of both are those of include/pawl/pawl.h.
enum class TensorPlacement : std::uint8_t { replicate = 0, unique = 1 };
enum class Lifetime : std::uint8_t { stable = 0, volatile_ = 1, derived = 2 };
[[nodiscard]] std::string_view name_of(TensorPlacement placement);
[[nodiscard]] std::string_view name_of(Lifetime lifetime);

inline constexpr std::uint32_t kNoMesh = ~0u;                     // of blobs
inline constexpr std::uint64_t kNotCaptured = ~std::uint64_t{0};  // offset of derived entries
inline constexpr std::uint64_t kEntryAlignment = 64;
// The blob that becomes the values and aliases of a checkpoint: {"values": ANY, "aliases": {NAME: KEPT}}, as pawl.h has it.
inline constexpr std::string_view kValuesBlob = "values.json";
inline constexpr std::uint64_t kBlobHeaderBytes = 8;  // u64: how many of the bytes after it count

struct LayoutEntry {
  std::string name;
  std::string role;                          // "blob" for a blob
  ElementType dtype = ElementType::float32;  // is_captured()
  Shape shape;                               // of the whole tensor
  Box box;                                   // what this seat holds of it
  std::uint32_t mesh = kNoMesh;
  TensorPlacement placement = TensorPlacement::replicate;
  Lifetime lifetime = Lifetime::stable;
  std::uint64_t equal_axes = 0;  // bit i: the box and its bytes are equal along axis i of the mesh; of stable ones only
  // How the box lies in memory, dense: its dimensions from the one whose stride is greatest to the one that runs fastest. Empty:
  // row-major. Of what is the same memory LayoutBuilder::add keeps one form (canonical_order).
  std::vector<std::uint32_t> order;
  std::uint64_t payload_offset = kNotCaptured;  // set by LayoutBuilder::build
  std::uint64_t bytes = 0;                      // of the box; set by LayoutBuilder::add
  bool operator==(const LayoutEntry&) const = default;
};

struct SeatLayout {
  std::uint32_t world = 0;
  std::vector<Mesh> meshes;
  std::vector<LayoutEntry> entries;  // in declared order: an entry's index is what LayoutBuilder::add returned
  std::uint64_t stable_bytes = 0;    // the payload's first part, a multiple of 64
  std::uint64_t payload_bytes = 0;
  bool operator==(const SeatLayout&) const = default;
};

// The one form of all orders that mean the same memory: dimensions of extent 1 come first, in ascending order, and what is
// row-major without them is empty. `order` is a permutation of the box's dimensions, or empty.
[[nodiscard]] std::vector<std::uint32_t> canonical_order(const std::vector<std::uint32_t>& order, const Box& box);

class LayoutBuilder {
 public:
  explicit LayoutBuilder(std::uint32_t world) { layout_.world = world; }
  // Each returns the index. Fails: `invalid` with the reason; nothing has changed then.
  [[nodiscard]] Result<std::uint32_t> add_mesh(Mesh mesh);
  [[nodiscard]] Result<std::uint32_t> add(LayoutEntry entry);  // payload_offset and bytes are ignored
  // A volatile entry of `capacity` + 8 bytes that only this seat has.
  [[nodiscard]] Result<std::uint32_t> add_blob(std::string name, std::uint64_t capacity);
  // Lays the payload out. Fails: `invalid` if nothing is captured or it is larger than 2^46 bytes.
  [[nodiscard]] Result<SeatLayout> build() const;

 private:
  SeatLayout layout_;
  std::unordered_set<std::string> names_;  // name \n role
};

using pawl::text_of;  // of shapes, beside those below
// The canonical text; its grammar is in docs/format.md.
[[nodiscard]] std::string text_of(const SeatLayout& layout);
// Fails: `corrupt` with the line's number. Cost is linear in the text, whoever wrote it.
[[nodiscard]] Result<SeatLayout> parse_layout(std::string_view text);

// Whether a snapshot of one can be restored by whoever declares the other, both built or parsed: they differ in nothing
// but the capacity of blobs, and hence in offsets, and in what is declared equal on other seats, which moves no byte.
[[nodiscard]] bool have_same_state(const SeatLayout& one, const SeatLayout& other);

// What must be equal on all seats: the world, the meshes, the replicated tensors. What is declared equal on which seats is a
// hint, and sums prove it.
[[nodiscard]] std::string shared_text(const SeatLayout& layout);
// What two shared texts disagree on, at most `limit` sentences, each naming a tensor (or mesh) with both shapes:
// "tensor wte (weight): [50304,768] float32 here, [50257,768] float32 there". Empty if they are equal.
[[nodiscard]] std::vector<std::string> first_differences(std::string_view here, std::string_view there,
                                                         std::size_t limit = 5);

}  // namespace pawl::job
