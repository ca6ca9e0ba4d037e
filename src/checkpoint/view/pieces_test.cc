#include "checkpoint/view/pieces.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <numeric>
#include <random>

namespace pawl::checkpoint {
namespace {

constexpr std::int64_t kHole = -1;

// What the tensor's elements are, row-major: their places in the file, in elements. The naive way: element by element.
struct Plain {
  Shape shape;
  std::vector<std::int64_t> elements;
  bool operator==(const Plain&) const = default;
};

std::uint64_t count_of(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>());
}

Shape index_of(const Shape& shape, std::uint64_t number) {
  Shape at(shape.size());
  for (std::size_t d = shape.size(); d-- > 0; number /= shape[d]) at[d] = number % shape[d];
  return at;
}

std::uint64_t number_of(const Shape& shape, const Shape& at) {
  std::uint64_t number = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) number = number * shape[d] + at[d];
  return number;
}

Plain plain_of(const StoredTensor& tensor, std::uint32_t version = 0, std::uint32_t copy = 0) {
  Plain plain{tensor.shape, std::vector<std::int64_t>(count_of(tensor.shape), kHole)};
  for (const StoredPiece& piece : tensor.pieces) {
    if (piece.version != version || piece.copy != copy) continue;
    EXPECT_EQ(piece.box.dimensions, tensor.shape.size());
    for (std::size_t d = piece.box.dimensions; d < kDimensionsMax; ++d) {
      EXPECT_EQ(piece.box.begin[d], 0u);
      EXPECT_EQ(piece.box.size[d], 0u);
    }
    const Shape size(piece.box.size.begin(), piece.box.size.begin() + piece.box.dimensions);
    EXPECT_GT(count_of(size), 0u);
    for (std::uint64_t i = 0; i < count_of(size); ++i) {
      const Shape within = index_of(size, i);
      Shape at(within);
      std::uint64_t from = piece.offset_bytes / 4;
      for (std::size_t d = 0; d < at.size(); ++d) {
        at[d] += piece.box.begin[d];
        from += within[d] * piece.stride[d];
      }
      std::int64_t& element = plain.elements.at(number_of(tensor.shape, at));
      EXPECT_EQ(element, kHole) << "held twice";
      element = static_cast<std::int64_t>(from);
    }
  }
  return plain;
}

// Makes an array of which element `at` is that of `from` at source(at).
template <class Source>
Plain rearranged(const Plain& from, Shape shape, Source source) {
  Plain to{shape, std::vector<std::int64_t>(count_of(shape), kHole)};
  for (std::uint64_t i = 0; i < to.elements.size(); ++i) {
    const Shape at = source(index_of(shape, i));
    if (!at.empty() || shape.empty() || from.shape.empty()) to.elements[i] = from.elements[number_of(from.shape, at)];
  }
  return to;
}

std::uint64_t index_in(const std::vector<Span>& spans, std::uint64_t i) {
  for (const Span& span : spans) {
    if (i < span.size) return span.begin + i;
    i -= span.size;
  }
  ADD_FAILURE();
  return 0;
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::uint64_t below(std::uint64_t bound) { return engine_() % bound; }
  std::uint64_t between(std::uint64_t least, std::uint64_t most) { return least + below(most - least + 1); }

  // A tensor cut into boxes, each dense in its own place of the file, with gaps between.
  StoredTensor tensor() {
    StoredTensor out{.name = "t", .shape = {}};
    for (std::uint64_t d = between(1, 4); d > 0; --d) out.shape.push_back(between(1, 6));
    std::vector<Box> boxes{whole_box(out.shape)};
    for (std::uint64_t cuts = below(8); cuts > 0; --cuts) {
      const std::size_t at = below(boxes.size());
      const std::size_t d = below(out.shape.size());
      if (boxes[at].size[d] < 2) continue;
      Box upper = boxes[at];
      const std::uint64_t cut = between(1, upper.size[d] - 1);
      upper.begin[d] += cut;
      upper.size[d] -= cut;
      boxes[at].size[d] = cut;
      boxes.push_back(upper);
    }
    std::uint64_t offset = below(5);
    for (const Box& box : boxes) {
      out.pieces.push_back({box, 0, offset * 4, dense_stride(box)});
      offset += volume(box) + below(3);
    }
    return out;
  }
  std::vector<std::uint32_t> order(std::size_t dimensions) {
    std::vector<std::uint32_t> out(dimensions);
    std::iota(out.begin(), out.end(), 0);
    std::shuffle(out.begin(), out.end(), engine_);
    return out;
  }
  // Spans inside an extent, in any order; disjoint unless `may_repeat`.
  std::vector<Span> spans(std::uint64_t extent, bool may_repeat) {
    std::vector<Span> out;
    std::uint64_t begin = 0;
    while (begin < extent) {
      const std::uint64_t size = between(0, extent - begin);
      if (below(3) != 0) out.push_back({begin, size});
      begin += std::max<std::uint64_t>(1, size);
    }
    if (may_repeat && !out.empty()) out.push_back(out.front());
    std::shuffle(out.begin(), out.end(), engine_);
    return out;
  }

 private:
  std::mt19937_64 engine_;
};

