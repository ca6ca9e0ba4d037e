#include "checkpoint/reshape/strided.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>

#include "base/memory_kernel.h"
#include "checkpoint/reshape/cast.h"

namespace pawl::checkpoint {
namespace {

constexpr std::size_t kBlockElements = 512;   // of the slow path's buffers, which stay in the first cache
constexpr std::size_t kElementBytesMax = 16;  // complex128

// The dimensions that are left when those of extent 1 are dropped and those that run on at both ends are joined.
struct Loops {
  std::uint32_t count = 0;
  PerDimension size{}, from{}, to{};
};

Loops loops_of(const BoxCopy& copy) {
  Loops loops;
  for (std::uint32_t d = 0; d < copy.dimensions; ++d) {
    const std::uint64_t size = copy.size[d];
    if (size == 1) continue;
    if (loops.count != 0) {
      const std::uint32_t last = loops.count - 1;
      if (loops.from[last] == size * copy.from_stride[d] && loops.to[last] == size * copy.to_stride[d]) {
        loops.size[last] *= size;
        loops.from[last] = copy.from_stride[d];
        loops.to[last] = copy.to_stride[d];
        continue;
      }
    }
    loops.size[loops.count] = size;
    loops.from[loops.count] = copy.from_stride[d];
    loops.to[loops.count] = copy.to_stride[d];
    ++loops.count;
  }
  return loops;
}

// Calls body(from offset, to offset) for each index of the first `outer` loops.
template <class Body>
void for_each_index(const Loops& loops, std::uint32_t outer, Body body) {
  PerDimension index{};
  std::uint64_t from = 0, to = 0;
  for (;;) {
    body(from, to);
    std::uint32_t d = outer;
    while (d-- > 0) {
      from += loops.from[d];
      to += loops.to[d];
      if (++index[d] < loops.size[d]) break;
      from -= loops.size[d] * loops.from[d];
      to -= loops.size[d] * loops.to[d];
      index[d] = 0;
    }
    if (d == ~0u) return;
  }
}

template <std::size_t kBytes>
void copy_elements(std::byte* to, std::uint64_t to_stride, const std::byte* from, std::uint64_t from_stride,
                   std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    std::array<std::byte, kBytes> element;
    std::memcpy(element.data(), from + i * from_stride, kBytes);
    std::memcpy(to + i * to_stride, element.data(), kBytes);
  }
}

void copy_elements(std::size_t bytes, std::byte* to, std::uint64_t to_stride, const std::byte* from,
                   std::uint64_t from_stride, std::uint64_t count) {
  switch (bytes) {
    case 1:
      return copy_elements<1>(to, to_stride, from, from_stride, count);
    case 2:
      return copy_elements<2>(to, to_stride, from, from_stride, count);
    case 4:
      return copy_elements<4>(to, to_stride, from, from_stride, count);
    case 8:
      return copy_elements<8>(to, to_stride, from, from_stride, count);
    case 16:
      return copy_elements<16>(to, to_stride, from, from_stride, count);
    default:
      for (std::uint64_t i = 0; i < count; ++i) std::memcpy(to + i * to_stride, from + i * from_stride, bytes);
  }
}

void copy_plain(const BoxCopy& copy, const Loops& loops, std::size_t bytes) {
  if (loops.count == 0) {
    std::memcpy(copy.to, copy.from, bytes);
    return;
  }
  const std::uint32_t inner = loops.count - 1;
  if (loops.from[inner] != bytes || loops.to[inner] != bytes) {
    for_each_index(loops, inner, [&](std::uint64_t from, std::uint64_t to) {
      copy_elements(bytes, copy.to + to, loops.to[inner], copy.from + from, loops.from[inner], loops.size[inner]);
    });
    return;
  }
  const std::size_t row = loops.size[inner] * bytes;
  const MemoryKernel& kernel = memory_kernel();
  if (inner == 0) return kernel.copy_rows({copy.to, 0, copy.from, 0, row, 1});
  const std::uint32_t rows = inner - 1;
  for_each_index(loops, rows, [&](std::uint64_t from, std::uint64_t to) {
    kernel.copy_rows({copy.to + to, loops.to[rows], copy.from + from, loops.from[rows], row, loops.size[rows]});
  });
}

// Elements in one line, at any distance: gathered, turned, cast and scattered a block at a time.
std::uint64_t convert_line(const BoxCopy& copy, const std::byte* from, std::uint64_t from_stride, std::byte* to,
                           std::uint64_t to_stride, std::uint64_t count) {
  const std::size_t from_bytes = size_bits(copy.from_type) / 8;
  const std::size_t to_bytes = size_bits(copy.to_type) / 8;
  alignas(64) std::array<std::byte, kBlockElements * kElementBytesMax> gathered;
  alignas(64) std::array<std::byte, kBlockElements * kElementBytesMax> made;
  const std::size_t by_bytes = size_bits(copy.by_type) / 8;
  alignas(64) std::array<std::byte, kBlockElements * 4> by;
  std::uint64_t overflows = 0;
  for (std::uint64_t done = 0; done < count; done += kBlockElements) {
    const std::size_t n = std::min<std::uint64_t>(kBlockElements, count - done);
    const std::byte* source = from + done * from_stride;
    std::byte* target = to + done * to_stride;
    if (copy.swapped || from_stride != from_bytes) {
      copy_elements(from_bytes, gathered.data(), from_bytes, source, from_stride, n);
      if (copy.swapped) swap_bytes(copy.from_type, gathered.data(), n * from_bytes);
      source = gathered.data();
    }
    if (copy.by_type != copy.from_type && copy.by_type != copy.to_type) {
      overflows +=
          cast(copy.from_type, std::span(source, n * from_bytes), copy.by_type, std::span(by.data(), n * by_bytes));
      source = by.data();
    }
    const bool is_dense = to_stride == to_bytes;
    std::byte* casted = is_dense ? target : made.data();
    overflows +=
        source == by.data()
            ? cast(copy.by_type, std::span(source, n * by_bytes), copy.to_type, std::span(casted, n * to_bytes))
            : cast(copy.from_type, std::span(source, n * from_bytes), copy.to_type, std::span(casted, n * to_bytes));
    if (!is_dense) copy_elements(to_bytes, target, to_stride, casted, to_bytes, n);
  }
  return overflows;
}

}  // namespace

