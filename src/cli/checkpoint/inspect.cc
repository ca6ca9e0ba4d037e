// `pawl inspect`: what a checkpoint holds, whoever wrote it.
#include "cli/checkpoint/access.h"
#include "cli/checkpoint/commands.h"
#include "cli/checkpoint/text.h"
#include "cli/exit_codes.h"
#include "cli/output.h"

namespace pawl::checkpoint {

constexpr std::size_t kShownMax = 40;

int command_inspect(const InspectOptions& options) {
  const Result<CheckpointView> view = open_proven(options.path, options.read);
  if (!view) return report_checkpoint_error(view.error(), options.json);
  if (options.json)
    print(json_text(inspect_json(*view, options.path)) + "\n");
  else
    print(inspect_text(*view, options.path, options.all ? std::nullopt : std::optional(kShownMax)));
  return view->problems.empty() ? kExitOk : kExitDegraded;
}

}  // namespace pawl::checkpoint
