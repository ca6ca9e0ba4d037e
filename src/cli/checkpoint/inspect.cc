// `pawl inspect`: what a checkpoint holds, whoever wrote it.
#include "cli/checkpoint/access.h"
#include "cli/checkpoint/commands.h"
#include "cli/checkpoint/layout_report.h"
#include "cli/checkpoint/text.h"
#include "cli/exit_codes.h"
#include "cli/output.h"

namespace pawl::checkpoint {

namespace {

constexpr std::size_t kInspectShownMax = 40;

int inspect_layout(const CheckpointView& view, const InspectOptions& options) {
  const Result<LayoutReport> report = report_layout(view, options.layout, options.family);
  if (!report) return report_checkpoint_error(report.error(), options.json);
  if (options.json)
    print(json_text(layout_json(*report)) + "\n");
  else
    print(layout_text(*report, options.all ? std::nullopt : std::optional(kInspectShownMax)));
  return view.problems.empty() && report->left_out.empty() ? kExitOk : kExitDegraded;
}

}  // namespace

int command_inspect(const InspectOptions& options) {
  const Result<CheckpointView> view = open_proven(options.path, options.read);
  if (!view) return report_checkpoint_error(view.error(), options.json);
  if (!options.layout.empty()) return inspect_layout(*view, options);
  if (options.json)
    print(json_text(inspect_json(*view, options.path)) + "\n");
  else
    print(inspect_text(*view, options.path, options.all ? std::nullopt : std::optional(kInspectShownMax)));
  return view->problems.empty() ? kExitOk : kExitDegraded;
}

}  // namespace pawl::checkpoint
