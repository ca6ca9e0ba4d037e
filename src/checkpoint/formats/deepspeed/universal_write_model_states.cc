#include "checkpoint/formats/deepspeed/universal_write_model_states.h"

#include <set>
#include <utility>

#include "base/text.h"

namespace pawl::checkpoint::deepspeed {
namespace {

// A source's file, byte for byte: a tensor of its bytes.
Status carry_file(const std::string& path, const std::string& name, Files& files, UniversalOutput& out) {
  PAWL_ASSIGN(const std::unique_ptr<ByteSource> bytes, open_bytes(path, files));
  StoredTensor tensor{name, "file", ElementType::uint8, {bytes->size_bytes()}};
  tensor.pieces = {whole_piece(tensor.shape, static_cast<std::uint32_t>(out.view.files.size()), 0)};
  out.view.files.push_back({path});
  PlannedTensor& planned = out.plan.tensors.emplace_back();
  planned.tensor = static_cast<std::uint32_t>(out.view.tensors.size());
  planned.key = name;
  planned.type = ElementType::uint8;
  planned.file = static_cast<std::uint32_t>(out.plan.files.size());
  planned.size_bytes = bytes->size_bytes();
  out.plan.files.push_back({name, bytes->size_bytes()});
  out.view.tensors.push_back(std::move(tensor));
  return {};
}

std::string twin_name(const ShardName& model) {
  const std::string rank = text(model.model_rank < 10 ? "0" : "", model.model_rank);
  return model.kind == ShardName::Kind::zero_model ? text("mp_rank_", rank, "_model_states.pt")
                                                   : text("zero_pp_rank_0_mp_rank_", rank, "_model_states.pt");
}

Status plan_twin(const std::string& path, const ShardName& model, Files& files, UniversalOutput& out) {
  PAWL_ASSIGN(const OpenedFile file, OpenedFile::open(path, files));
  TorchWriter writer;
  PickleWriter& to = writer.pickle();
  to.empty_dict();
  TorchCopy copy(*file.bytes, file.torch, writer);
  const std::vector<std::string> skipped =
      copy_items_but({"module", "optimizer", "frozen_param_fragments"}, file, file.pickle().root(), writer, copy);
  if (!skipped.empty())
    out.plan.notes.push_back(text(twin_name(model), ": ", skipped[0], skipped.size() > 1 ? " and others are" : " is",
                                  " only in ", model.name));
  to.mark();
  to.string("module");
  to.empty_dict();
  to.string("optimizer");
  to.none();
  to.string(kTwinKey);
  to.string(model.name);
  to.set_items();
  return add_torch_file(twin_name(model), std::move(writer), {}, out);
}

}  // namespace

Status carry_model_states(const UniversalSource& source, Files& files, UniversalOutput& out) {
  for (const ShardName& model : source.models)
    PAWL_TRY(carry_file(join_path(source.path, model.name), model.name, files, out));
  std::set<std::uint32_t> done;  // model-parallel ranks
  for (const ShardName& model : source.models)
    if (done.insert(model.model_rank).second)
      PAWL_TRY(plan_twin(join_path(source.path, model.name), model, files, out));
  return {};
}

}  // namespace pawl::checkpoint::deepspeed