std::uint64_t copy_box(const BoxCopy& copy) {
  for (std::uint32_t d = 0; d < copy.dimensions; ++d)
    if (copy.size[d] == 0) return 0;
  const Loops loops = loops_of(copy);
  const std::size_t from_bytes = size_bits(copy.from_type) / 8;
  const bool is_same = copy.from_type == copy.to_type && copy.from_type == copy.by_type;
  if (is_same && !(copy.swapped && swapped_bytes(copy.from_type) > 1)) {
    copy_plain(copy, loops, from_bytes);
    return 0;
  }
  if (loops.count == 0) return convert_line(copy, copy.from, from_bytes, copy.to, size_bits(copy.to_type) / 8, 1);
  std::uint64_t overflows = 0;
  const std::uint32_t inner = loops.count - 1;
  for_each_index(loops, inner, [&](std::uint64_t from, std::uint64_t to) {
    overflows +=
        convert_line(copy, copy.from + from, loops.from[inner], copy.to + to, loops.to[inner], loops.size[inner]);
  });
  return overflows;
}

void swap_bytes(ElementType type, std::byte* bytes, std::size_t size_bytes) {
  const std::size_t unit = swapped_bytes(type);
  for (std::size_t at = 0; unit > 1 && at + unit <= size_bytes; at += unit) std::reverse(bytes + at, bytes + at + unit);
}

}  // namespace pawl::checkpoint