TEST(Pieces, AppendIntervalIsRowMajorAndShort) {
  for (const Shape& shape : std::vector<Shape>{{}, {7}, {3, 4}, {2, 3, 4}, {2, 1, 3, 2}}) {
    const std::uint64_t count = count_of(shape);
    for (std::uint64_t begin = 0; begin <= count; ++begin) {
      for (std::uint64_t end = begin; end <= count; ++end) {
        StoredTensor tensor{.name = "t", .shape = shape};
        append_interval(shape, begin, end, tensor.type, {.box = {}, .offset_bytes = 400}, tensor.pieces);
        ASSERT_LE(tensor.pieces.size(), std::max<std::size_t>(1, 2 * shape.size()) - (shape.empty() ? 0 : 1));
        const Plain plain = plain_of(tensor);
        for (std::uint64_t i = 0; i < count; ++i) {
          const bool inside = i >= begin && i < end;
          ASSERT_EQ(plain.elements[i], inside ? static_cast<std::int64_t>(100 + i - begin) : kHole);
        }
      }
    }
  }
}

// Long chains of random edits, each against what it means element by element.
TEST(Pieces, EditsMeanWhatTheySay) {
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    StoredTensor tensor = random.tensor();
    for (int step = 0; step < 6; ++step) {
      const Plain before = plain_of(tensor);
      const Shape shape = tensor.shape;
      const auto d = static_cast<std::uint32_t>(random.below(shape.size()));
      Plain expected;
      Result<StoredTensor> edited = Error{};
      switch (random.below(8)) {
        case 0: {
          const std::vector<Span> spans = random.spans(shape[d], step == 5);
          Shape selected = shape;
          selected[d] = 0;
          for (const Span& span : spans) selected[d] += span.size;
          expected = rearranged(before, selected, [&](Shape at) {
            at[d] = index_in(spans, at[d]);
            return at;
          });
          edited = select(tensor, d, spans);
          break;
        }
        case 1: {  // over a longer dimension, in pieces and out of order
          const std::uint64_t first = random.between(0, shape[d]);
          const std::vector<Span> spans{{shape[d] - first + 3, first}, {1, shape[d] - first}};
          Shape longer = shape;
          longer[d] += 4;
          expected = rearranged(before, longer, [&](Shape at) -> Shape {
            for (std::uint64_t i = 0; i < shape[d]; ++i) {
              if (index_in(spans, i) != at[d]) continue;
              at[d] = i;
              return at;
            }
            return {};
          });
          edited = spread(tensor, d, spans, longer[d]);
          break;
        }
        case 2: {
          Shape more = shape;
          more.insert(more.begin() + d, 1);
          expected = {more, before.elements};
          edited = add_dimension(tensor, d);
          break;
        }
        case 3: {
          if (shape[d] != 1 || shape.size() == 1) continue;
          Shape less = shape;
          less.erase(less.begin() + d);
          expected = {less, before.elements};
          edited = drop_dimension(tensor, d);
          break;
        }
        case 4: {
          if (shape[d] == 0 || shape.size() > 6) continue;
          std::uint64_t inner = random.between(1, shape[d]);
          while (shape[d] % inner != 0) --inner;
          Shape split = shape;
          split[d] /= inner;
          split.insert(split.begin() + d + 1, inner);
          expected = {split, before.elements};
          edited = split_dimension(tensor, d, inner);
          break;
        }
        case 5: {
          if (d + 1 == shape.size()) continue;
          Shape merged = shape;
          merged[d] *= merged[d + 1];
          merged.erase(merged.begin() + d + 1);
          expected = {merged, before.elements};
          edited = merge_dimensions(tensor, d);
          break;
        }
        case 6: {
          const std::vector<std::uint32_t> order = random.order(shape.size());
          Shape turned;
          for (const std::uint32_t from : order) turned.push_back(shape[from]);
          expected = rearranged(before, turned, [&](const Shape& at) {
            Shape from(at.size());
            for (std::size_t i = 0; i < at.size(); ++i) from[order[i]] = at[i];
            return from;
          });
          edited = transpose(tensor, order);
          break;
        }
        default: {
          Shape whole = shape;
          Shape offset(shape.size());
          for (std::size_t i = 0; i < shape.size(); ++i) {
            offset[i] = random.below(2);
            whole[i] += offset[i] + random.below(2);
          }
          expected = rearranged(before, whole, [&](Shape at) -> Shape {
            for (std::size_t i = 0; i < at.size(); ++i) {
              if (at[i] < offset[i] || at[i] - offset[i] >= shape[i]) return {};
              at[i] -= offset[i];
            }
            return at;
          });
          edited = place(tensor, whole, offset);
          break;
        }
      }
      ASSERT_TRUE(edited) << edited.error().what;
      ASSERT_EQ(plain_of(*edited), expected);
      tensor = *edited;
      if (count_of(tensor.shape) == 0 || count_of(tensor.shape) > 3000) break;
    }
  }
}

