// Edits of pieces: what a reader does to a StoredTensor until it is the model's own tensor.
//
// A reader first says what one file holds: a rank's part of a tensor, a flat interval of that part, several tensors
// stored as one. Then it edits: it joins the parts of ranks, takes out layers and experts, and splits fused tensors.
// All edits are of boxes and strides. No byte moves, so they are exact for every type.
// What always holds: if a tensor's pieces keep the invariants of checkpoint_view.h, they keep them after an edit. Edits
// of packed types (four and six bits) fail unless they change nothing. `scales` stay as they were: whoever cuts a
// payload must cut its scales too.
// Pure. Fails: `invalid`, with the tensor's name and shapes.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "checkpoint/view/checkpoint_view.h"
#include "tensor/placement.h"
#include "tensor/tiling.h"

namespace pawl::checkpoint {

// The row-major elements [begin, end) of an array as pieces (as boxes: tensor/tiling.h). `first` says where element
// `begin` lies, and all that the pieces share; the other elements follow it densely.
void append_interval(const Shape& array, std::uint64_t begin, std::uint64_t end, ElementType type,
                     const StoredPiece& first, std::vector<StoredPiece>& out);

// Only these spans of one dimension, joined in the order given. select(t, 0, {{layer, 1}}) is one layer of a stack.
[[nodiscard]] Result<StoredTensor> select(StoredTensor tensor, std::uint32_t dimension, const std::vector<Span>& spans);
// The other way: the tensor's indices along the dimension are these spans of one that is `extent` long.
[[nodiscard]] Result<StoredTensor> spread(StoredTensor tensor, std::uint32_t dimension, const std::vector<Span>& spans,
                                          std::uint64_t extent);

[[nodiscard]] Result<StoredTensor> drop_dimension(StoredTensor tensor, std::uint32_t dimension);  // of extent 1
[[nodiscard]] Result<StoredTensor> add_dimension(StoredTensor tensor, std::uint32_t dimension);   // likewise, before it
// One dimension becomes two: `inner` divides its extent and is that of the second.
[[nodiscard]] Result<StoredTensor> split_dimension(StoredTensor tensor, std::uint32_t dimension, std::uint64_t inner);
// A dimension and the one after it become one.
[[nodiscard]] Result<StoredTensor> merge_dimensions(StoredTensor tensor, std::uint32_t dimension);
// Dimension i of the result is order[i] of the tensor.
[[nodiscard]] Result<StoredTensor> transpose(StoredTensor tensor, const std::vector<std::uint32_t>& order);

// The tensor as a box of a larger one. place, then gather: chunks at offsets.
[[nodiscard]] Result<StoredTensor> place(StoredTensor part, const Shape& whole, const Shape& offset);
// One tensor of parts that have equal shapes, types and numbers of versions and don't overlap; the first one's name.
[[nodiscard]] Result<StoredTensor> gather(std::vector<StoredTensor> parts);
// Each spread over its spans of the dimension; then gathered. As many lists as parts; together they tile it.
[[nodiscard]] Result<StoredTensor> join(std::vector<StoredTensor> parts, std::uint32_t dimension,
                                        const std::vector<std::vector<Span>>& spans);
// One after another.
[[nodiscard]] Result<StoredTensor> concatenate(std::vector<StoredTensor> parts, std::uint32_t dimension);

// Equal shapes and types; the parts become copies (or versions, whose mean is the value) in the order given.
[[nodiscard]] Result<StoredTensor> as_copies(std::vector<StoredTensor> parts);
[[nodiscard]] Result<StoredTensor> as_versions(std::vector<StoredTensor> parts);
[[nodiscard]] StoredTensor without_copies_beyond(StoredTensor tensor, std::uint32_t copies);

// Of a block-quantised model, whose configuration says how large a block is: tensors called NAME_scale_inv, NAME_scale
// or NAME_scales, of the shape that the blocks of NAME have (8 bits an element or fewer, same role), are its scales
// from now on. Returns how many there were.
[[nodiscard]] std::size_t mark_block_scales(CheckpointView& view, const Shape& block);

// Proves what checkpoint_view.h says of a view. `file_sizes`: of each of view.files, used where it is a plain file.
// Adds a sentence to `problems` that names up to five tensors with regions that no piece holds, unless it is there.
// Fails: `corrupt`, naming up to five tensors, where anything else is not so. Near-linear in the pieces.
[[nodiscard]] Status check_view(CheckpointView& view, const std::vector<std::uint64_t>& file_sizes);

}  // namespace pawl::checkpoint
