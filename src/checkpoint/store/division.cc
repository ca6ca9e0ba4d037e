#include "checkpoint/store/division.h"

#include <algorithm>
#include <compare>
#include <limits>
#include <string>

#include "base/first_few.h"
#include "base/text.h"

namespace pawl::checkpoint {
namespace {

constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 62;  // of all pieces together: sums of two stay exact

// The dimension that is cut; where there is nothing to part, the first.
std::uint32_t row_dimension(const Box& box) {
  for (std::uint32_t d = 0; d < box.dimensions; ++d)
    if (box.size[d] > 1) return d;
  return 0;
}

std::uint64_t rows_of(const Box& box) {
  return box.dimensions == 0 ? 1 : box.size[row_dimension(box)];
}

Box rows_between(Box box, std::uint64_t begin, std::uint64_t end) {
  if (box.dimensions == 0) return box;
  const std::uint32_t d = row_dimension(box);
  box.begin[d] += begin;
  box.size[d] = end - begin;
  return box;
}

// How many of these rows fit best: all, some if both parts are worth it, or none.
std::uint64_t rows_for(std::uint64_t room, std::uint64_t rows, std::uint64_t row_bytes, std::uint64_t part_bytes_min) {
  const std::uint64_t rest = rows * row_bytes;
  if (room >= rest) return rows;
  const std::uint64_t take = (room + row_bytes / 2) / row_bytes;
  if (std::min(take * row_bytes, rest - take * row_bytes) >= part_bytes_min) return take;
  return room > rest / 2 ? rows : 0;
}

// A piece of a rank.
struct Held {
  const HeldPiece* piece = nullptr;
  std::uint32_t rank = 0;
  std::uint32_t index = 0;  // in its rank's list
};

bool comes_first(const Held& a, const Held& b) {
  return a.rank != b.rank ? a.rank < b.rank : a.index < b.index;
}

bool is_of_one_tensor(const Held& a, const Held& b) {
  return a.piece->name == b.piece->name && a.piece->role == b.piece->role;
}

bool is_of_one_box(const Held& a, const Held& b) {
  return is_of_one_tensor(a, b) && a.piece->box == b.piece->box;
}

std::strong_ordering order_of(const Box& a, const Box& b) {
  if (const auto order = a.dimensions <=> b.dimensions; order != 0) return order;
  if (const auto order = a.begin <=> b.begin; order != 0) return order;
  return a.size <=> b.size;
}

// By tensor, then by box, then by who has it.
bool is_before(const Held& a, const Held& b) {
  if (const auto order = a.piece->name <=> b.piece->name; order != 0) return order < 0;
  if (const auto order = a.piece->role <=> b.piece->role; order != 0) return order < 0;
  if (const auto order = order_of(a.piece->box, b.piece->box); order != 0) return order < 0;
  return comes_first(a, b);
}

std::vector<Held> sorted_pieces(std::span<const std::vector<HeldPiece>> ranks) {
  std::vector<Held> all;
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank)
    for (std::uint32_t index = 0; index < ranks[rank].size(); ++index)
      all.push_back({&ranks[rank][index], rank, index});
  std::ranges::sort(all, is_before);
  return all;
}

// Calls `use` with each longest run of neighbours that are alike.
template <class Alike, class Use>
void for_each_run(std::span<const Held> sorted, Alike is_alike, Use use) {
  for (std::size_t begin = 0, end = 0; begin < sorted.size(); begin = end) {
    while (end < sorted.size() && is_alike(sorted[begin], sorted[end])) ++end;
    use(sorted.subspan(begin, end - begin));
  }
}

std::string label(const HeldPiece& piece) {
  return text(piece.name, " (", piece.role, ")");
}

std::string type_and_shape(const Held& held) {
  std::string out = text(held.piece->type, " [");
  for (std::size_t d = 0; d < held.piece->shape.size(); ++d) out += text(d == 0 ? "" : ", ", held.piece->shape[d]);
  return out + text("] on rank ", held.rank);
}

// The box lies inside its tensor, and the sizes of all pieces have a sum.
Status check_pieces(std::span<const std::vector<HeldPiece>> ranks) {
  FirstFew faults;
  std::uint64_t sum = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const HeldPiece& piece : ranks[rank]) {
      const Result<std::uint64_t> elements = element_count(piece.shape);
      const Status inside = elements ? check_inside(piece.box, piece.shape) : Status(elements.error());
      std::uint64_t bytes = 0;
      if (!inside)
        faults.add(text(label(piece), " on rank ", rank, ": ", inside.error().what));
      else if (__builtin_mul_overflow(volume(piece.box), piece.element_bytes, &bytes) || bytes > kBytesMax - sum)
        return Error{Code::invalid, text(label(piece), " on rank ", rank, ": more bytes than can be counted")};
      sum += bytes;
    }
  }
  if (faults.any()) return Error{Code::invalid, faults.sentence()};
  return {};
}

