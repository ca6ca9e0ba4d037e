#include "checkpoint/formats/deepspeed/save_folder.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/text.h"
#include "env/byte_source.h"

namespace pawl::checkpoint::deepspeed {

SaveFolder::SaveFolder(TagFolder folder, Files& files, CheckpointView& view)
    : folder_(std::move(folder)), files_(files), view_(view) {
  leave_out_doubles();
}

// bf16_zero_pp_rank_0 beside zero_pp_rank_0, say: which one belongs to the save can't be told.
void SaveFolder::leave_out_doubles() {
  std::map<std::tuple<ShardName::Kind, ShardName::Coordinates>, std::string> first;
  std::erase_if(folder_.shards, [&](const ShardName& shard) {
    const auto [at, is_new] = first.try_emplace({shard.kind, shard.coordinates()}, shard.name);
    if (!is_new)
      problem(text(folder_.path, ": ", at->second, " and ", shard.name,
                   " belong to one rank: the folder mixes files of two saves"));
    return !is_new;
  });
}

std::vector<const ShardName*> SaveFolder::shards_of(ShardName::Kind kind) const {
  std::vector<const ShardName*> out;
  for (const ShardName& shard : folder_.shards)
    if (shard.kind == kind) out.push_back(&shard);
  std::ranges::sort(out, {}, [](const ShardName* shard) { return shard->coordinates(); });
  return out;
}

std::optional<ShardFile> SaveFolder::open(const ShardName& name) {
  const std::string path = join_path(folder_.path, name.name);
  const auto index = static_cast<std::uint32_t>(view_.files.size());
  view_.files.push_back({.path = path});
  Result<ShardFile> file = ShardFile::open(path, index, files_);
  if (!file) {
    damage(std::move(file).error());
    return std::nullopt;
  }
  file_sizes_.resize(view_.files.size());
  file_sizes_[index] = file->size_bytes();
  return std::move(*file);
}

void SaveFolder::leave_out(const std::vector<std::string>& sentences) {
  view_.unsupported.insert(view_.unsupported.end(), sentences.begin(), sentences.end());
}

void SaveFolder::damage(Error error) {
  if (!first_damage_) first_damage_ = error;
  problem(std::move(error.what));
}

std::vector<std::uint64_t> SaveFolder::file_sizes() const {
  std::vector<std::uint64_t> out = file_sizes_;
  out.resize(view_.files.size());
  return out;
}

std::string listed(const std::vector<std::string>& words) {
  constexpr std::size_t kWordsMax = 4;
  std::string out;
  for (std::size_t i = 0; i < std::min(words.size(), kWordsMax); ++i) out += text(i == 0 ? "" : ", ", words[i]);
  if (words.size() > kWordsMax) out += text(" and ", words.size() - kWordsMax, " more");
  return out;
}

}  // namespace pawl::checkpoint::deepspeed