// What select takes apart, join puts together.
TEST(Pieces, JoinUndoesSelect) {
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    Random random(seed);
    const StoredTensor tensor = random.tensor();
    const auto d = static_cast<std::uint32_t>(random.below(tensor.shape.size()));
    // Every index of the dimension goes to one of three parts.
    std::vector<std::vector<Span>> spans(3);
    for (std::uint64_t i = 0; i < tensor.shape[d]; ++i) spans[random.below(3)].push_back({i, 1});
    std::vector<StoredTensor> parts;
    for (const std::vector<Span>& list : spans) {
      const auto part = select(tensor, d, list);
      ASSERT_TRUE(part);
      parts.push_back(*part);
    }
    const auto whole = join(parts, d, spans);
    ASSERT_TRUE(whole) << whole.error().what;
    ASSERT_EQ(plain_of(*whole), plain_of(tensor));

    std::vector<StoredTensor> halves;
    const std::uint64_t cut = random.between(0, tensor.shape[d]);
    for (const Span span : {Span{0, cut}, Span{cut, tensor.shape[d] - cut}})
      halves.push_back(*select(tensor, d, {span}));
    const auto again = concatenate(halves, d);
    ASSERT_TRUE(again);
    ASSERT_EQ(plain_of(*again), plain_of(tensor));
  }
}

TEST(Pieces, CopiesAndVersions) {
  Random random(7);
  StoredTensor a = random.tensor();
  StoredTensor b = a;
  for (StoredPiece& piece : b.pieces) piece.offset_bytes += 4000;
  const auto copies = as_copies({a, b});
  ASSERT_TRUE(copies);
  EXPECT_EQ(copies->versions, 1u);
  EXPECT_EQ(plain_of(*copies, 0, 0), plain_of(a));
  EXPECT_EQ(plain_of(*copies, 0, 1), plain_of(b));
  EXPECT_EQ(without_copies_beyond(*copies, 1).pieces.size(), a.pieces.size());
  const auto versions = as_versions({a, b});
  ASSERT_TRUE(versions);
  EXPECT_EQ(versions->versions, 2u);
  EXPECT_EQ(plain_of(*versions, 1, 0), plain_of(b));
  b.shape.push_back(1);
  EXPECT_FALSE(as_copies({a, b}));
}

