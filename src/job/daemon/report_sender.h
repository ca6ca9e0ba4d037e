// ReportSender: this node's reports in a recovery, on their way to the control: through a collector of its group, or put by
// itself. Which of these, and when, is decided in job/recovery/report_groups.h.
//
// One connection of the purpose `report` for a recovery, made when it is first needed. On the loop's thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "job/daemon/connection.h"
#include "job/daemon/dial.h"
#include "job/daemon/node_context.h"
#include "job/membership/node_report.h"
#include "job/recovery/report_groups.h"
#include "job/transport/messages.h"

namespace pawl::job {

class ReportSender {
 public:
  struct Handlers {
    std::function<Hello(Purpose)> hello;
    // Where this node is the collector itself: `answered(true)` when the report is with the control.
    std::function<void(NodeReport, std::function<void(bool taken)> answered)> collect_here;
  };
  ReportSender(Loop& loop, NodeContext& context, Handlers handlers)
      : loop_(loop), context_(context), handlers_(std::move(handlers)) {}

  // `record` is what the node's own key would have, of the state's generation. `then`, once: it is with the control, or could
  // not be put there; then report it again. While a report of that kind and generation is under way, or there, another one
  // is not sent, and its `then` not called.
  void report(ReportKind kind, std::string record, std::function<void(Status)> then);
  void on_state();  // of another phase

 private:
  struct Course {
    NodeReport report;
    SendingView view;
    std::vector<Member> collectors;
    std::function<void(Status)> then;
    Duration begun{};
    Duration acknowledged_at{};
    std::uint64_t number = 0;
    bool failed = false;
  };
  struct Line {
    Member to;
    std::unique_ptr<Dial> dial;
    std::shared_ptr<Connection> connection;
    bool welcomed = false;
    std::vector<Frame> waiting;  // to be sent then
  };
  void step(ReportKind kind);
  void step_later(Duration delay, ReportKind kind, std::uint64_t number);
  void send(Course& course);
  void put(Course& course);
  void tell(Course& course, const Status& outcome);
  void connect(const Member& to);
  void on_frame(const Frame& frame);
  void answered(std::uint64_t number, bool taken);
  void lose_line();
  [[nodiscard]] Course* course_of(std::uint64_t number);

  Loop& loop_;
  NodeContext& context_;
  const Handlers handlers_;
  std::map<ReportKind, Course> courses_;
  std::unique_ptr<Line> line_;
  std::uint64_t numbers_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace pawl::job