// Two of one tensor or of one box that aren't alike.
struct Difference {
  Held first;
  Held other;
};

// In the order in which the ranks list them.
std::string first_few(std::vector<Difference> differences, std::string (*describe)(const Difference&)) {
  std::ranges::sort(differences, comes_first, &Difference::other);
  FirstFew few;
  for (const Difference& each : differences) few.add(few.full() ? std::string() : describe(each));
  return few.sentence();
}

Status check_types_and_shapes(std::span<const Held> sorted) {
  std::vector<Difference> unlike;
  for_each_run(sorted, is_of_one_tensor, [&](std::span<const Held> tensor) {
    const Held first = *std::ranges::min_element(tensor, comes_first);
    for (const Held& each : tensor)
      if (each.piece->shape != first.piece->shape || each.piece->type != first.piece->type)
        unlike.push_back({first, each});
  });
  if (unlike.empty()) return {};
  const std::string named = first_few(std::move(unlike), [](const Difference& each) {
    return text(label(*each.other.piece), ": ", type_and_shape(each.first), ", ", type_and_shape(each.other));
  });
  return Error{Code::invalid, text("tensors of one name differ between ranks: ", named,
                                   ": give each rank's model names of its own, with rename=")};
}

// Of copies of one box: one whose sample isn't the first one's; the end where they agree.
std::span<const Held>::iterator diverged(std::span<const Held> copies) {
  return std::ranges::find_if(copies, [&](const Held& each) { return each.piece->sample != copies[0].piece->sample; });
}

Status check_samples(std::span<const Held> sorted) {
  std::vector<Difference> unlike;
  for_each_run(sorted, is_of_one_box, [&](std::span<const Held> copies) {
    const auto other = diverged(copies);
    if (other != copies.end()) unlike.push_back({copies[0], *other});
  });
  if (unlike.empty()) return {};
  const std::string named = first_few(std::move(unlike), [](const Difference& each) {
    return text(label(*each.other.piece), " on ranks ", each.first.rank, " and ", each.other.rank);
  });
  return Error{Code::invalid,
               text("ranks hold different values of what should be equal: ", named,
                    ": if these are different parameters, give them names of their own, with rename=; if they are "
                    "replicas that have diverged, broadcast one of them, or save with check_replicas=False, which "
                    "keeps those of the lowest rank")};
}

// Pieces of agreeing ranks in, shares out.
class Writers {
 public:
  explicit Writers(std::size_t ranks) : boxes_(ranks), loads_(ranks) {}

  void give(const Held& holder, const Box& box) {
    boxes_[holder.rank].push_back({holder.index, box});
    loads_[holder.rank] += volume(box) * holder.piece->element_bytes;
  }

  // `group`: boxes that the same ranks hold, each with its holders.
  void give_group(std::span<const std::span<const Held>> group, std::uint64_t part_bytes_min) {
    std::vector<DivisionItem> items;
    std::uint64_t bytes = 0;
    for (const std::span<const Held> holders : group) {
      items.push_back({holders[0].piece->box, holders[0].piece->element_bytes});
      bytes += volume(items.back().box) * items.back().element_bytes;
    }
    std::vector<std::uint64_t> loads;
    for (const Held& holder : group[0]) loads.push_back(loads_[holder.rank]);
    for (const DividedBox& part : divide_among(items, level_rooms(bytes, loads), part_bytes_min))
      give(group[part.item][part.holder], part.box);
  }

  [[nodiscard]] std::vector<std::vector<WrittenBox>> take() && {
    for (std::vector<WrittenBox>& of_rank : boxes_)
      std::ranges::sort(of_rank, [](const WrittenBox& a, const WrittenBox& b) {
        return a.piece != b.piece ? a.piece < b.piece : order_of(a.box, b.box) < 0;
      });
    return std::move(boxes_);
  }

 private:
  std::vector<std::vector<WrittenBox>> boxes_;  // of each rank
  std::vector<std::uint64_t> loads_;            // of each rank, in bytes
};

