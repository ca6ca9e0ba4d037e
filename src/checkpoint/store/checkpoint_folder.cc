#include "checkpoint/store/checkpoint_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "checkpoint/formats/native/store_manifest.h"
#include "checkpoint/formats/native/store_view.h"
#include "checkpoint/output/partial_output.h"
#include "env/files.h"

namespace pawl::checkpoint {
namespace {

constexpr std::string_view kNamePrefix = "step-";

std::int64_t written_at(const std::string& path) {
  struct stat found {};
  return ::stat(path.c_str(), &found) == 0 ? static_cast<std::int64_t>(found.st_mtime) : 0;
}

void look_into(ListedCheckpoint& one) {
  const std::string marker = join_path(one.path, kStoreMarkerName);
  one.finished = path_exists(marker);
  one.written_s = written_at(one.finished ? marker : one.path);
  if (!one.finished) return;
  const Result<StoreManifest> manifest = read_store_manifest(one.path);
  if (!manifest) {
    one.damage = manifest.error().what;
    return;
  }
  for (const StoreFile& file : manifest->files) one.bytes += file.size_bytes;
  one.tensors = static_cast<std::uint64_t>(
      std::ranges::count_if(manifest->tensors, [](const auto& tensor) { return !is_set_aside(tensor.role); }));
  if (const auto view = view_store(one.path); !view) one.damage = view.error().what;  // files that are missing or cut
}

// Nothing: it is no business of ours.
std::optional<ListedCheckpoint> named(const std::string& folder, std::string name) {
  ListedCheckpoint one;
  one.path = join_path(folder, name);
  if (name.ends_with(kPartialSuffix)) name.resize(name.size() - std::string_view(kPartialSuffix).size());
  const auto step = parse_checkpoint_name(name);
  if (!step) return std::nullopt;
  one.step = *step;
  return one;
}

}  // namespace

std::string checkpoint_name(std::uint64_t step) {
  return text(kNamePrefix, step);
}

std::optional<std::uint64_t> parse_checkpoint_name(std::string_view name) {
  std::uint64_t step = 0;
  if (!name.starts_with(kNamePrefix) || !parse_number(name.substr(kNamePrefix.size()), step)) return std::nullopt;
  return checkpoint_name(step) == name ? std::optional(step) : std::nullopt;
}

Result<std::vector<ListedCheckpoint>> list_checkpoints(const std::string& path) {
  PAWL_ASSIGN(const std::vector<std::string> names, real_files().list(path));
  std::vector<ListedCheckpoint> found;
  if (is_store_folder(names)) {
    std::optional<ListedCheckpoint> one = named(parent_path(path), last_name(path));
    if (!one) one.emplace();
    one->path = path;
    found.push_back(std::move(*one));
  } else {
    for (const std::string& name : names)
      if (std::optional<ListedCheckpoint> one = named(path, name)) found.push_back(std::move(*one));
  }
  for (ListedCheckpoint& one : found) look_into(one);
  std::ranges::stable_sort(found, {}, [](const ListedCheckpoint& one) { return std::pair(one.step, !one.finished); });
  return found;
}

}  // namespace pawl::checkpoint