TEST(Pieces, RefusesWhatIsNotThere) {
  const StoredTensor t{.name = "w", .shape = {4, 6}, .pieces = {whole_piece({4, 6}, 0, 0)}};
  EXPECT_EQ(select(t, 2, {{0, 1}}).error().what, "tensor w (weight): [4,6]: it has no dimension 2");
  EXPECT_FALSE(select(t, 1, {{5, 2}}));
  EXPECT_FALSE(select(t, 1, {{~0ull, 2}}));
  EXPECT_FALSE(spread(t, 1, {{0, 5}}, 9));
  EXPECT_FALSE(spread(t, 1, {{4, 6}}, 9));
  EXPECT_FALSE(drop_dimension(t, 0));
  EXPECT_FALSE(split_dimension(t, 1, 4));
  EXPECT_FALSE(split_dimension(t, 1, 0));
  EXPECT_FALSE(merge_dimensions(t, 1));
  StoredTensor huge = {.name = "w", .shape = {std::uint64_t{1} << 40, 2}, .pieces = {whole_piece({1, 2}, 0, 0)}};
  huge.pieces[0].box.size[0] = huge.shape[0];
  huge.pieces[0].stride = {0, 1};  // as of an expanded tensor: many elements, no bytes
  EXPECT_FALSE(merge_dimensions(huge, 0));
  EXPECT_FALSE(transpose(t, {0, 0}));
  EXPECT_FALSE(place(t, {4, 6}, {1, 0}));
  EXPECT_FALSE(join({t, t}, 0, {{{0, 4}}, {{5, 4}}}));
  EXPECT_FALSE(join({t, t}, 0, {{{0, 4}}, {{3, 4}}}));
  EXPECT_FALSE(join({}, 0, {}));
  StoredTensor packed = t;
  packed.type = ElementType::float4_e2m1;
  EXPECT_FALSE(select(packed, 0, {{0, 2}}));
  EXPECT_TRUE(select(packed, 0, {{0, 4}}));
  EXPECT_FALSE(transpose(packed, {1, 0}));
}

TEST(Pieces, FindsTheScalesOfBlocks) {
  CheckpointView view;
  const auto add = [&](std::string name, ElementType type, Shape shape) {
    view.tensors.push_back({.name = std::move(name), .type = type, .shape = std::move(shape)});
  };
  add("a.weight", ElementType::float8_e4m3fn, {576, 256});
  add("a.weight_scale_inv", ElementType::float32, {5, 2});
  add("b.weight", ElementType::float8_e4m3fn, {576, 256});
  add("b.weight_scale_inv", ElementType::float32, {4, 2});  // not of these blocks
  add("c.weight", ElementType::bfloat16, {576, 256});       // not quantised
  add("c.weight_scale", ElementType::float32, {5, 2});
  EXPECT_EQ(mark_block_scales(view, {128, 128}), 1u);
  EXPECT_EQ(view.tensors[1].scales.payload, "a.weight");
  EXPECT_EQ(view.tensors[1].scales.block, (Shape{128, 128}));
  EXPECT_TRUE(view.tensors[3].scales.payload.empty());
  EXPECT_TRUE(view.tensors[5].scales.payload.empty());
  EXPECT_EQ(mark_block_scales(view, {128, 0}), 0u);
}

// --- check_view ---------------------------------------------------------------------------------------------------

CheckpointView good_view() {
  CheckpointView view;
  view.files = {{.path = "a"}, {.path = "b", .codec = StoredFile::Codec::content, .content = std::string(8, '\0')}};
  const Shape shape{4, 6};
  view.tensors.push_back({.name = "w", .shape = shape, .pieces = {whole_piece(shape, 0, 16)}});
  view.tensors.push_back({.name = "step", .role = "step", .type = ElementType::float64, .shape = {}});
  view.tensors.back().pieces = {whole_piece({}, 1, 0)};
  view.aliases = {{"tied", "w"}};
  return view;
}
const std::vector<std::uint64_t> kSizes = {16 + 4 * 6 * 4, 0};

std::string fault_in(CheckpointView view) {
  const Status checked = check_view(view, kSizes);
  if (checked) return "";
  EXPECT_EQ(checked.error().code, Code::corrupt);
  return checked.error().what;
}

TEST(CheckView, TakesWhatIsSound) {
  CheckpointView view = good_view();
  EXPECT_TRUE(check_view(view, kSizes));
  EXPECT_TRUE(view.problems.empty());
}

