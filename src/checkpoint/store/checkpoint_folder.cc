#include "checkpoint/store/checkpoint_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

#include "base/contains.h"
#include "base/text.h"
#include "checkpoint/formats/native/store_manifest.h"
#include "checkpoint/formats/native/store_view.h"
#include "checkpoint/output/partial_output.h"
#include "env/fd.h"
#include "env/files.h"

namespace pawl::checkpoint {
namespace {

constexpr std::string_view kNamePrefix = "step-";
constexpr std::string_view kRemovedSuffix = ".pawl-removed";  // what has lost its name and is being deleted

std::uint64_t written_at(const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0 || found.st_mtim.tv_sec < 0) return 0;
  return static_cast<std::uint64_t>(found.st_mtim.tv_sec) * 1000 +
         static_cast<std::uint64_t>(found.st_mtim.tv_nsec) / 1'000'000;
}

std::string id_at(const std::string& path) {
  const Result<StoreIdentity> identity = read_store_identity(path);
  return identity ? identity->id : "";
}

void look_into(ListedCheckpoint& one) {
  const std::string marker = join_path(one.path, kStoreMarkerName);
  one.finished = path_exists(marker);
  one.written_ms = written_at(one.finished ? marker : one.path);
  if (!one.finished) return;
  if (Result<StoreIdentity> identity = read_store_identity(one.path)) {
    one.identity = std::move(*identity);
    if (one.identity.written_ms != 0) one.written_ms = one.identity.written_ms;
  }
  const Result<StoreManifest> manifest = read_store_manifest(one.path);
  const auto found = [&one](const Error& error) {
    one.damage = error.what;
    one.is_unknown = error.code != Code::corrupt && error.code != Code::not_found;
  };
  if (!manifest) return found(manifest.error());
  for (const StoreFile& file : manifest->files) one.bytes += file.size_bytes;
  one.tensors = static_cast<std::uint64_t>(
      std::ranges::count_if(manifest->tensors, [](const auto& tensor) { return !is_set_aside(tensor.role); }));
  if (const auto view = view_store(one.path); !view) found(view.error());  // files that are missing or cut
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

Error refused(const std::string& path, int errno_value) {
  Error error = system_error(text("remove ", path), errno_value);
  if (errno_value == ENOENT) error.code = Code::not_found;
  return error;
}

// Whoever removes a folder holds it until all is deleted; not all file systems can.
Result<Fd> hold(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid()) return refused(path, errno);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    return Error{Code::stale, text(path, " is being replaced or removed by another process")};
  return fd;
}

bool is_at(const Fd& held, const std::string& path) {
  struct stat ours {
  }, there{};
  return ::fstat(held.get(), &ours) == 0 && ::lstat(path.c_str(), &there) == 0 && ours.st_ino == there.st_ino &&
         ours.st_dev == there.st_dev;
}

Error was_replaced(const std::string& path) {
  return {Code::stale, text(path, " is another checkpoint than was listed: it has been replaced, and stays")};
}

Status delete_removed(const std::string& removed) {
  if (!path_exists(removed)) return {};
  const Result<Fd> held = hold(removed);
  if (!held && held.error().code == Code::stale) return {};  // by another one, which goes on with it
  return remove_tree(parent_path(removed), removed);
}

Status check_removable(const std::string& path) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) return refused(path, errno);
  if (!S_ISDIR(found.st_mode) || !parse_checkpoint_name(last_name(path)) ||
      !path_exists(join_path(path, kStoreMarkerName)))
    return Error{Code::invalid, text(path, " is no checkpoint that a job wrote: it is left as it is")};
  if (::access(path.c_str(), W_OK | X_OK) != 0) return refused(path, errno);  // else it would only lose its name
  return {};
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

std::vector<std::uint64_t> sound_steps(std::span<const ListedCheckpoint> listed) {
  std::vector<std::uint64_t> steps;
  for (const ListedCheckpoint& one : listed)
    if (one.finished && one.damage.empty()) steps.push_back(one.step);
  std::ranges::sort(steps);
  return steps;
}

