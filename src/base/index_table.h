// IndexTable: the numbers of things that lie elsewhere, by their hashes: one piece of memory, whatever they are.
//
// For tables of a hundred thousand names, where a map's nodes and the misses of the cache that they cost would take
// longer than all the rest. What always holds: at most as many as were reserved are added. Removes nothing.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pawl {

class IndexTable {
 public:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  IndexTable() = default;
  explicit IndexTable(std::size_t count_max) { clear(count_max); }
  void clear(std::size_t count_max) { cells_.assign(std::bit_ceil(count_max + count_max / 2 + 1), {}); }

  // Of a hash the low half says where to look first, and the high half, which must be well mixed, where next. Numbers
  // that come in order may so have places in order.
  // The number of the one that is equal; `number`, which is added, if there is none.
  template <class IsEqual>
  std::uint32_t find_or_add(std::uint64_t hash, std::uint32_t number, const IsEqual& is_equal) {
    Cell& cell = cells_[cell_of(hash, is_equal)];
    if (cell.number == kNone) cell = {part_of(hash), number};
    return cell.number;
  }
  template <class IsEqual>
  [[nodiscard]] std::uint32_t find(std::uint64_t hash, const IsEqual& is_equal) const {
    return cells_[cell_of(hash, is_equal)].number;
  }

 private:
  struct Cell {
    std::uint32_t part = 0;  // of the hash: seldom is more than one thing looked at
    std::uint32_t number = kNone;
  };
  static std::uint32_t part_of(std::uint64_t hash) { return static_cast<std::uint32_t>(hash >> 32); }

  // The one that holds it, or a free one.
  template <class IsEqual>
  [[nodiscard]] std::size_t cell_of(std::uint64_t hash, const IsEqual& is_equal) const {
    std::size_t at = hash & (cells_.size() - 1);
    while (cells_[at].number != kNone && (cells_[at].part != part_of(hash) || !is_equal(cells_[at].number)))
      at = (at + (part_of(hash) | 1)) & (cells_.size() - 1);
    return at;
  }

  std::vector<Cell> cells_ = std::vector<Cell>(1);
};

}  // namespace pawl
