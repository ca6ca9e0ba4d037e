// Division: who writes what of that which several hold: each byte once, and all of them equally much.
//
// What always holds:
//  * each box is written by those who hold it, once, whole or cut into rows, and only into parts that are worth it;
//  * what several hold is given to them so that the fullest of them has as little as possible;
//  * equal input gives an equal answer everywhere, so every process computes it alone.
// divide_pieces() is for ranks that tell one another all that they hold (pawl.torch.save). divide_among() is its inner
// part: one group of holders of the same boxes, without knowing anybody else (pawld). Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tensor/box.h"

namespace pawl::checkpoint {

inline constexpr std::uint64_t kPartBytesMin = std::uint64_t{1} << 20;

struct DivisionItem {
  Box box;
  std::uint32_t element_bytes = 1;
};
struct DividedBox {
  std::uint32_t holder = 0;  // among the holders
  std::uint32_t item = 0;
  Box box;  // of the item's, all or rows of it
};
// The items lie end to end; the holders take them in their order, each as much as it has room for. A box is cut into
// rows along its first dimension with more than one. `rooms`: of each holder, in bytes; the last one takes what is
// left, whatever its room. Empty boxes are nobody's. Cost: linear.
[[nodiscard]] std::vector<DividedBox> divide_among(std::span<const DivisionItem> items,
                                                   std::span<const std::uint64_t> rooms,
                                                   std::uint64_t part_bytes_min = kPartBytesMin);
// How much of `bytes` each holder gets, if they have `loads` to write already: the fullest has as little as can be.
[[nodiscard]] std::vector<std::uint64_t> level_rooms(std::uint64_t bytes, std::span<const std::uint64_t> loads);
// Of holders that have nothing else to write.
[[nodiscard]] std::vector<std::uint64_t> equal_rooms(std::uint64_t bytes, std::uint32_t holders);

// A piece, as all ranks know it. Refers to its rank's strings.
struct HeldPiece {
  std::string_view name;
  std::string_view role;
  std::string_view type;  // a name that is only compared
  Shape shape;            // of the whole tensor
  Box box;
  std::uint32_t element_bytes = 1;
  std::uint64_t sample = 0;  // a checksum of some elements, which all copies must share
};
struct WrittenBox {
  std::uint32_t piece = 0;  // in its rank's list
  Box box;                  // of the piece's, all or rows of it
};
struct DivisionOptions {
  bool check_replicas =
      true;  // off: where samples differ, the lowest rank writes the box whole. For replicas that have
             // diverged, if a save matters more
  std::uint64_t part_bytes_min = kPartBytesMin;
};
// What each rank writes, in the order of its pieces. Buffers and extra_state, of which copies may differ, come whole
// from the lowest rank that holds them. A tensor that is empty as a whole is written by the lowest rank that knows it,
// so that it is there. Of a piece that one rank has twice, the first counts. Cost: O(n log n) in pieces.
// Fails: `invalid`, naming up to five tensors: their box lies outside of their shape; ranks know them in different
// shapes or types; or, with check_replicas, samples differ.
[[nodiscard]] Result<std::vector<std::vector<WrittenBox>>> divide_pieces(std::span<const std::vector<HeldPiece>> ranks,
                                                                         const DivisionOptions& options = {});

}  // namespace pawl::checkpoint
