// `pawl ls`: which checkpoints of jobs lie in a folder.
#include <algorithm>
#include <ctime>

#include "base/text.h"
#include "checkpoint/store/checkpoint_folder.h"
#include "cli/checkpoint/access.h"
#include "cli/checkpoint/commands.h"
#include "cli/checkpoint/progress.h"
#include "cli/checkpoint/text.h"
#include "cli/exit_codes.h"
#include "cli/output.h"

namespace pawl::checkpoint {
namespace {

std::string local_time(std::int64_t seconds) {
  if (seconds == 0) return "-";  // an address's isn't known
  const auto time = static_cast<std::time_t>(seconds);
  std::tm parts{};
  char out[32];
  if (::localtime_r(&time, &parts) == nullptr || std::strftime(out, sizeof out, "%Y-%m-%d %H:%M:%S", &parts) == 0)
    return "-";
  return out;
}

// Of the history that was written last; what says nothing of its history counts as its.
bool is_left_behind(const ListedCheckpoint& one, const std::vector<ListedCheckpoint>& history) {
  return one.finished && !one.identity.id.empty() &&
         std::ranges::none_of(history, [&](const ListedCheckpoint& other) { return other.path == one.path; });
}

std::string state_of(const ListedCheckpoint& one, const std::vector<ListedCheckpoint>& history) {
  if (!one.finished) return "unfinished";
  if (one.damage.empty() && is_left_behind(one, history)) return "whole, of a history that was left";
  return one.damage.empty() ? "whole" : "damaged: " + printable(one.damage);
}

json json_of(const ListedCheckpoint& one, const std::vector<ListedCheckpoint>& history) {
  return {{"step", one.step},
          {"path", one.path},
          {"finished", one.finished},
          {"damage", one.damage},
          {"bytes", one.bytes},
          {"tensors", one.tensors},
          {"written_s", one.written_ms / 1000},
          {"id", one.identity.id},
          {"left_behind", is_left_behind(one, history)}};
}

}  // namespace

int command_ls(const LsOptions& options) {
  const Result<std::vector<ListedCheckpoint>> found = list_checkpoints(options.path);
  if (!found) return report_checkpoint_error(found.error(), options.json);
  const ListedCheckpoint* const last = last_written(*found);
  const auto history = last != nullptr ? history_of(*found, *last) : std::vector<ListedCheckpoint>();
  if (options.json) {
    json all = json::array();
    for (const ListedCheckpoint& one : *found) all.push_back(json_of(one, history));
    print(json_text({{"checkpoints", std::move(all)}}) + "\n");
  } else if (!found->empty()) {
    std::vector<std::vector<std::string>> rows = {{"STEP", "SIZE", "TENSORS", "WRITTEN", "STATE"}};
    for (const ListedCheckpoint& one : *found)
      rows.push_back({text(one.step), one.finished ? bytes_text(one.bytes) : "-",
                      one.finished ? text(one.tensors) : "-",
                      local_time(static_cast<std::int64_t>(one.written_ms / 1000)), state_of(one, history)});
    print(table(rows));
  }
  if (std::ranges::none_of(*found, &ListedCheckpoint::finished)) {
    if (!options.json) print(text("no checkpoint of a job (step-N) in ", printable(options.path), "\n"));
    return kExitNotFound;
  }
  const bool damaged = std::ranges::any_of(*found, [](const ListedCheckpoint& one) { return !one.damage.empty(); });
  return damaged ? kExitDegraded : kExitOk;
}

}  // namespace pawl::checkpoint
