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

bool is_among(const std::vector<ListedCheckpoint>& left, const ListedCheckpoint& one) {
  return std::ranges::any_of(left, [&](const ListedCheckpoint& other) { return other.path == one.path; });
}

std::string state_of(const ListedCheckpoint& one, const std::vector<ListedCheckpoint>& left) {
  if (!one.finished) return "unfinished";
  if (one.damage.empty() && is_among(left, one)) return "whole, of a history that was left";
  return one.damage.empty() ? "whole" : "damaged: " + printable(one.damage);
}

json json_of(const ListedCheckpoint& one, const std::vector<ListedCheckpoint>& left) {
  return {{"step", one.step},
          {"path", one.path},
          {"finished", one.finished},
          {"damage", one.damage},
          {"bytes", one.bytes},
          {"tensors", one.tensors},
          {"written_s", one.written_ms / 1000},
          {"id", one.identity.id},
          {"left_behind", is_among(left, one)}};
}

}  // namespace

int command_ls(const LsOptions& options) {
  const Result<std::vector<ListedCheckpoint>> found = list_checkpoints(options.path);
  if (!found) return report_checkpoint_error(found.error(), options.json);
  const std::vector<ListedCheckpoint> left = left_behind(*found);
  if (options.json) {
    json all = json::array();
    for (const ListedCheckpoint& one : *found) all.push_back(json_of(one, left));
    print(json_text({{"checkpoints", std::move(all)}}) + "\n");
  } else if (!found->empty()) {
    std::vector<std::vector<std::string>> rows = {{"STEP", "SIZE", "TENSORS", "WRITTEN", "STATE"}};
    for (const ListedCheckpoint& one : *found)
      rows.push_back({text(one.step), one.finished ? bytes_text(one.bytes) : "-",
                      one.finished ? text(one.tensors) : "-",
                      local_time(static_cast<std::int64_t>(one.written_ms / 1000)), state_of(one, left)});
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
