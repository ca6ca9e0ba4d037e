#include "checkpoint/formats/deepspeed/universal_write_output.h"

#include <utility>

namespace pawl::checkpoint::deepspeed {

Status add_torch_file(const std::string& name, TorchWriter writer, const std::vector<RecordTensor>& tensors,
                      UniversalOutput& out) {
  const auto index = static_cast<std::uint32_t>(out.plan.files.size());
  PAWL_ASSIGN(TorchLayout layout, std::move(writer).finish(name, index));
  for (const RecordTensor& held : tensors) {
    PlannedTensor& planned = out.plan.tensors.emplace_back();
    planned.tensor = held.tensor;
    planned.key = held.key;
    planned.type = held.type;
    planned.file = index;
    planned.offset_bytes = layout.offset_bytes[held.record];
    const Result<std::uint64_t> count = element_count(out.view.tensors[held.tensor].shape);
    planned.size_bytes = count ? size_bytes(held.type, *count).value_or(0) : 0;
  }
  out.plan.files.push_back(std::move(layout.file));
  return {};
}

}  // namespace pawl::checkpoint::deepspeed