TEST(CheckView, NamesWhatIsNot) {
  CheckpointView view = good_view();
  view.tensors.push_back(view.tensors[0]);
  EXPECT_EQ(fault_in(view), "tensor w (weight): it is there twice");
  view = good_view();
  view.tensors[0].pieces[0].offset_bytes = 17;
  EXPECT_EQ(fault_in(view), "tensor w (weight): [4,6]: [4,6] at [0,0] at offset 17 of a passes its end at 112");
  view = good_view();
  view.tensors[0].pieces[0].stride[0] = ~0ull;
  EXPECT_NE(fault_in(view), "");
  view = good_view();
  view.tensors[0].pieces[0].box.size[0] = 5;
  EXPECT_EQ(fault_in(view), "tensor w (weight): [4,6]: [5,6] at [0,0] leaves it");
  view = good_view();
  view.tensors[0].pieces[0].box.size[0] = 0;
  EXPECT_EQ(fault_in(view), "tensor w (weight): [4,6]: a piece is empty");
  view = good_view();
  view.tensors[0].pieces[0].version = 1;
  EXPECT_EQ(fault_in(view), "tensor w (weight): [4,6]: a piece of version 1 of 1");
  view = good_view();
  view.tensors[0].pieces[0].file = 2;
  EXPECT_EQ(fault_in(view), "tensor w (weight): [4,6]: a piece in file 2 of 2");
  view = good_view();
  view.tensors[0].pieces.push_back(view.tensors[0].pieces[0]);
  EXPECT_EQ(fault_in(view), "tensor w (weight): [4,6]: held twice around [4,6] at [0,0]");
  view.tensors[0].pieces[1].copy = 1;  // another copy may
  EXPECT_EQ(fault_in(view), "");
  view.aliases = {{"tied", "other"}};
  EXPECT_EQ(fault_in(view), "alias tied: there is no tensor other");
  view = good_view();
  view.tensors[0].type = ElementType::float4_e2m1;
  view.tensors[0].pieces[0].stride[0] = 7;
  EXPECT_EQ(fault_in(view), "tensor w (weight): [4,6]: float4_e2m1 that is not one dense piece");
}

TEST(CheckView, HolesAreProblems) {
  CheckpointView view = good_view();
  view.tensors[0].pieces[0].box.size[0] = 3;
  for (int i = 0; i < 6; ++i) view.tensors.push_back({.name = "none" + std::to_string(i), .shape = {2}});
  ASSERT_TRUE(check_view(view, kSizes));
  ASSERT_EQ(view.problems.size(), 1u);
  EXPECT_TRUE(view.problems[0].starts_with(
      "tensor w (weight): [4,6], [1,6] at [3,0] is in no file; tensor none0 (weight): [2], all of it is in no file; "))
      << view.problems[0];
  EXPECT_TRUE(view.problems[0].ends_with("; and 2 more"));
  ASSERT_TRUE(check_view(view, kSizes));  // said once, however often it is looked for
  EXPECT_EQ(view.problems.size(), 1u);
}

// A view of a hundred thousand tensors is proven in a fraction of what reading its header may take.
TEST(CheckView, IsQuickForManyTensors) {
  CheckpointView view;
  view.files = {{.path = "a"}};
  for (std::uint64_t i = 0; i < 100'000; ++i) {
    const Shape shape{4, 6};
    view.tensors.push_back({.name = "model.layers.self_attention." + std::to_string(i), .shape = shape});
    view.tensors.back().pieces = {whole_piece(shape, 0, i * 96)};
  }
  const std::clock_t begin = std::clock();
  ASSERT_TRUE(check_view(view, {9'600'000}));
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  RecordProperty("microseconds", static_cast<int>(seconds * 1e6));
  std::printf("%.1f ms\n", seconds * 1e3);
  EXPECT_TRUE(view.problems.empty());
}

// One copy may have what another lacks; each version has to be there.
TEST(CheckView, CopiesHelpEachOtherAndVersionsDoNot) {
  CheckpointView view = good_view();
  std::vector<StoredPiece>& pieces = view.tensors[0].pieces;
  pieces[0].box.size[0] = 3;
  pieces.push_back(pieces[0]);
  pieces[1].copy = 1;
  pieces[1].box.begin[0] = 1;
  ASSERT_TRUE(check_view(view, kSizes));
  EXPECT_TRUE(view.problems.empty());
  pieces[1].copy = 0;
  pieces[1].version = 1;
  view.tensors[0].versions = 2;
  ASSERT_TRUE(check_view(view, kSizes));
  EXPECT_EQ(view.problems.size(), 1u);
}

}  // namespace
}  // namespace pawl::checkpoint
