#include "checkpoint/output/output_plan.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>

#include "base/text.h"
#include "checkpoint/output/output_shares.h"
#include "checkpoint/reshape/cast.h"
#include "checkpoint/reshape/open_files.h"
#include "checkpoint/reshape/plan.h"
#include "checkpoint/reshape/range_checksums.h"
#include "env/files.h"
#include "tensor/tiling.h"

namespace pawl::checkpoint {
namespace {

constexpr std::array<std::string_view, 6> kRoleOrder = {"weight", "master", "exp_avg", "exp_avg_sq", "step", "buffer"};

std::string roles_there(const CheckpointView& view) {
  std::vector<std::string_view> roles;
  for (const StoredTensor& tensor : view.tensors)
    if (std::ranges::find(roles, tensor.role) == roles.end()) roles.push_back(tensor.role);
  std::ranges::stable_sort(roles, {}, [](std::string_view role) { return std::ranges::find(kRoleOrder, role); });
  std::string there;
  for (const std::string_view role : roles) there += text(there.empty() ? "" : ", ", role);
  return there.empty() ? "none" : there;
}

// The layout that the plan fills: one holder, one buffer a tensor.
JobLayout layout_of(const OutputPlan& plan, const CheckpointView& view) {
  JobLayout layout;
  layout.world = 1;
  layout.meshes.push_back({"files", {{"all", 1}}});
  for (const PlannedTensor& tensor : plan.tensors) {
    const StoredTensor& stored = view.tensors[tensor.tensor];
    layout.tensors.push_back({stored.name, stored.role, tensor.type, stored.shape, {}, {}});
  }
  return layout;
}

// A plan of copies and all that it reads while it lives.
class Copies {
 public:
  Copies(const OutputPlan& plan, const CheckpointView& view, const OutputOptions& options)
      : layout_(layout_of(plan, view)),
        wanted_(layout_),
        source_(source_of(view, {.trusted_copy = options.trusted_copy, .roles = {}})) {}
  [[nodiscard]] Status stream(const CopySink& sink) const {
    PAWL_ASSIGN(const ReshapePlan copies, ReshapePlan::create(source_, wanted_, {.may_drop_tensors = true}));
    return copies.plan_rank(0, sink);
  }

 private:
  JobLayout layout_;
  Enumeration wanted_;
  ReshapeSource source_;
};

Result<RangeChecksums> checksums_of(const OutputPlan& plan) {
  std::vector<FileRange> ranges;
  for (std::uint32_t i = 0; i < plan.files.size(); ++i)
    for (const PlannedRange& range : plan.files[i].checked)
      ranges.push_back({i, range.offset_bytes, range.offset_bytes + range.size_bytes});
  return RangeChecksums::create(std::move(ranges), ChecksumKind::crc32);
}

// The files that a share writes to, numbered as the executor is to see them.
class OwnFiles {
 public:
  OwnFiles(const OutputPlan& plan, const OutputShare& share, std::span<const std::string> paths)
      : number_(plan.files.size(), kNone) {
    for (const TensorStretch& stretch : share.stretches) {
      const std::uint32_t file = plan.tensors[stretch.tensor].file;
      if (number_[file] != kNone) continue;
      number_[file] = static_cast<std::uint32_t>(files_.size());
      files_.push_back(file);
      targets_.push_back({paths[file], plan.files[file].size_bytes, {}, true});
    }
  }
  [[nodiscard]] std::uint32_t number_of(std::uint32_t file) const { return number_[file]; }
  [[nodiscard]] std::uint32_t file_of(std::uint32_t number) const { return files_[number]; }
  [[nodiscard]] const std::vector<TargetFile>& targets() const { return targets_; }

