// The C border of pawl_checkpoint_divide: strings and arrays in, numbers out. The work is done in
// checkpoint/store/division.h.
#include <algorithm>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "base/c_struct.h"
#include "base/first_few.h"
#include "base/text.h"
#include "checkpoint/library/options.h"
#include "checkpoint/library/status.h"
#include "checkpoint/store/division.h"
#include "pawl/checkpoint.h"

struct pawl_checkpoint_division {
  struct OfRank {
    std::vector<std::uint64_t> numbers;  // as pawl_checkpoint_division_boxes gives them
    std::size_t boxes = 0;
  };
  std::vector<OfRank> ranks;
};

namespace {

using pawl::Code;
using pawl::Error;
using pawl::Result;
using pawl::Status;
using pawl::text;
using pawl::checkpoint::HeldPiece;
using pawl::checkpoint::WrittenBox;

// What of a piece can be wrong before its numbers mean anything.
Result<HeldPiece> piece_of(const pawl_checkpoint_held_piece& given) {
  if (given.name == nullptr || given.dtype == nullptr) return Error{Code::invalid, "a piece without name or dtype"};
  const std::uint32_t count = given.dimension_count;
  if (count > pawl::kDimensionsMax || (count != 0 && given.shape == nullptr))
    return Error{Code::invalid, text(given.name, ": ", count, " dimensions, or no shape")};
  if (given.element_bytes == 0) return Error{Code::invalid, text(given.name, ": elements of 0 bytes")};
  HeldPiece piece;
  piece.name = given.name;
  piece.role = given.role != nullptr ? given.role : "weight";
  piece.type = given.dtype;
  if (count != 0) piece.shape.assign(given.shape, given.shape + count);
  piece.box = pawl::whole_box(piece.shape);
  for (std::uint32_t d = 0; d < count; ++d) {
    if (given.begin != nullptr) piece.box.begin[d] = given.begin[d];
    const std::uint64_t left = piece.shape[d] - std::min(piece.shape[d], piece.box.begin[d]);
    piece.box.size[d] = given.size != nullptr ? given.size[d] : left;
  }
  piece.element_bytes = given.element_bytes;
  piece.sample = given.sample;
  return piece;
}

// Refers to the caller's strings.
Result<std::vector<std::vector<HeldPiece>>> ranks_of(const pawl_checkpoint_held_piece* given, const std::size_t* counts,
                                                     std::size_t rank_count) {
  constexpr std::size_t kMost = std::numeric_limits<std::uint32_t>::max();
  if (counts == nullptr && rank_count != 0) return Error{Code::invalid, "the counts are NULL"};
  if (rank_count > kMost) return Error{Code::invalid, "more ranks than can be numbered"};
  std::size_t all = 0;
  for (std::size_t rank = 0; rank < rank_count; ++rank) {
    if (counts[rank] > kMost) return Error{Code::invalid, text("rank ", rank, ": more pieces than can be numbered")};
    all += counts[rank];
  }
  if (given == nullptr && all != 0) return Error{Code::invalid, "the pieces are NULL"};
  PAWL_TRY(pawl::check_input_structs(given, all, pawl::checkpoint::kHeldPieceStruct));
  std::vector<std::vector<HeldPiece>> ranks(rank_count);
  pawl::FirstFew faults;
  for (std::size_t rank = 0, at = 0; rank < rank_count; ++rank) {
    ranks[rank].reserve(counts[rank]);
    for (const std::size_t end = at + counts[rank]; at < end; ++at) {
      Result<HeldPiece> piece = piece_of(pawl::read_struct_at<pawl_checkpoint_held_piece>(given, at));
      if (piece)
        ranks[rank].push_back(std::move(*piece));
      else
        faults.add(text("rank ", rank, ": ", piece.error().what));
    }
  }
  if (faults.any()) return Error{Code::invalid, faults.sentence()};
  return ranks;
}

pawl_checkpoint_division::OfRank numbers_of(const std::vector<WrittenBox>& boxes) {
  pawl_checkpoint_division::OfRank out;
  out.boxes = boxes.size();
  out.numbers.reserve(std::max<std::size_t>(1, boxes.size()));  // of none, too, there is an address
  for (const auto& [piece, box] : boxes) {
    out.numbers.push_back(piece);
    out.numbers.insert(out.numbers.end(), box.begin.begin(), box.begin.begin() + box.dimensions);
    out.numbers.insert(out.numbers.end(), box.size.begin(), box.size.begin() + box.dimensions);
  }
  return out;
}

Result<std::unique_ptr<pawl_checkpoint_division>> divide(const pawl_checkpoint_held_piece* pieces,
                                                         const std::size_t* counts, std::size_t rank_count,
                                                         const pawl_checkpoint_division_options* given) {
  PAWL_ASSIGN(const pawl::checkpoint::DivisionOptions options, pawl::checkpoint::division_options_of(given));
  PAWL_ASSIGN(const std::vector<std::vector<HeldPiece>> ranks, ranks_of(pieces, counts, rank_count));
  PAWL_ASSIGN(const std::vector<std::vector<WrittenBox>> divided, pawl::checkpoint::divide_pieces(ranks, options));
  auto division = std::make_unique<pawl_checkpoint_division>();
  for (const std::vector<WrittenBox>& boxes : divided) division->ranks.push_back(numbers_of(boxes));
  return division;
}

}  // namespace

pawl_status pawl_checkpoint_divide(const pawl_checkpoint_held_piece* pieces, const size_t* counts, size_t rank_count,
                                   const pawl_checkpoint_division_options* options,
                                   pawl_checkpoint_division** division) {
  if (division == nullptr) return pawl::checkpoint::failed({Code::invalid, "there is nowhere to put the handle"});
  *division = nullptr;
  Result<std::unique_ptr<pawl_checkpoint_division>> divided = divide(pieces, counts, rank_count, options);
  if (!divided) return pawl::checkpoint::failed(std::move(divided).error());
  *division = divided->release();
  return PAWL_OK;
}

const uint64_t* pawl_checkpoint_division_boxes(const pawl_checkpoint_division* division, size_t rank, size_t* count) {
  const bool is_there = division != nullptr && rank < division->ranks.size();
  if (count != nullptr) *count = is_there ? division->ranks[rank].boxes : 0;
  return is_there ? division->ranks[rank].numbers.data() : nullptr;
}

void pawl_checkpoint_division_free(pawl_checkpoint_division* division) {
  delete division;
}
