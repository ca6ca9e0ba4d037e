#include "checkpoint/formats/deepspeed/universal_write_source.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "checkpoint/formats/deepspeed/universal_write_output.h"

namespace pawl::checkpoint::deepspeed {
namespace {

// Empty: none of the view's files lies where DeepSpeed puts it.
std::string source_path(const CheckpointView& view) {
  for (const StoredFile& file : view.files) {
    if (file.path.empty()) continue;
    const std::string folder = parent_path(file.path);
    if (parse_shard_name(last_name(file.path))) return folder;
    if (last_name(parent_path(folder)) == "zero") return parent_path(parent_path(folder));
  }
  return {};
}

bool is_twin(const std::string& path, Files& files) {
  const Result<OpenedFile> file = OpenedFile::open(path, files);
  return file && file->find(kTwinKey) != Pickle::kNothing;
}

}  // namespace

Result<OpenedFile> OpenedFile::open(const std::string& path, Files& files) {
  OpenedFile out;
  PAWL_ASSIGN(out.bytes, open_bytes(path, files));
  Result<TorchFile> torch = TorchFile::read(*out.bytes);
  if (!torch) return std::move(torch).error().within(path);
  out.torch = std::move(*torch);
  return out;
}

UniversalSource find_source(const CheckpointView& view, Files& files) {
  UniversalSource out;
  if (!view.format.starts_with("DeepSpeed")) return out;
  out.path = source_path(view);
  const Result<std::vector<std::string>> names = files.list(out.path);
  if (out.path.empty() || !names) return out;
  out.is_universal = view.format.find("universal") != std::string::npos;
  for (const std::string& name : *names) {
    std::optional<ShardName> shard = parse_shard_name(name);
    if (!shard) continue;
    if (shard->kind == ShardName::Kind::model || shard->kind == ShardName::Kind::zero_model)
      out.models.push_back(std::move(*shard));
    else if (shard->kind == ShardName::Kind::optimizer)
      out.optimizers.push_back(std::move(*shard));
  }
  const auto rank = [](const ShardName& name) { return std::pair(name.model_rank, name.data_rank); };
  std::ranges::sort(out.models, {}, rank);
  std::ranges::sort(out.optimizers, {}, rank);
  std::erase_if(out.models, [&](const ShardName& name) { return is_twin(join_path(out.path, name.name), files); });
  return out;
}

Result<TensorParallelInfo> read_source_rules(const UniversalSource& source, Files& files) {
  if (source.models.empty()) return TensorParallelInfo();
  const std::string& name = source.models[0].name;
  PAWL_ASSIGN(const OpenedFile file, OpenedFile::open(join_path(source.path, name), files));
  Result<TensorParallelInfo> rules = read_tensor_parallel_info(file.pickle(), file.find("universal_checkpoint_info"));
  if (!rules) return std::move(rules).error().within(name);
  return rules;
}

std::vector<std::string> copy_items_but(const std::set<std::string_view>& left_out, const OpenedFile& from,
                                        Pickle::Value dict, TorchWriter& to, TorchCopy& copy) {
  std::vector<std::string> skipped;
  const std::span<const Pickle::Value> items = from.pickle().items(dict);
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    if (!from.pickle().is(items[i], PickleKind::string)) continue;
    const std::string_view key = from.pickle().text(items[i]);
    if (left_out.contains(key)) continue;
    if (!copy.fits(items[i + 1])) {
      skipped.emplace_back(key);
      continue;
    }
    to.pickle().string(key);
    (void)copy.copy(items[i + 1]);  // fits
    to.pickle().set_item();
  }
  return skipped;
}

}  // namespace pawl::checkpoint::deepspeed
