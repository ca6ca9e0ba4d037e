#include "checkpoint/formats/deepspeed/tensor_parallel_joins.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/text.h"

namespace pawl::checkpoint::deepspeed {

Error unfit(std::string_view name, std::string_view why) {
  return {Code::invalid, text("parameter ", name, ": ", why)};
}

std::string texts_of(std::span<const Shape> shapes) {
  std::string out;
  for (std::size_t i = 0; i < shapes.size() && i < 8; ++i) out += (i == 0 ? "" : ", ") + text_of(shapes[i]);
  return shapes.size() > 8 ? out + ", ..." : out;
}

namespace {

// --- Cuts along one dimension: widths[sub-parameter][rank], all of it `repeats` times.

struct Cut {
  std::size_t dimension = 0;
  ShardWidths widths;
  std::uint64_t repeats = 1;
};

// Whether the ranks' shapes are those of the cut; if so, the whole's.
std::optional<Shape> whole_of(const Cut& cut, std::span<const Shape> locals) {
  Shape whole = locals[0];
  if (cut.dimension >= whole.size()) return std::nullopt;
  whole[cut.dimension] = 0;
  for (std::size_t rank = 0; rank < locals.size(); ++rank) {
    if (locals[rank].size() != whole.size()) return std::nullopt;
    for (std::size_t d = 0; d < whole.size(); ++d)
      if (d != cut.dimension && locals[rank][d] != locals[0][d]) return std::nullopt;
    std::uint64_t sum = 0;
    for (const std::vector<std::uint64_t>& widths : cut.widths)
      if (widths.size() != locals.size() || (sum += widths[rank]) > std::uint64_t{1} << 62) return std::nullopt;
    if (sum != 0 && cut.repeats > (std::uint64_t{1} << 62) / sum) return std::nullopt;
    if (sum * cut.repeats != locals[rank][cut.dimension]) return std::nullopt;
    if ((whole[cut.dimension] += sum * cut.repeats) > std::uint64_t{1} << 62) return std::nullopt;
  }
  return whole;
}

// The cut fits: whole_of said so.
Result<MergedParameter> merge_cut(std::string_view name, const Cut& cut, std::span<const Shape> locals, Shape whole) {
  if (cut.repeats > kPartsMax || cut.widths.size() > kPartsMax ||
      cut.repeats * cut.widths.size() > kPartsMax * 16 / locals.size())
    return Error{Code::full, text("parameter ", name, ": ", cut.widths.size(), " sub-parameters, ", cut.repeats,
                                  " times, are more than are read")};
  MergedParameter merged;
  merged.ranks.resize(locals.size());
  const std::size_t d = cut.dimension;
  std::vector<std::uint64_t> local_begin(locals.size(), 0);
  std::uint64_t whole_begin = 0;
  for (std::uint64_t time = 0; time < cut.repeats; ++time)
    for (const std::vector<std::uint64_t>& widths : cut.widths)
      for (std::size_t rank = 0; rank < locals.size(); ++rank) {
        MergedPart part{.local = whole_box(locals[rank]), .whole = whole_box(whole)};
        part.local.begin[d] = local_begin[rank];
        part.whole.begin[d] = whole_begin;
        part.local.size[d] = part.whole.size[d] = widths[rank];
        if (volume(part.local) != 0) merged.ranks[rank].push_back(part);
        local_begin[rank] += widths[rank];
        whole_begin += widths[rank];
      }
  merged.shape = std::move(whole);
  return merged;
}

}  // namespace

Result<MergedParameter> join_along(std::string_view name, std::size_t dimension, std::span<const Shape> locals) {
  Cut cut{.dimension = dimension, .widths = {{}}};
  for (const Shape& local : locals) cut.widths[0].push_back(dimension < local.size() ? local[dimension] : 0);
  std::optional<Shape> whole = whole_of(cut, locals);
  if (!whole)
    return unfit(name,
                 text("tensor-parallel parts ", texts_of(locals), " can't be joined along dimension ", dimension));
  PAWL_ASSIGN(MergedParameter merged, merge_cut(name, cut, locals, std::move(*whole)));
  merged.rule = text("joined along dimension ", dimension);
  return merged;
}

Result<MergedParameter> join_two_sub_parameters(std::string_view name, std::span<const Shape> locals) {
  Cut cut{.dimension = 0, .widths = {{}, {}}};
  for (const Shape& local : locals) {
    const std::uint64_t rows = local.empty() ? 0 : local[0];
    cut.widths[0].push_back(rows - rows / 2);
    cut.widths[1].push_back(rows / 2);
  }
  std::optional<Shape> whole = whole_of(cut, locals);
  if (!whole)
    return unfit(name, text("tensor-parallel parts ", texts_of(locals), " don't hold two sub-parameters each"));
  PAWL_ASSIGN(MergedParameter merged, merge_cut(name, cut, locals, std::move(*whole)));
  merged.rule = "two sub-parameters along dimension 0";
  return merged;
}

Result<MergedParameter> join_repeated(std::string_view name, std::span<const Shape> locals, bool averaged) {
  for (const Shape& local : locals)
    if (local != locals[0])
      return unfit(name,
                   text("every tensor-parallel rank should hold all of it, but their shapes are ", texts_of(locals)));
  MergedParameter merged{.shape = locals[0], .rule = averaged ? "averaged" : "replicated"};
  const auto count = static_cast<std::uint32_t>(locals.size());
  (averaged ? merged.versions : merged.copies) = count;
  merged.ranks.resize(count);
  const Box all = whole_box(locals[0]);
  for (std::uint32_t rank = 0; volume(all) != 0 && rank < count; ++rank)
    merged.ranks[rank].push_back({.local = all,
                                  .whole = all,
                                  .version = averaged ? rank : 0,
                                  .copy = averaged ? 0 : rank,
                                  .copy_step = averaged ? 1 : count});
  return merged;
}

// --- Sub-parameters: given as a view of the whole, which may have other dimensions than the tensor.

namespace {

std::optional<std::uint64_t> product(std::span<const std::int64_t> extents) {
  std::uint64_t out = 1;
  for (const std::int64_t extent : extents) {
    if (extent <= 0 || out > (std::uint64_t{1} << 62) / static_cast<std::uint64_t>(extent)) return std::nullopt;
    out *= static_cast<std::uint64_t>(extent);
  }
  return out;
}

// The view's extent that is left open, now that the elements are known.
bool resolve(std::vector<std::int64_t>& view, std::uint64_t elements) {
  const auto open = std::ranges::find(view, -1);
  if (open == view.end()) return product(view) == elements;
  if (std::find(open + 1, view.end(), -1) != view.end()) return false;
  *open = 1;
  const std::optional<std::uint64_t> rest = product(view);
  if (!rest || elements % *rest != 0) return false;
  *open = static_cast<std::int64_t>(elements / *rest);
  return *open > 0;
}

// The view's cut dimension as one of the tensors': what lies before it may have been split off the same dimension,
// which repeats the cut.
std::optional<Cut> cut_of_view(const std::vector<std::int64_t>& view, std::size_t dimension, const ShardWidths& widths,
                               std::span<const Shape> locals) {
  const auto before = product(std::span(view).first(dimension));
  const auto after = product(std::span(view).subspan(dimension + 1));
  if (!before || !after) return std::nullopt;
  std::vector<std::size_t> candidates = {dimension};
  for (std::size_t d = 0; d < locals[0].size(); ++d)
    if (d != dimension) candidates.push_back(d);
  for (const std::size_t d : candidates) {
    if (d >= locals[0].size()) continue;
    std::uint64_t outer = 1, inner = 1;  // the element count of a local tensor has been checked
    for (std::size_t i = 0; i < locals[0].size(); ++i)
      if (i != d) (i < d ? outer : inner) *= locals[0][i];
    if (outer == 0 || inner != *after || *before % outer != 0) continue;
    Cut cut{.dimension = d, .widths = widths, .repeats = *before / outer};
    if (whole_of(cut, locals)) return cut;
  }
  return std::nullopt;
}

}  // namespace

Result<ShardWidths> even_widths(std::string_view name, const SubParameters& sub, std::span<const Shape> locals) {
  std::vector<std::uint64_t> wholes = sub.widths;
  if (wholes.empty()) {
    std::uint64_t extent = 0;
    for (const Shape& local : locals) extent += sub.dimension < local.size() ? local[sub.dimension] : 0;
    if (extent % sub.count != 0)
      return unfit(name, text(sub.count, " equal sub-parameters can't lie in ", extent, " rows"));
    wholes.assign(sub.count, extent / sub.count);
  }
  ShardWidths widths;
  for (const std::uint64_t one : wholes) {
    if (one % locals.size() != 0)
      return unfit(name, text("a sub-parameter of ", one, " can't have been cut evenly over ", locals.size(),
                              " tensor-parallel ranks, and the checkpoint does not say how else"));
    widths.emplace_back(locals.size(), one / locals.size());
  }
  return widths;
}

Result<MergedParameter> join_sub_parameters(std::string_view name, const SubParameters& sub, const ShardWidths& widths,
                                            std::span<const Shape> locals) {
  std::uint64_t elements = 0;
  for (const Shape& local : locals) {
    std::uint64_t count = 1;
    for (const std::uint64_t extent : local) count *= extent;  // checked
    elements += count;
  }
  std::vector<std::int64_t> view = sub.shape;
  std::uint64_t extent = 0;
  for (const std::vector<std::uint64_t>& sub_widths : widths)
    for (const std::uint64_t width : sub_widths)
      if (width > std::uint64_t{1} << 62 || (extent += width) > std::uint64_t{1} << 62)
        return unfit(name, "the widths of its sub-parameters are too large");
  view[sub.dimension] = static_cast<std::int64_t>(extent);
  std::optional<Cut> cut;
  if (resolve(view, elements)) cut = cut_of_view(view, sub.dimension, widths, locals);
  if (!cut) return unfit(name, text("its sub-parameters' widths don't fit tensor-parallel parts ", texts_of(locals)));
  std::optional<Shape> whole = whole_of(*cut, locals);
  PAWL_ASSIGN(MergedParameter merged, merge_cut(name, *cut, locals, std::move(*whole)));
  merged.rule = text(widths.size(), " sub-parameters along dimension ", cut->dimension);
  return merged;
}

}  // namespace pawl::checkpoint::deepspeed
