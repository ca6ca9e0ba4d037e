// universal_checkpoint_info of a stranger: a pickle, then a byte for how many ranks, and four for their shapes'
// extents.
//
// What is merged tiles the whole: each element once in every version and copy, and each from inside a rank's tensor.
#include <cstdlib>

#include "checkpoint/formats/deepspeed/tensor_parallel.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size);

namespace {

using namespace pawl;

using namespace pawl::checkpoint;

void check(const MergedParameter& merged, std::span<const Shape> locals) {
  std::uint64_t count = 1;
  for (const std::uint64_t extent : merged.shape) count *= extent;
  if (count > 4096 || merged.versions > 4 || merged.copies > 4 || merged.ranks.size() != locals.size()) std::abort();
  for (std::uint32_t version = 0; version < merged.versions; ++version)
    for (std::uint32_t copy = 0; copy < merged.copies; ++copy) {
      std::vector<int> times(count, 0);
      for (std::uint32_t rank = 0; rank < locals.size(); ++rank) {
        std::vector<StoredPiece> pieces;
        append_merged(merged, rank, whole_piece(locals[rank], 0, 0), ElementType::uint8, pieces);
        for (const StoredPiece& piece : pieces) {
          if (piece.version != version || piece.copy != copy) continue;
          if (!check_inside(piece.box, merged.shape)) std::abort();
          if (piece.offset_bytes + span_bytes(piece, ElementType::uint8) > volume(whole_box(locals[rank])))
            std::abort();
          for (std::uint64_t i = 0; i < volume(piece.box); ++i) {
            std::uint64_t rest = i, to = 0, scale = 1;
            for (std::uint32_t d = piece.box.dimensions; d-- > 0; rest /= piece.box.size[d]) {
              to += (piece.box.begin[d] + rest % piece.box.size[d]) * scale;
              scale *= merged.shape[d];
            }
            ++times[to];
          }
        }
      }
      for (const int one : times)
        if (one != 1) std::abort();
    }
}

}  // namespace

int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  if (size < 5) return 0;
  const unsigned char* tail = data + size - 5;
  PickleLimits limits;
  limits.memory_bytes = 16 << 20;
  const Result<Pickle> pickle = parse_pickle({reinterpret_cast<const char*>(data), size - 5}, limits);
  if (!pickle) return 0;
  const Pickle::Value inner = pickle->find(pickle->root(), "universal_checkpoint_info");
  const Result<TensorParallelRules> rules =
      TensorParallelRules::read(*pickle, inner == Pickle::kNothing ? pickle->root() : inner);
  if (!rules) {
    if (rules.error().what.empty() || rules.error().code == Code::broken) std::abort();
    return 0;
  }
  std::vector<Shape> locals(tail[0] % 4 + 1);
  for (std::size_t rank = 0; rank < locals.size(); ++rank) {
    locals[rank] = {std::uint64_t{tail[1]} % 16, std::uint64_t{tail[2]} % 16};
    if (tail[0] & 0x10) locals[rank].pop_back();
    if ((tail[0] & 0x20) != 0 && rank == 0) locals[rank][0] = tail[3] % 16;
    if ((tail[0] & 0x40) != 0 && rank == 1) locals[rank].back() = tail[4] % 16;
  }
  std::size_t names = 0;
  for (Pickle::Value value = 0; value < pickle->count() && names < 32; ++value) {
    if (!pickle->is(value, PickleKind::string)) continue;
    ++names;
    std::string name(pickle->text(value));  // a pattern is often nearly a name
    std::erase_if(name, [](char c) { return c == '\\' || c == '^' || c == '$'; });
    if (name.starts_with("d+")) name[1] = '1', name.erase(0, 1);
    const Result<MergedParameter> merged = rules->merge(name, locals);
    if (merged) check(*merged, locals);
  }
  return 0;
}
