// What both tests of the store need: tensors whose bytes tell what they are, and reading back.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/formats/native/store_view.h"
#include "checkpoint/formats/open_checkpoint.h"
#include "checkpoint/reshape/file_source.h"
#include "checkpoint/store/store_folder.h"
#include "checkpoint/view/pieces.h"
#include "env/files.h"
#include "env/temporary_directory.h"

namespace pawl::checkpoint {

using Bytes = std::vector<std::byte>;

// Bytes that no other seed has, and no other place.
inline Bytes pattern(std::size_t size, std::uint64_t seed) {
  Bytes out(size);
  for (std::size_t i = 0; i < size; i += 8) {
    std::uint64_t word = (i + 1) * 0x9E3779B97F4A7C15u ^ (seed + 1) * 0xC2B2AE3D27D4EB4Fu;
    word ^= word >> 29;
    std::memcpy(out.data() + i, &word, std::min<std::size_t>(8, size - i));
  }
  return out;
}

inline Box box_of(const Shape& begin, const Shape& size) {
  Box box{static_cast<std::uint32_t>(size.size()), {}, {}};
  std::ranges::copy(begin, box.begin.begin());
  std::ranges::copy(size, box.size.begin());
  return box;
}

// A piece of a tensor whose whole, row-major bytes are `whole`: a view of its memory, as ranks' shards may be.
inline StorePiece piece_of(std::string name, std::string role, ElementType type, Shape shape, const Box& box,
                           const Bytes& whole) {
  StorePiece piece{std::move(name), std::move(role), type, std::move(shape), box, whole.data(), {}};
  const std::uint64_t unit = size_bits(type) / 8;
  piece.stride_bytes = dense_stride(whole_box(piece.shape));
  for (std::uint32_t d = 0; d < box.dimensions; ++d) {
    piece.stride_bytes[d] *= unit;
    piece.memory += box.begin[d] * piece.stride_bytes[d];
  }
  return piece;
}

inline StorePiece whole_of(std::string name, std::string role, ElementType type, const Shape& shape,
                           const Bytes& whole) {
  return piece_of(std::move(name), std::move(role), type, shape, whole_box(shape), whole);
}

// Little memory, one core: tests run side by side.
inline StorePartOptions small_options() {
  StorePartOptions options;
  options.execution.memory_bytes = 4 << 20;
  options.execution.threads = 1;
  return options;
}

// All of a tensor, row-major, through the executor.
inline Result<Bytes> load(const CheckpointView& view, std::uint32_t tensor) {
  const StoredTensor& stored = view.tensors[tensor];
  const PerDimension dense = dense_stride(whole_box(stored.shape));
  std::uint32_t number = 0;
  for (std::uint32_t i = 0; i < tensor; ++i) number += static_cast<std::uint32_t>(view.tensors[i].pieces.size());
  std::vector<PlannedCopy> copies;
  for (const StoredPiece& piece : stored.pieces) {
    PlannedCopy copy;
    copy.from = copy.to = stored.type;
    copy.box = piece.box;
    copy.sources = {{piece.file, number++, 0, piece.stride}};
    copy.target = {0, 0, 0, dense};
    for (std::uint32_t d = 0; d < piece.box.dimensions; ++d) copy.target.offset += piece.box.begin[d] * dense[d];
    copies.push_back(std::move(copy));
  }
  Bytes out(volume(whole_box(stored.shape)) * size_bits(stored.type) / 8);
  CopyTarget target;
  target.place = [&](std::uint32_t, std::uint32_t) { return BufferPlace{out.data(), 0, 0, out.size()}; };
  PAWL_TRY(execute(stream_of(std::move(copies)), places_of(view), target, small_options().execution));
  return out;
}

inline const StoredTensor* find(const CheckpointView& view, std::string_view name, std::string_view role) {
  for (const StoredTensor& tensor : view.tensors)
    if (tensor.name == name && tensor.role == role) return &tensor;
  return nullptr;
}

}  // namespace pawl::checkpoint
