// For test/torch/test_dtensor_layouts.py: what each rank holds of a DTensor, by our enumeration.
//
// Reads lines "MESH SHAPE PLACEMENT ...", one placement an axis: "[2,3] [5,7] S0 SS0:3"; R replicates, S1 shards
// dimension 1, SS0:3 is _StridedShard(0, split_factor=3). Writes a line a rank: the shape of its local tensor and the
// numbers of its elements, row-major; or one line "refused".
#include <cstdio>
#include <iostream>
#include <string>

#include "base/text.h"
#include "tensor/enumerate.h"

namespace pawl {
namespace {

std::string next_word(std::string& line) {
  const std::size_t blank = line.find(' ');
  const std::string word = line.substr(0, blank);
  line.erase(0, blank == std::string::npos ? line.size() : blank + 1);
  return word;
}

bool parse_placement(std::string_view word, DTensorPlacement& out) {
  using Kind = DTensorPlacement::Kind;
  if (word == "R") return true;
  const bool strided = word.starts_with("SS");
  out.kind = strided ? Kind::strided_shard : Kind::shard;
  const std::size_t colon = word.find(':');
  const std::size_t first = strided ? 2 : 1;
  return parse_number(word.substr(first, colon == std::string_view::npos ? colon : colon - first), out.dimension) &&
         (!strided || (colon != std::string_view::npos && parse_number(word.substr(colon + 1), out.split_factor)));
}

void print_rank(const Enumeration& enumeration, std::uint32_t rank) {
  const JobTensor& tensor = enumeration.layout().tensors[0];
  const Mesh& mesh = enumeration.layout().meshes[0];
  LocalArray array;
  if (!local_array(tensor.placement, mesh, tensor.shape, coordinates_of(mesh, rank), array)) return;
  std::vector<std::uint64_t> elements(enumeration.buffers_of(rank)[0].size);
  std::vector<TensorPiece> pieces;
  enumeration.append_pieces(0, rank, pieces);
  for (const TensorPiece& piece : pieces) {
    for (std::uint64_t i = 0; i < volume(piece.box); ++i) {
      std::uint64_t rest = i, step = 1, number = 0, to = piece.offset;
      for (std::uint32_t d = piece.box.dimensions; d-- > 0; rest /= piece.box.size[d]) {
        const std::uint64_t at = rest % piece.box.size[d];
        number += (piece.box.begin[d] + at) * step;
        step *= tensor.shape[d];
        to += at * piece.stride[d];
      }
      elements[to] = number;
    }
  }
  std::printf("%s", text_of(array.shape()).c_str());
  for (const std::uint64_t element : elements) std::printf(" %llu", static_cast<unsigned long long>(element));
  std::printf("\n");
}

bool print_line(std::string line) {
  const auto sizes = parse_shape(next_word(line));
  const auto shape = parse_shape(next_word(line));
  if (!sizes || !shape) return false;
  JobLayout layout{1, {{"mesh", {}}}, {{"t", "weight", ElementType::float32, *shape, {}, {}}}, {}};
  for (const std::uint64_t size : *sizes) {
    layout.meshes[0].axes.push_back({text("a", layout.meshes[0].axes.size()), size});
    layout.world *= static_cast<std::uint32_t>(size);
  }
  std::vector<DTensorPlacement> placements;
  while (!line.empty()) {
    if (!parse_placement(next_word(line), placements.emplace_back())) return false;
  }
  const auto patterns = patterns_of(layout.meshes[0], placements);
  if (!patterns) {
    std::printf("refused\n");
    return true;
  }
  layout.tensors[0].placement.patterns = *patterns;
  if (!check_layout(layout)) return false;
  const Enumeration enumeration(layout);
  for (std::uint32_t rank = 0; rank < layout.world; ++rank) print_rank(enumeration, rank);
  return true;
}

}  // namespace
}  // namespace pawl

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    if (pawl::print_line(line)) continue;
    std::fprintf(stderr, "not understood: %s\n", line.c_str());
    return 1;
  }
  return 0;
}
