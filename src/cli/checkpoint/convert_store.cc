#include "cli/checkpoint/convert_store.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/formats/native/store_manifest.h"
#include "checkpoint/names/state_names.h"
#include "checkpoint/output/output_shares.h"
#include "checkpoint/reshape/cast.h"
#include "checkpoint/store/store_folder.h"
#include "cli/checkpoint/convert_output.h"
#include "cli/checkpoint/portions.h"
#include "env/files.h"

namespace pawl::checkpoint {
namespace {

using Bytes = std::vector<std::byte>;

PerDimension dense_stride_bytes(const Box& box, ElementType type) {
  PerDimension stride = dense_stride(box);
  for (std::uint64_t& step : stride) step *= size_bits(type) / 8;
  return stride;
}

StorePiece piece_of(const StoredTensor& tensor, ElementType type, const Box& box, const std::byte* memory) {
  StorePiece piece;
  piece.name = tensor.name;
  piece.role = tensor.role;
  piece.type = type;
  piece.shape = tensor.shape;
  piece.box = box;
  piece.memory = memory;
  piece.stride_bytes = dense_stride_bytes(box, type);
  return piece;
}

// What has no elements is in no portion, and still belongs to the checkpoint.
std::vector<StorePiece> empty_pieces(const OutputPlan& plan, const CheckpointView& view) {
  std::vector<StorePiece> pieces;
  for (const PlannedTensor& planned : plan.tensors)
    if (planned.size_bytes == 0) {
      const StoredTensor& tensor = view.tensors[planned.tensor];
      pieces.push_back(piece_of(tensor, planned.type, whole_box(tensor.shape), nullptr));
    }
  return pieces;
}

// So that how many workers there are changes no file, as long as they have the memory: large enough to be written fast,
// small enough to be shared out.
std::uint64_t portion_bytes_max(const OutputPlan& plan, std::uint64_t memory_bytes) {
  constexpr std::uint64_t kPortions = 64;
  constexpr std::uint64_t kPortionBytesMin = 4 << 20;
  return std::min(memory_bytes / 4, std::max(kPortionBytesMin, plan.data_bytes / kPortions));
}

// They are of all tensors: of a chosen few they would say that the rest was saved too.
bool keeps_values(const CheckpointView& view, const std::vector<std::string>& roles) {
  return roles.empty() && !view.values.empty();
}

class StoreOutput final : public ConvertOutput {
 public:
  StoreOutput(const OutputPlan& plan, const CheckpointView& view, const ConvertOptions& options, std::uint32_t workers,
              std::uint64_t memory_bytes)
      : plan_(plan),
        view_(view),
        options_(options),
        reader_(view, {.trusted_copy = options.trusted_replica, .roles = {}}),
        empty_(empty_pieces(plan, view)) {
    std::vector<PortionTensor> tensors;
    for (const PlannedTensor& planned : plan_.tensors) {
      const StoredTensor& stored = view_.tensors[planned.tensor];
      tensors.push_back({stored.type, stored.shape});
      view_index_.push_back(planned.tensor);
    }
    portions_ = plan_portions(tensors, portion_bytes_max(plan, memory_bytes));
    for (const Portion& portion : portions_) bytes_.push_back(bytes_of(portion));
    cuts_ = cut_in_order(bytes_, workers);
  }

  Status begin(const std::string& attempt) override {
    PAWL_ASSIGN(StoreFolder begun,
                StoreFolder::begin(options_.target, {options_.overwrite, plan_.data_bytes, attempt}));
    begun_.emplace(std::move(begun));
    folder_ = begun_->folder();
    return {};
  }

  void join(const std::string& attempt) override { folder_ = join_path(partial_folder(options_.target), attempt); }

  std::uint64_t share_bytes(std::uint32_t worker) const override {
    std::uint64_t sum = 0;
    for (std::size_t i = cuts_[worker]; i < cuts_[worker + 1]; ++i) sum += bytes_[i];
    return sum;
  }

  std::vector<std::uint32_t> share_tensors(std::uint32_t worker) const override {
    std::vector<std::uint32_t> tensors;
    for (std::size_t i = cuts_[worker]; i < cuts_[worker + 1]; ++i)
      for (const std::uint32_t tensor : portions_[i].tensors)
        if (tensors.empty() || tensors.back() != tensor) tensors.push_back(tensor);
    return tensors;
  }

  Result<ShareReport> write(std::uint32_t worker, const ExecuteOptions& execution) override {
    ShareReport report;
    // Of the memory a part has half: its tensors, and what they are cast to.
    ExecuteOptions quarter = execution;
    quarter.memory_bytes = execution.memory_bytes / 4;
    quarter.progress = {};
    if (worker == 0 && !empty_.empty()) PAWL_TRY(write_part(0, empty_, quarter, report));
    for (std::size_t i = cuts_[worker]; i < cuts_[worker + 1]; ++i) {
      PAWL_TRY(write_portion(i, quarter, report));
      if (execution.progress) execution.progress({report.bytes, share_bytes(worker)});
      if (execution.cancel != nullptr && *execution.cancel) return Error{Code::cancelled, "interrupted"};
    }
    return report;
  }

