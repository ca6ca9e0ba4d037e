#include "checkpoint/formats/dcp/dcp_data_files.h"

#include <memory>

#include "base/text.h"
#include "env/byte_source.h"

namespace pawl::checkpoint {
namespace {

constexpr std::size_t kNamesMax = 5;  // in one sentence

std::string list_of(const std::vector<std::string>& names, std::size_t count) {
  std::string out;
  for (std::size_t i = 0; i < names.size(); ++i) append_text(out, text(i == 0 ? "" : ", ", names[i]));
  if (count > names.size()) append_text(out, text(", and ", count - names.size(), " more"));
  return out;
}

}  // namespace

void DcpDataFile::lose(std::string_view key) {
  if (++lost <= kNamesMax) lost_keys.emplace_back(key);
}

Result<DcpDataFile*> DcpDataFiles::named(std::string_view name, DcpCheckpoint& out) {
  if (const auto found = found_.find(name); found != found_.end()) return &found->second;
  if (!is_plain_file_name(name)) return Error{Code::corrupt, "a place is in a file whose name is not a plain name"};
  DcpDataFile file{.number = static_cast<std::uint32_t>(out.files.size())};
  out.files.push_back(join_path(folder_, name));
  Result<std::unique_ptr<ByteSource>> source = open_bytes(out.files.back(), files_);
  if (!source && source.error().code != Code::not_found) return std::move(source).error();
  file.is_missing = !source;
  out.file_bytes.push_back(source ? (*source)->size_bytes() : 0);
  return &found_.emplace(name, std::move(file)).first->second;
}

void DcpDataFiles::note(const std::vector<std::string>& names, DcpCheckpoint& out) const {
  for (const auto& [name, file] : found_) {
    if (file.lost == 0) continue;
    const std::string path = join_path(folder_, name);
    const std::string what =
        file.is_missing ? text(path, " is missing") : text(path, " is cut: it ends at ", out.file_bytes[file.number]);
    out.problems.push_back(text(what, "; lost items: ", list_of(file.lost_keys, file.lost)));
  }
  std::vector<std::string> stale;
  std::size_t count = 0;
  for (const std::string& name : names) {
    if (!name.ends_with(".distcp") || found_.contains(name)) continue;
    const Result<std::unique_ptr<ByteSource>> source = open_bytes(join_path(folder_, name), files_);
    if (!source || (*source)->size_bytes() == 0) continue;  // a rank that had nothing to write
    if (++count <= kNamesMax) stale.push_back(name);
  }
  if (count != 0)
    out.notes.push_back(
        text("not part of this checkpoint (left by an older save, or by another): ", list_of(stale, count)));
}

}  // namespace pawl::checkpoint
