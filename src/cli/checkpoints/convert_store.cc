#include "cli/checkpoints/convert_store.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cli/checkpoints/access.h"
#include "cli/checkpoints/portions.h"
#include "cli/checkpoints/progress.h"
#include "formats/safetensors_writer.h"
#include "formats/store_manifest.h"
#include "reshape/cast.h"
#include "store/store_folder.h"

namespace pawl {
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

class Writer {
 public:
  Writer(const OutputPlan& plan, const CheckpointView& view, const ConvertOptions& options)
      : plan_(plan),
        view_(view),
        options_(options),
        reader_(view, {.trusted_copy = options.trusted_replica, .roles = {}}) {}

  Result<ExecuteReport> run() {
    PAWL_ASSIGN(StoreFolder folder, StoreFolder::begin(options_.target, {options_.overwrite, plan_.data_bytes}));
    ProgressBar progress("convert", plan_.data_bytes);
    std::vector<PortionTensor> tensors;
    std::vector<std::uint32_t> view_index;
    for (const PlannedTensor& planned : plan_.tensors) {
      const StoredTensor& stored = view_.tensors[planned.tensor];
      tensors.push_back({stored.type, stored.shape});
      view_index.push_back(planned.tensor);
    }
    PAWL_TRY(write_part(folder, empty_pieces(plan_, view_)));
    // Of the memory a part has half: its tensors, and what they are cast to.
    for (const Portion& portion : plan_portions(tensors, options_.memory_bytes / 4)) {
      std::vector<Bytes> buffers;
      PAWL_TRY(reader_.read(portion, view_index, buffers, execute_options(options_.memory_bytes / 4)));
      std::vector<StorePiece> pieces;
      for (std::size_t i = 0; i < portion.tensors.size(); ++i) {
        const PlannedTensor& planned = plan_.tensors[portion.tensors[i]];
        const StoredTensor& stored = view_.tensors[planned.tensor];
        report_.bytes_read += buffers[i].size();
        cast_buffer(portion.tensors[i], stored.type, planned.type, buffers[i]);
        pieces.push_back(piece_of(stored, planned.type, box_of(portion, stored.shape), buffers[i].data()));
        report_.bytes_moved += buffers[i].size();
      }
      PAWL_TRY(write_part(folder, pieces));
      progress.at(report_.bytes_moved);
    }
    if (interrupted()) return Error{Code::cancelled, "interrupted"};
    StorePublishOptions publish;
    for (const auto& [alias, name] : view_.aliases)
      if (std::ranges::any_of(plan_.tensors, [&, &kept = name](const PlannedTensor& planned) {
            return view_.tensors[planned.tensor].name == kept;
          }))
        publish.aliases.emplace_back(alias, name);
    PAWL_TRY(folder.publish(shares_, publish));
    return report_;
  }

 private:
  void cast_buffer(std::uint32_t tensor, ElementType from, ElementType to, Bytes& buffer) {
    if (from == to) return;
    Bytes wanted(buffer.size() / (size_bits(from) / 8) * (size_bits(to) / 8));
    const std::uint64_t overflowed = cast(from, buffer, to, wanted);
    buffer = std::move(wanted);
    if (overflowed == 0) return;
    if (report_.overflowed.empty() || report_.overflowed.back().first != tensor)
      report_.overflowed.emplace_back(tensor, 0);
    report_.overflowed.back().second += overflowed;
  }

  Status write_part(const StoreFolder& folder, const std::vector<StorePiece>& pieces) {
    if (pieces.empty()) return {};
    StorePartOptions part;
    part.execution = execute_options(options_.memory_bytes / 4);
    PAWL_ASSIGN(std::string share,
                write_store_part(folder.folder(), static_cast<std::uint32_t>(shares_.size()), pieces, part));
    shares_.push_back(std::move(share));
    return {};
  }

  const OutputPlan& plan_;
  const CheckpointView& view_;
  const ConvertOptions& options_;
  PortionReader reader_;
  std::vector<std::string> shares_;
  ExecuteReport report_;
};

}  // namespace

Result<OutputPlan> plan_store(const CheckpointView& view, const WriteOptions& options) {
  PAWL_ASSIGN(const std::vector<std::uint32_t> chosen, with_roles(view, options.roles));
  PAWL_ASSIGN(OutputPlan plan, plan_tensors(view, chosen, options));
  plan.is_folder = true;
  plan.marker = std::string(kStoreMarkerName);
  plan.all_bytes = plan.data_bytes;
  for (PlannedTensor& tensor : plan.tensors)
    tensor.key = role_key(view.tensors[tensor.tensor].name, view.tensors[tensor.tensor].role);
  return plan;
}

Result<ExecuteReport> write_store(const OutputPlan& plan, const CheckpointView& view, const ConvertOptions& options) {
  return Writer(plan, view, options).run();
}

}  // namespace pawl
