#include "formats/output_plan.h"

#include <algorithm>
#include <array>
#include <memory>

#include "base/text.h"
#include "env/files.h"
#include "reshape/cast.h"
#include "reshape/plan.h"
#include "reshape/range_checksums.h"

namespace pawl {
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
                   text(label_of(stored.name, stored.role), " is no whole number of bytes, or too large")};
    tensor.size_bytes = *bytes;
  }
  if (kept != 0) plan.notes.push_back(text(kept, " tensors keep their type: steps, and types that are no such floats"));
  return plan;
}

void note_ties(const CheckpointView& view, OutputPlan& plan) {
  for (const auto& [alias, name] : view.aliases)
    plan.notes.push_back(text(alias, " is tied to ", name, ", and is not written a second time"));
}

PartialOptions partial_options(const OutputPlan& plan, bool overwrite) {
  return {.folder = plan.is_folder, .overwrite = overwrite, .bytes = plan.all_bytes, .marker = plan.marker};
}

Status check_output(const OutputPlan& plan, const CheckpointView& view, const OutputOptions& options) {
  return Copies(plan, view, options).stream([](const ReshapeCopy&) {});
}

Result<ExecuteReport> write_output(const OutputPlan& plan, const CheckpointView& view, PartialOutput& output,
                                   const OutputOptions& options) {
  CopyTarget target;
  for (const PlannedFile& file : plan.files) target.files.push_back({output.path_of(file.name), file.size_bytes, {}});
  target.place = [&](std::uint32_t, std::uint32_t buffer) -> Place {
    const PlannedTensor& tensor = plan.tensors[buffer];
    return {.file = tensor.file, .offset_bytes = tensor.offset_bytes, .size_bytes = tensor.size_bytes};
  };
  ExecuteOptions execution = options.execution;
  execution.bytes_expected = plan.data_bytes;
  const Copies copies(plan, view, options);
  const CopyStream stream = [&](const CopySink& sink) { return copies.stream(sink); };
  PAWL_ASSIGN(RangeChecksums checksums, checksums_of(plan));
  if (!checksums.ranges().empty()) execution.observe = checksums.observer();
  PAWL_ASSIGN(ExecuteReport report, execute(stream, places_of(view), target, execution));
  std::vector<std::string> first;
  for (std::size_t i = 0; i < plan.files.size(); ++i) {
    Texts texts = texts_of(plan.files[i], checksums);
    PAWL_TRY(write_texts(target.files[i].path, texts.others));
    first.push_back(std::move(texts.first));
  }
  for (std::size_t i = 0; i < plan.files.size(); ++i)
    if (!first[i].empty()) PAWL_TRY(write_texts(target.files[i].path, {{{0, std::move(first[i])}}}));
  return report;
}

}  // namespace pawl
