// ProgressDetour: what a node would say over links of the progress tree that do not stand, said by the control instead.
//
// A link between two members may be cut for hours while all else is sound. Then both ends put what they know into keys of
// their own, which all read as if a link had brought it. Written only while a link of the tree is down: one write at a
// time, with a pause between. What is read may be old: that is safe (job/redundancy/progress.h). On the loop's thread.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "job/daemon/node_context.h"
#include "job/redundancy/progress.h"

namespace pawl::job {

struct ProgressNews {
  SeatReport report;  // of the node's subtree
  Progress progress;
  bool operator==(const ProgressNews&) const = default;
};
[[nodiscard]] std::string to_json(const ProgressNews& news);
[[nodiscard]] std::optional<ProgressNews> parse_progress_news(const std::string& value);

class ProgressDetour {
 public:
  // `news`: what there is to say now; nullopt: every link stands, or nothing runs.
  ProgressDetour(NodeContext& context, std::function<std::optional<ProgressNews>()> news)
      : context_(context), news_(std::move(news)) {}

  void consider();  // there may be something to say

 private:
  void write();

  NodeContext& context_;
  std::function<std::optional<ProgressNews>()> news_;
  bool planned_ = false;
  bool writing_ = false;
  std::string written_;  // key and value
  Generation told_in_;
};

}  // namespace pawl::job