bool are_the_same_ranks(std::span<const Held> a, std::span<const Held> b) {
  return std::ranges::equal(a, b, {}, &Held::rank, &Held::rank);
}

// Fewest holders first: who has most of its own is known before what all have is divided.
void sort_by_holders(std::vector<std::span<const Held>>& boxes) {
  std::ranges::stable_sort(boxes, [](std::span<const Held> a, std::span<const Held> b) {
    if (a.size() != b.size()) return a.size() < b.size();
    return std::ranges::lexicographical_compare(a, b, {}, &Held::rank, &Held::rank);
  });
}

void give_empty_tensors(std::span<const Held> sorted, Writers& writers) {
  for_each_run(sorted, is_of_one_tensor, [&](std::span<const Held> tensor) {
    const Held first = *std::ranges::min_element(tensor, comes_first);
    if (std::ranges::count(first.piece->shape, 0u) != 0) writers.give(first, first.piece->box);
  });
}

}  // namespace

std::vector<std::uint64_t> level_rooms(std::uint64_t bytes, std::span<const std::uint64_t> loads) {
  std::vector<std::uint64_t> ascending(loads.begin(), loads.end());
  std::ranges::sort(ascending);
  std::uint64_t level = 0, counted = 0;
  for (std::size_t count = 1; count <= ascending.size(); ++count) {  // of those below the level
    counted += ascending[count - 1];
    level = (bytes + counted + count - 1) / count;
    if (count < ascending.size() && level <= ascending[count]) break;
  }
  std::vector<std::uint64_t> rooms;
  for (const std::uint64_t load : loads) rooms.push_back(level - std::min(level, load));
  return rooms;
}

std::vector<std::uint64_t> equal_rooms(std::uint64_t bytes, std::uint32_t holders) {
  return level_rooms(bytes, std::vector<std::uint64_t>(holders));
}

std::vector<DividedBox> divide_among(std::span<const DivisionItem> items, std::span<const std::uint64_t> rooms,
                                     std::uint64_t part_bytes_min) {
  std::vector<DividedBox> divided;
  std::uint32_t at = 0;
  std::uint64_t room = rooms.empty() ? 0 : rooms[0];
  for (std::uint32_t i = 0; i < items.size() && !rooms.empty(); ++i) {
    const std::uint64_t elements = volume(items[i].box);
    if (elements == 0) continue;
    const std::uint64_t rows = rows_of(items[i].box);
    const std::uint64_t row_bytes = elements / rows * items[i].element_bytes;
    for (std::uint64_t done = 0; done < rows;) {
      std::uint64_t take = rows - done;
      if (at + 1 < rooms.size()) take = rows_for(room, take, row_bytes, part_bytes_min);
      if (take == 0) {
        room = rooms[++at];
        continue;
      }
      divided.push_back({at, i, rows_between(items[i].box, done, done + take)});
      room -= std::min(room, take * row_bytes);
      done += take;
    }
  }
  return divided;
}

Result<std::vector<std::vector<WrittenBox>>> divide_pieces(std::span<const std::vector<HeldPiece>> ranks,
                                                           const DivisionOptions& options) {
  PAWL_TRY(check_pieces(ranks));
  std::vector<Held> sorted = sorted_pieces(ranks);
  PAWL_TRY(check_types_and_shapes(sorted));
  if (options.check_replicas) PAWL_TRY(check_samples(sorted));
  const auto [again, end] =
      std::ranges::unique(sorted, [](const Held& a, const Held& b) { return a.rank == b.rank && is_of_one_box(a, b); });
  sorted.erase(again, end);

  Writers writers(ranks.size());
  std::vector<std::span<const Held>> shared;
  for_each_run(sorted, is_of_one_box, [&](std::span<const Held> holders) {
    const HeldPiece& piece = *holders[0].piece;
    if (volume(piece.box) == 0) return;
    const bool may_differ = piece.role == "buffer" || piece.role == "extra_state" || diverged(holders) != holders.end();
    if (holders.size() == 1 || may_differ)
      writers.give(holders[0], piece.box);
    else
      shared.push_back(holders);
  });
  give_empty_tensors(sorted, writers);
  sort_by_holders(shared);
  for (std::size_t begin = 0, group_end = 0; begin < shared.size(); begin = group_end) {
    while (group_end < shared.size() && are_the_same_ranks(shared[begin], shared[group_end])) ++group_end;
    writers.give_group(std::span(shared).subspan(begin, group_end - begin), options.part_bytes_min);
  }
  return std::move(writers).take();
}

}  // namespace pawl::checkpoint
