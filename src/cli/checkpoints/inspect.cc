// `pawl inspect`: what a checkpoint holds, whoever wrote it.
#include "cli/checkpoints/access.h"
#include "cli/checkpoints/commands.h"
#include "cli/checkpoints/text.h"
#include "cli/commands.h"
#include "cli/output.h"

namespace pawl {

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

}  // namespace pawl