const ListedCheckpoint* last_written(std::span<const ListedCheckpoint> listed) {
  std::set<std::pair<std::uint64_t, std::string>> before;
  for (const ListedCheckpoint& one : listed)
    for (const StoreName& name : one.identity.before) before.emplace(name.step, name.id);
  const ListedCheckpoint* last = nullptr;
  for (const ListedCheckpoint& one : listed) {
    const bool counts = one.finished && (one.damage.empty() || one.is_unknown || !one.identity.id.empty());
    if (!counts || before.contains({one.step, one.identity.id})) continue;
    if (last == nullptr || one.written_ms >= last->written_ms) last = &one;
  }
  return last;
}

std::vector<ListedCheckpoint> history_of(std::span<const ListedCheckpoint> listed, const ListedCheckpoint& last) {
  std::vector<ListedCheckpoint> history;
  for (const ListedCheckpoint& one : listed) {
    const StoreName name{one.step, one.identity.id};
    const bool is_before = one.finished && !name.id.empty() && contains(last.identity.before, name);
    if (is_before || one.path == last.path) history.push_back(one);
  }
  return history;
}

std::vector<ListedCheckpoint> left_behind(std::span<const ListedCheckpoint> listed) {
  std::vector<ListedCheckpoint> all(listed.begin(), listed.end());
  std::erase_if(all, [](const ListedCheckpoint& one) { return !one.finished || one.identity.id.empty(); });
  const ListedCheckpoint* const last = last_written(all);
  if (last == nullptr) return {};
  const std::vector<ListedCheckpoint> history = history_of(all, *last);
  std::erase_if(all, [&](const ListedCheckpoint& one) {
    return std::ranges::any_of(history, [&](const ListedCheckpoint& other) { return other.path == one.path; });
  });
  return all;
}

std::vector<std::uint64_t> to_remove(std::vector<std::uint64_t> sound, Retention retention) {
  if (retention.keep_last == 0 || sound.size() <= retention.keep_last) return {};
  std::ranges::sort(sound);
  sound.resize(sound.size() - retention.keep_last);
  if (retention.keep_every != 0)
    std::erase_if(sound, [&](std::uint64_t step) { return step % retention.keep_every == 0; });
  return sound;
}

Status remove_checkpoint(const std::string& given, const std::string& id) {
  const std::string folder = parent_path(given);
  const std::string path = join_path(folder, last_name(given));
  PAWL_TRY(check_removable(path));
  const std::string removed = text(path, kRemovedSuffix);
  PAWL_TRY(delete_removed(removed));  // of the last one of that step, which was killed
  PAWL_ASSIGN(const Fd held, hold(path));
  if (id_at(path) != id) return was_replaced(path);
  if (::rename(path.c_str(), removed.c_str()) != 0) return refused(path, errno);
  if (!is_at(held, removed)) {  // another one got the name in this moment, and is given it back
    (void)::renameat2(AT_FDCWD, removed.c_str(), AT_FDCWD, path.c_str(), RENAME_NOREPLACE);
    return was_replaced(path);
  }
  // Before anything of it is deleted: else a crash may bring the name back, and not all that was behind it.
  if (Status synced = real_files().sync_directory(folder); !synced) {
    (void)::rename(removed.c_str(), path.c_str());
    return synced;
  }
  return remove_tree(folder, removed);
}

Status finish_removals(const std::string& folder) {
  PAWL_ASSIGN(const std::vector<std::string> names, real_files().list(folder));
  Status first;
  for (const std::string& name : names) {
    if (!name.ends_with(kRemovedSuffix)) continue;
    if (!parse_checkpoint_name(std::string_view(name).substr(0, name.size() - kRemovedSuffix.size()))) continue;
    if (Status deleted = delete_removed(join_path(folder, name)); !deleted && first) first = std::move(deleted);
  }
  return first;
}

}  // namespace pawl::checkpoint
