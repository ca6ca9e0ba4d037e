// `pawl prune`: removes old checkpoints of jobs from a folder.
#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/contains.h"
#include "base/text.h"
#include "checkpoint/formats/native/store_view.h"
#include "checkpoint/store/checkpoint_folder.h"
#include "cli/checkpoint/access.h"
#include "cli/checkpoint/commands.h"
#include "cli/checkpoint/progress.h"
#include "cli/checkpoint/text.h"
#include "cli/exit_codes.h"
#include "cli/output.h"
#include "env/files.h"

namespace pawl::checkpoint {
namespace {

struct Pruned {
  std::vector<ListedCheckpoint> removed;  // `bytes`: what they took on the disk
  std::vector<ListedCheckpoint> kept;     // sound or damaged
  json failed = json::array();
  std::uint64_t bytes = 0;
  std::size_t left_behind = 0;  // of `kept`, of other histories
};

bool is_damaged(const ListedCheckpoint& one) {
  return one.finished && !one.damage.empty();
}

// Of a damaged one the manifest may say nothing.
std::uint64_t bytes_in(const std::string& folder) {
  namespace fs = std::filesystem;
  std::uint64_t bytes = 0;
  std::error_code failed;
  for (fs::recursive_directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
    std::error_code unknown;
    if (const std::uintmax_t size = fs::file_size(at->path(), unknown); !unknown) bytes += size;
  }
  return bytes;
}

std::string names_of(const std::vector<ListedCheckpoint>& all) {
  std::string out;
  for (const ListedCheckpoint& one : all) out += text(out.empty() ? "" : ", ", checkpoint_name(one.step));
  return out.empty() ? "none" : out;
}

json json_of(const std::vector<ListedCheckpoint>& all) {
  json out = json::array();
  for (const ListedCheckpoint& one : all)
    out.push_back({{"step", one.step}, {"path", one.path}, {"bytes", one.bytes}, {"damage", one.damage}});
  return out;
}

bool is_among(const std::vector<ListedCheckpoint>& all, const ListedCheckpoint& one) {
  return std::ranges::any_of(all, [&](const ListedCheckpoint& other) { return other.path == one.path; });
}

// The history that was written last is counted by itself, and by itself what says nothing of its history.
std::vector<ListedCheckpoint> old_of(std::vector<ListedCheckpoint> all, bool has_id, const PruneOptions& options) {
  std::erase_if(all, [has_id](const ListedCheckpoint& one) { return one.identity.id.empty() == has_id; });
  const std::vector<std::uint64_t> old = to_remove(sound_steps(all), {options.keep_last, options.keep_every});
  std::erase_if(all, [&](const ListedCheckpoint& one) { return !contains(old, one.step); });
  return all;
}

Pruned prune(const std::vector<ListedCheckpoint>& found, const PruneOptions& options) {
  const std::vector<ListedCheckpoint> left = left_behind(found);
  std::vector<ListedCheckpoint> counted = found;
  std::erase_if(counted, [&](const ListedCheckpoint& one) { return !one.finished || is_among(left, one); });
  std::vector<ListedCheckpoint> old = old_of(counted, true, options);
  for (ListedCheckpoint& one : old_of(counted, false, options)) old.push_back(std::move(one));
  Pruned all;
  for (ListedCheckpoint one : found) {
    if (!one.finished) continue;
    const bool is_left = is_among(left, one);
    const bool is_old = is_left ? options.left_behind : is_among(old, one);
    const bool goes = is_damaged(one) ? options.damaged && !one.is_unknown : is_old;
    one.bytes = bytes_in(one.path);
    if (is_left && !goes) ++all.left_behind;
    const Status removed = goes && !options.dry_run ? remove_checkpoint(one.path, one.identity.id) : Status();
    if (!removed && removed.error().code == Code::not_found) continue;  // by somebody else
    if (!removed) {
      say(printable(removed.error().what));
      all.failed.push_back({{"step", one.step}, {"path", one.path}, {"why", removed.error().what}});
    }
    if (goes && removed) all.bytes += one.bytes;
    (goes && removed ? all.removed : all.kept).push_back(std::move(one));
  }
  return all;
}

void print_text(const Pruned& all, const PruneOptions& options) {
  const char* const verb = options.dry_run ? "would remove" : "removed";
  for (const ListedCheckpoint& one : all.removed)
    print(text(verb, " ", printable(one.path), ", ", bytes_text(one.bytes), is_damaged(one) ? ", damaged" : "", "\n"));
  print(text(verb, " ", all.removed.size(), all.removed.size() == 1 ? " checkpoint, " : " checkpoints, ",
             bytes_text(all.bytes), "; kept: ", names_of(all.kept), "\n"));
  if (all.left_behind > 0)
    print(text("of those ", all.left_behind, " of a history that was left: --left-behind removes them, too\n"));
  const auto damaged = std::ranges::count_if(all.kept, is_damaged);
  if (damaged > 0 && !options.damaged) print(text("of those ", damaged, " damaged: --damaged removes them, too\n"));
}

}  // namespace

int command_prune(const PruneOptions& options) {
  if (is_address(options.path))
    return report_checkpoint_error(
        Error{Code::invalid,
              text(options.path, ": pawl removes nothing there: let the bucket's lifecycle rules do it")},
        options.json);
  if (path_exists(join_path(options.path, kStoreMarkerName)))
    return report_checkpoint_error(
        Error{Code::invalid, text(options.path, " is a checkpoint itself: name the folder in which it lies")},
        options.json);
  const Result<std::vector<ListedCheckpoint>> found = list_checkpoints(options.path);
  if (!found) return report_checkpoint_error(found.error(), options.json);
  if (std::ranges::none_of(*found, &ListedCheckpoint::finished))
    return report_checkpoint_error(Error{Code::not_found, text("no checkpoint of a job (step-N) in ", options.path)},
                                   options.json);
  const auto unknown = std::ranges::find_if(*found, &ListedCheckpoint::is_unknown);
  if (options.left_behind && unknown != found->end())
    return report_checkpoint_error(
        Error{Code::io, text(unknown->path,
                             " can't be looked at now, so nobody knows which history is the last: none "
                             "is removed; without --left-behind those of the last one are")},
        options.json);
  if (options.damaged && sound_steps(*found).empty())
    return report_checkpoint_error(
        Error{Code::corrupt,
              text("no checkpoint in ", options.path, " is sound, so none is removed: `pawl ls` says what is damaged")},
        options.json);
  Pruned all = prune(*found, options);
  if (!options.dry_run) {
    if (const Status finished = finish_removals(options.path); !finished) {
      say(printable(finished.error().what));
      all.failed.push_back({{"path", options.path}, {"why", finished.error().what}});
    }
  }
  if (options.json)
    print(json_text({{"dry_run", options.dry_run},
                     {"bytes", all.bytes},
                     {"removed", json_of(all.removed)},
                     {"kept", json_of(all.kept)},
                     {"failed", all.failed}}) +
          "\n");
  else
    print_text(all, options);
  return all.failed.empty() ? kExitOk : kExitFailed;
}

}  // namespace pawl::checkpoint
