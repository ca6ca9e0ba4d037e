// ReportCollector: the reports of this node's group in a recovery, put into the control as few keys.
//
// It puts all that it has and has not put when every survivor of the group has reported, or a little after the first; and
// again for those that come later. A report is acknowledged when its put was answered. A put that fails is not tried again:
// whoever is not acknowledged puts its report itself (job/recovery/report_groups.h). On the loop's thread.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "job/daemon/node_context.h"
#include "job/membership/node_report.h"
#include "job/recovery/report_groups.h"

namespace pawl::job {

// Of this daemon: what it refused as a collector, and what it read and passed over where it needs reports.
[[nodiscard]] Counter& reports_refused(Metrics& metrics);

class ReportCollector {
 public:
  explicit ReportCollector(NodeContext& context);

  using Answered = std::function<void(bool taken)>;  // called at most once
  // What `from` has sent: refused is what does not parse, names another life, is of a generation that is over, or another
  // one than that node has sent before. One of a phase that this node has not seen yet waits for it.
  void on_report(NodeLife from, const std::string& text, Answered answered);
  void collect(NodeReport report, Answered answered);
  void on_state();  // of another phase

 private:
  struct Collected {
    std::string text;
    bool with_control = false;
    std::vector<Answered> answers = {};  // not given yet
  };
  using Whose = std::pair<ReportKind, NodeLife>;
  struct Early {
    NodeReport report;
    Answered answered;
  };
  void refuse(const Answered& answered, std::string_view why);
  void put_all();
  void put(std::vector<Whose> whose);
  void on_put(Generation generation, const std::vector<Whose>& whose, bool done);
  [[nodiscard]] bool is_too_early(const NodeReport& report) const;
  [[nodiscard]] bool has_all(ReportKind kind) const;

  Counter& refused_;
  NodeContext& context_;
  Generation generation_;  // of all that is here
  std::map<Whose, Collected> collected_;
  std::vector<Whose> unput_;
  std::map<Whose, Early> early_;
  bool put_planned_ = false;
  std::uint64_t last_serial_ = 0;
};

}  // namespace pawl::job