 private:
  static constexpr std::uint32_t kNone = ~0u;
  std::vector<std::uint32_t> number_, files_;
  std::vector<TargetFile> targets_;
};

// The boxes that a stretch is, where they lie in the tensor's place.
WantedPieces wanted_of(const OutputPlan& plan, const CheckpointView& view, const TensorStretch& stretch) {
  const PlannedTensor& planned = plan.tensors[stretch.tensor];
  const Shape& shape = view.tensors[planned.tensor].shape;
  WantedPieces wanted{planned.tensor, planned.type, {}};
  std::vector<Box> boxes;
  append_interval(shape, stretch.begin, stretch.end, boxes);
  const PerDimension stride = dense_stride(whole_box(shape));
  for (const Box& box : boxes) {
    std::uint64_t first = 0;
    for (std::uint32_t d = 0; d < box.dimensions; ++d) first += box.begin[d] * stride[d];
    wanted.pieces.push_back({stretch.tensor, 0, stretch.tensor, 0, 0, box, first, stride});
  }
  return wanted;
}

// Some tensors at a time: a plan of a hundred thousand need not be in memory.
Status stream_share(const OutputPlan& plan, const CheckpointView& view, const OutputShare& share,
                    const ReshapeSource& source, const CopySink& sink) {
  constexpr std::size_t kAtOnce = 1024;
  for (std::size_t at = 0; at < share.stretches.size(); at += kAtOnce) {
    std::vector<WantedPieces> wanted;
    for (std::size_t i = at; i < std::min(at + kAtOnce, share.stretches.size()); ++i)
      wanted.push_back(wanted_of(plan, view, share.stretches[i]));
    PAWL_TRY(plan_pieces(source, wanted, sink));
  }
  return {};
}

// The texts of one file: its first bytes apart from the others.
struct Texts {
  std::string first;
  std::vector<PlannedText> others;
};

Texts texts_of(const PlannedFile& file, const RangeChecksums& checksums) {
  Texts out;
  out.others = file.texts;
  if (file.finish)
    for (PlannedText& text : file.finish(checksums)) out.others.push_back(std::move(text));
  const auto first = std::ranges::find(out.others, 0u, &PlannedText::offset_bytes);
  if (first == out.others.end()) return out;
  out.first = std::move(first->text);
  out.others.erase(first);
  return out;
}

Status write_texts(const std::string& path, std::span<const PlannedText> texts) {
  if (texts.empty()) return {};
  PAWL_ASSIGN(const std::unique_ptr<File> file, open_file(path, {.write = true}));
  for (const PlannedText& text : texts)
    PAWL_TRY(file->write_at(text.offset_bytes, std::as_bytes(std::span(text.text))));
  return file->close();
}

}  // namespace

Result<std::vector<std::uint32_t>> with_roles(const CheckpointView& view, const std::vector<std::string>& roles) {
  std::vector<std::uint32_t> chosen;
  for (std::uint32_t i = 0; i < view.tensors.size(); ++i)
    if (roles.empty() || std::ranges::find(roles, view.tensors[i].role) != roles.end()) chosen.push_back(i);
  for (const std::string& role : roles)
    if (std::ranges::find(view.tensors, role, &StoredTensor::role) == view.tensors.end())
      return Error{Code::not_found, text("no tensor has the role ", role, "; there are: ", roles_there(view))};
  return chosen;
}

ElementType written_type(const StoredTensor& tensor, const std::optional<ElementType>& wanted) {
  return wanted && tensor.role != "step" && can_cast(tensor.type, *wanted) ? *wanted : tensor.type;
}

Result<OutputPlan> plan_tensors(const CheckpointView& view, const std::vector<std::uint32_t>& chosen,
                                const WriteOptions& options) {
  if (chosen.empty()) return Error{Code::not_found, "the checkpoint holds no tensor: there is nothing to convert"};
  OutputPlan plan;
  std::uint64_t kept = 0;
  for (const std::uint32_t i : chosen) {
    const StoredTensor& stored = view.tensors[i];
    PlannedTensor& tensor = plan.tensors.emplace_back();
    tensor.tensor = i;
    tensor.type = written_type(stored, options.type);
    kept += options.type && tensor.type != *options.type;
    PAWL_ASSIGN(const std::uint64_t count, element_count(stored.shape));
    const std::optional<std::uint64_t> bytes = size_bytes(tensor.type, count);
    if (!bytes || __builtin_add_overflow(plan.data_bytes, *bytes, &plan.data_bytes) || plan.data_bytes >> 62 != 0)
      return Error{Code::invalid,
                   text(label_of(stored.name, stored.role), " is not a whole number of bytes, or too large")};
    tensor.size_bytes = *bytes;
  }
  if (kept != 0)
    plan.notes.push_back(text(kept, " tensors keep their type: steps, and types that are not floating point"));
  return plan;
}

std::vector<std::uint32_t> split_into_files(std::span<const std::uint64_t> size_bytes, std::uint64_t file_bytes_max) {
  std::vector<std::uint32_t> file_of;
  std::uint32_t file = 0;
  std::uint64_t filled = 0;
  for (const std::uint64_t bytes : size_bytes) {
    if (filled != 0 && (bytes > file_bytes_max || filled > file_bytes_max - bytes)) {
      ++file;
      filled = 0;
    }
    file_of.push_back(file);
    filled += bytes;
  }
  return file_of;
}

void note_ties(const CheckpointView& view, OutputPlan& plan) {
  for (const auto& [alias, name] : view.aliases)
    plan.notes.push_back(text(alias, " is tied to ", name, ", and is not written a second time"));
}

PartialOptions partial_options(const OutputPlan& plan, bool overwrite) {
  return {.folder = plan.is_folder, .overwrite = overwrite, .bytes = plan.all_bytes, .marker = plan.marker};
}

Status check_output(const OutputPlan& plan, const CheckpointView& view, const OutputOptions& options) {
  return Copies(plan, view, options).stream([](const PlannedCopy&) {});
}

Result<std::vector<std::string>> make_files(const OutputPlan& plan, PartialOutput& output,
                                            const std::atomic<bool>* cancel) {
  std::vector<std::string> paths;
  for (const PlannedFile& file : plan.files) {
    if (cancel != nullptr && *cancel) return Error{Code::cancelled, "cancelled"};
    paths.push_back(output.path_of(file.name));
    PAWL_TRY(make_target({paths.back(), file.size_bytes}));
  }
  return paths;
}

Result<ShareReport> write_share(const OutputPlan& plan, const CheckpointView& view, const OutputShare& share,
                                std::span<const std::string> paths, const OutputOptions& options) {
  const OwnFiles own(plan, share, paths);
  CopyTarget target;
  target.files = own.targets();
  target.place = [&](std::uint32_t, std::uint32_t buffer) -> BufferPlace {
    const PlannedTensor& tensor = plan.tensors[buffer];
    return {.file = own.number_of(tensor.file), .offset_bytes = tensor.offset_bytes, .size_bytes = tensor.size_bytes};
  };
  ExecuteOptions execution = options.execution;
  execution.bytes_expected = share.bytes;
  PAWL_ASSIGN(RangeChecksums checksums, checksums_of(plan));
  if (!checksums.ranges().empty())
    execution.observe = [&](std::uint32_t file, std::uint64_t offset_bytes, std::span<const std::byte> bytes) {
      checksums.add(own.file_of(file), offset_bytes, bytes);
    };
  const ReshapeSource source = source_of(view, {.trusted_copy = options.trusted_copy, .roles = {}});
  const CopyStream copies = [&](const CopySink& sink) { return stream_share(plan, view, share, source, sink); };
  PAWL_ASSIGN(const ExecuteReport done, execute(copies, places_of(view), target, execution));
  ShareReport report{.bytes = share.bytes, .bytes_read = done.bytes_read, .overflowed = done.overflowed};
  for (std::size_t i = 0; i < checksums.ranges().size(); ++i)
    if (checksums.share_at(i) != 0) report.sums.emplace_back(static_cast<std::uint32_t>(i), checksums.share_at(i));
  return report;
}

Status finish_files(const OutputPlan& plan, std::span<const ShareReport> reports, std::span<const std::string> paths) {
  PAWL_ASSIGN(RangeChecksums checksums, checksums_of(plan));
  std::uint64_t bytes = 0;
  for (const ShareReport& report : reports) {
    bytes += report.bytes;
    for (const auto& [index, sum] : report.sums) {
      if (index >= checksums.ranges().size()) return Error{Code::corrupt, text("a report of range ", index)};
      checksums.add_share(index, sum);
    }
  }
  if (bytes != plan.data_bytes)
    return Error{Code::corrupt, text("shares of ", bytes, " bytes were written, and the plan has ", plan.data_bytes)};
  std::vector<std::string> first;
  for (std::size_t i = 0; i < plan.files.size(); ++i) {
    Texts texts = texts_of(plan.files[i], checksums);
    PAWL_TRY(write_texts(paths[i], texts.others));
    first.push_back(std::move(texts.first));
  }
  for (std::size_t i = 0; i < plan.files.size(); ++i)
    if (!first[i].empty()) PAWL_TRY(write_texts(paths[i], {{{0, std::move(first[i])}}}));
  return {};
}

ExecuteReport sum_of(std::span<const ShareReport> reports) {
  ExecuteReport sum;
  std::map<std::uint32_t, std::uint64_t> overflowed;
  for (const ShareReport& report : reports) {
    sum.bytes_read += report.bytes_read;
    sum.bytes_moved += report.bytes;
    for (const auto& [tensor, count] : report.overflowed) overflowed[tensor] += count;
  }
  sum.bytes_written = sum.bytes_moved;
  sum.overflowed.assign(overflowed.begin(), overflowed.end());
  return sum;
}

Result<ExecuteReport> write_output(const OutputPlan& plan, const CheckpointView& view, PartialOutput& output,
                                   const OutputOptions& options) {
  PAWL_ASSIGN(const std::vector<std::string> paths, make_files(plan, output, options.execution.cancel));
  const std::vector<OutputShare> shares = cut_output(plan, view, 1);
  PAWL_ASSIGN(const ShareReport report, write_share(plan, view, shares[0], paths, options));
  PAWL_TRY(finish_files(plan, std::span(&report, 1), paths));
  return sum_of(std::span(&report, 1));
}

}  // namespace pawl::checkpoint
