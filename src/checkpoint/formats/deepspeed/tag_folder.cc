#include "checkpoint/formats/deepspeed/tag_folder.h"

#include "base/text.h"
#include "env/byte_source.h"

namespace pawl::checkpoint::deepspeed {
namespace {

// Empty where that is no folder, or holds no file of DeepSpeed.
TagFolder look_into(const std::string& path, Files& files) {
  TagFolder out{path, {}};
  const Result<std::vector<std::string>> names = files.list(path);
  if (!names) return out;
  for (const std::string& name : *names)
    if (std::optional<ShardName> shard = parse_shard_name(name)) out.shards.push_back(std::move(*shard));
  return out;
}

Result<TagFolder> tagged(const std::string& folder, const std::string& tag, std::string_view said_by, Files& files) {
  if (!is_plain_file_name(tag)) return Error{Code::invalid, text(folder, ": ", said_by, " is not a folder's name")};
  TagFolder out = look_into(join_path(folder, tag), files);
  if (out.shards.empty())
    return Error{Code::not_found,
                 text(folder, ": ", said_by, " names ", tag, ", but that folder has no DeepSpeed file")};
  return out;
}

std::string trimmed(std::string text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

}  // namespace

Result<TagFolder> find_tag_folder(const std::string& folder, const ReadOptions& options, Files& files) {
  TagFolder here = look_into(folder, files);
  if (!options.tag.empty() && !(here.shards.empty() ? false : last_name(folder) == options.tag))
    return tagged(folder, options.tag, "the tag", files);
  if (!here.shards.empty()) return here;
  if (Result<std::string> latest = read_file(join_path(folder, "latest"), 4096, files))
    return tagged(folder, trimmed(std::move(*latest)), "its file latest", files);
  PAWL_ASSIGN(const std::vector<std::string> names, files.list(folder));
  std::vector<TagFolder> found;
  std::string choice;
  for (const std::string& name : names) {
    TagFolder below = look_into(join_path(folder, name), files);
    if (below.shards.empty()) continue;
    choice += text(choice.empty() ? "" : ", ", name);
    found.push_back(std::move(below));
  }
  if (found.size() == 1) return std::move(found[0]);
  if (found.empty()) return Error{Code::not_found, text(folder, ": no DeepSpeed file in it or in the folders below")};
  return Error{Code::invalid, text(folder, ": no file latest, and several checkpoints: choose a tag of ", choice)};
}

}  // namespace pawl::checkpoint::deepspeed