  Status finish(std::span<const ShareReport> reports) override {
    std::vector<std::string> shares;
    for (const ShareReport& report : reports) shares.insert(shares.end(), report.texts.begin(), report.texts.end());
    StorePublishOptions publish;
    for (const auto& [alias, name] : view_.aliases)
      if (std::ranges::any_of(plan_.tensors, [&, &kept = name](const PlannedTensor& planned) {
            return view_.tensors[planned.tensor].name == kept;
          }))
        publish.aliases.emplace_back(alias, name);
    if (keeps_values(view_, options_.roles)) publish.values = view_.values;
    return begun_->publish(shares, publish);
  }

 private:
  [[nodiscard]] std::uint64_t bytes_of(const Portion& portion) const {
    std::uint64_t sum = 0;
    for (const std::uint32_t tensor : portion.tensors) {
      const PlannedTensor& planned = plan_.tensors[tensor];
      sum += size_bytes(planned.type, volume(box_of(portion, view_.tensors[planned.tensor].shape))).value_or(0);
    }
    return sum;
  }

  Status write_portion(std::size_t number, const ExecuteOptions& execution, ShareReport& report) {
    const Portion& portion = portions_[number];
    std::vector<Bytes> buffers;
    PAWL_TRY(reader_.read(portion, view_index_, buffers, execution));
    std::vector<StorePiece> pieces;
    for (std::size_t i = 0; i < portion.tensors.size(); ++i) {
      const PlannedTensor& planned = plan_.tensors[portion.tensors[i]];
      const StoredTensor& stored = view_.tensors[planned.tensor];
      report.bytes_read += buffers[i].size();
      cast_buffer(portion.tensors[i], stored.type, planned.type, buffers[i], report);
      pieces.push_back(piece_of(stored, planned.type, box_of(portion, stored.shape), buffers[i].data()));
      report.bytes += buffers[i].size();
    }
    return write_part(number + (empty_.empty() ? 0 : 1), pieces, execution, report);
  }

  static void cast_buffer(std::uint32_t tensor, ElementType from, ElementType to, Bytes& buffer, ShareReport& report) {
    if (from == to) return;
    Bytes wanted(buffer.size() / (size_bits(from) / 8) * (size_bits(to) / 8));
    const std::uint64_t overflowed = cast(from, buffer, to, wanted);
    buffer = std::move(wanted);
    if (overflowed == 0) return;
    if (report.overflowed.empty() || report.overflowed.back().first != tensor)
      report.overflowed.emplace_back(tensor, 0);
    report.overflowed.back().second += overflowed;
  }

  Status write_part(std::size_t number, const std::vector<StorePiece>& pieces, const ExecuteOptions& execution,
                    ShareReport& report) {
    StorePartOptions part;
    part.execution = execution;
    PAWL_ASSIGN(std::string share, write_store_part(folder_, static_cast<std::uint32_t>(number), pieces, part));
    report.texts.push_back(std::move(share));
    return {};
  }

  const OutputPlan& plan_;
  const CheckpointView& view_;
  const ConvertOptions& options_;
  PortionReader reader_;
  std::vector<StorePiece> empty_;
  std::vector<std::uint32_t> view_index_;
  std::vector<Portion> portions_;
  std::vector<std::uint64_t> bytes_;  // of each portion, as written
  std::vector<std::size_t> cuts_;
  std::string folder_;
  std::optional<StoreFolder> begun_;
};

}  // namespace

Result<OutputPlan> plan_store(const CheckpointView& view, const WriteOptions& options) {
  PAWL_ASSIGN(const std::vector<std::uint32_t> chosen, with_roles(view, options.roles));
  PAWL_ASSIGN(OutputPlan plan, plan_tensors(view, chosen, options));
  plan.is_folder = true;
  plan.marker = std::string(kStoreMarkerName);
  plan.all_bytes = plan.data_bytes;
  if (!view.values.empty() && !keeps_values(view, options.roles))
    plan.notes.emplace_back(
        "--roles leaves out everything that is not a tensor (hyperparameters, the job's own values)");
  for (PlannedTensor& tensor : plan.tensors)
    tensor.key = role_key(view.tensors[tensor.tensor].name, view.tensors[tensor.tensor].role);
  return plan;
}

std::unique_ptr<ConvertOutput> store_output(const OutputPlan& plan, const CheckpointView& view,
                                            const ConvertOptions& options, std::uint32_t workers,
                                            std::uint64_t memory_bytes) {
  return std::make_unique<StoreOutput>(plan, view, options, workers, memory_bytes);
}

}  // namespace pawl::checkpoint
