#include "checkpoint/formats/deepspeed/tensor_parallel.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/text.h"
#include "checkpoint/formats/deepspeed/tensor_parallel_info.h"
#include "checkpoint/formats/deepspeed/tensor_parallel_joins.h"

namespace pawl::checkpoint {

using namespace deepspeed;

namespace {

// Rows past the vocabulary's size are padding.
void cut_vocabulary(MergedParameter& merged, std::uint64_t rows) {
  if (merged.shape.empty() || merged.shape[0] <= rows) return;
  merged.shape[0] = rows;
  for (std::vector<MergedPart>& parts : merged.ranks) {
    for (MergedPart& part : parts) {
      const std::uint64_t left = part.whole.begin[0] < rows ? rows - part.whole.begin[0] : 0;
      part.local.size[0] = part.whole.size[0] = std::min(part.whole.size[0], left);
    }
    std::erase_if(parts, [](const MergedPart& part) { return part.whole.size[0] == 0; });
  }
  merged.rule += ", without padding of the vocabulary";
}

}  // namespace

TensorParallelRules::TensorParallelRules() : info_(std::make_unique<TensorParallelInfo>()) {}
TensorParallelRules::~TensorParallelRules() = default;
TensorParallelRules::TensorParallelRules(TensorParallelRules&&) noexcept = default;
TensorParallelRules& TensorParallelRules::operator=(TensorParallelRules&&) noexcept = default;

Result<TensorParallelRules> TensorParallelRules::read(const Pickle& pickle, Pickle::Value info) {
  PAWL_ASSIGN(TensorParallelInfo read, read_tensor_parallel_info(pickle, info));
  TensorParallelRules out;
  out.info_ = std::make_unique<TensorParallelInfo>(std::move(read));
  return out;
}

bool TensorParallelRules::said_nothing() const {
  return info_->said_nothing;
}

double TensorParallelRules::version() const {
  return info_->version;
}

bool TensorParallelRules::is_pipeline_replicated(std::string_view name) const {
  return !info_->pipeline_replicated.matches(name).empty();
}

namespace {

Result<MergedParameter> merge_by_rule(const TensorParallelInfo& rules, std::string_view name,
                                      std::span<const Shape> locals) {
  PAWL_ASSIGN(const auto affine, rules.affine_patterns.match(name, "affine_map"));
  if (affine) return join_affine(name, rules.affine[*affine], locals);
  PAWL_ASSIGN(const auto unsupported, rules.unsupported.match(name, "autotp_unsupported_parameter_patterns"));
  if (unsupported)
    return unfit(name,
                 text("the job said that its tensor-parallel parts can't be joined: ", rules.reasons[*unsupported]));
  PAWL_ASSIGN(const auto replicated, rules.replicated.match(name, "tp_replicated_parameter_patterns"));
  if (replicated) return join_repeated(name, locals, false);
  PAWL_ASSIGN(const auto averaged, rules.averaged.match(name, "parameter_to_average_patterns"));
  if (averaged) return join_repeated(name, locals, true);
  PAWL_ASSIGN(const auto two, rules.two_sub_parameters.match(name, "parameter_with_2_sub_params_cat_dim_0"));
  if (two) return join_two_sub_parameters(name, locals);
  if (const std::vector<std::uint32_t> found = rules.sub_patterns.matches(name); !found.empty()) {
    const SubParameters& sub = rules.subs[rules.sub_of_pattern[found[0]]];
    const auto given = rules.shard_widths.find(rules.sub_patterns.pattern(found[0]));
    if (given != rules.shard_widths.end()) return join_sub_parameters(name, sub, given->second, locals);
    if (rules.version > kInfoVersionMax - 1e-9)
      return unfit(name, "it has sub-parameters, and sub_param_shard_widths does not say how ranks cut them");
    PAWL_ASSIGN(const auto widths, even_widths(name, sub, locals));
    return join_sub_parameters(name, sub, widths, locals);
  }
  PAWL_ASSIGN(const auto row, rules.row_parallel.match(name, "parameter_with_row_parallelism_patterns"));
  return join_along(name, row ? 1 : 0, locals);
}

}  // namespace

Result<MergedParameter> TensorParallelRules::merge(std::string_view name, std::span<const Shape> local_shapes) const {
  if (local_shapes.empty() || local_shapes.size() > 1 << 16) return unfit(name, "it lies on no tensor-parallel rank");
  std::uint64_t elements = 0;
  for (const Shape& local : local_shapes) {
    const Result<std::uint64_t> count = element_count(local);
    if (!count) return Error(count.error()).within(text("parameter ", name));
    const auto is_huge = [](std::uint64_t extent) { return extent > std::uint64_t{1} << 44; };  // with another one of 0
    if (std::ranges::any_of(local, is_huge) || (elements += *count) > std::uint64_t{1} << 62)
      return unfit(name, "it has too many elements");
  }
  if (local_shapes.size() > 1 && said_nothing())
    return unfit(name, text("the checkpoint has no universal_checkpoint_info that would say how ", local_shapes.size(),
                            " tensor-parallel ranks cut it: save it again with one in the client state"));
  MergedParameter merged;
  if (local_shapes.size() == 1) {  // whatever the rule is, one part is the whole
    PAWL_ASSIGN(merged, join_repeated(name, local_shapes, false));
    merged.rule = "on one tensor-parallel rank";
  } else {
    PAWL_ASSIGN(merged, merge_by_rule(*info_, name, local_shapes));
  }
  PAWL_ASSIGN(const auto vocabulary, info_->vocabulary.match(name, "vocabulary_parameter_patterns"));
  if (vocabulary) {
    if (!info_->original_vocabulary)
      return unfit(name, "it is a vocabulary's, and universal_checkpoint_info has no original_vocab_size");
    cut_vocabulary(merged, *info_->original_vocabulary);
  }
  return merged;
}

void append_merged(const MergedParameter& merged, std::uint32_t rank, const StoredPiece& piece, ElementType type,
                   std::vector<StoredPiece>& out) {
  for (const MergedPart& part : merged.ranks[rank]) {
    const Box both = intersection(piece.box, part.local);
    if (volume(both) == 0) continue;
    StoredPiece moved = piece;
    std::uint64_t elements = 0;
    for (std::uint32_t d = 0; d < both.dimensions; ++d) {
      elements += (both.begin[d] - piece.box.begin[d]) * piece.stride[d];
      moved.box.begin[d] = part.whole.begin[d] + (both.begin[d] - part.local.begin[d]);
      moved.box.size[d] = both.size[d];
    }
    moved.offset_bytes += elements * (size_bits(type) / 8);
    moved.version = part.version;
    for (moved.copy = part.copy; moved.copy < merged.copies; moved.copy += part.copy_step) out.push_back(moved);
  }
}

}  // namespace pawl::checkpoint