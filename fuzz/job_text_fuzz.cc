// A job's layout as text, as manifests have it: what is taken is written back the same, and can be enumerated.
#include <cstdlib>

#include "tensor/enumerate.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size);

int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace pawl;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Result<JobLayout> layout = parse_job_layout(text);
  if (!layout) {
    if (layout.error().what.empty() || layout.error().code == Code::broken) std::abort();
    return 0;
  }
  if (!check_layout(*layout) || text_of(*layout) != text) std::abort();
  const Enumeration enumeration(*layout);
  std::vector<TensorPiece> pieces;
  for (std::uint32_t tensor = 0; tensor < layout->tensors.size() && tensor < 4; ++tensor)
    for (std::uint32_t rank = 0; rank < layout->world && rank < 4; ++rank) {
      enumeration.append_pieces(tensor, rank, pieces);
      if (pieces.size() > 10000) return 0;
    }
  for (const TensorPiece& piece : pieces)
    if (volume(piece.box) == 0 || !check_inside(piece.box, layout->tensors[piece.tensor].shape)) std::abort();
  return 0;
}
