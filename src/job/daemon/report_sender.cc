#include "job/daemon/report_sender.h"

#include <utility>

namespace pawl::job {

void ReportSender::report(ReportKind kind, std::string record, std::function<void(Status)> then) {
  const JobMirror& mirror = context_.mirror;
  const auto known = courses_.find(kind);
  const bool again = known != courses_.end() && known->second.report.generation == mirror.generation();
  if (again && !known->second.failed) return;
  Course course;
  course.report = {kind, context_.self, mirror.generation(), std::move(record)};
  course.then = std::move(then);
  course.begun = context_.clock->now();
  course.number = ++numbers_;
  const auto group =
      report_group_of(mirror.state(), mirror.roster(), mirror.ring(), context_.self, mirror.reports.group_size());
  if (!again && group && course.report.record.size() <= kCollectedReportBytesMax) {
    course.collectors.assign(group->survivors.begin(), group->survivors.begin() + kCollectors);
    course.view.collectors = course.collectors.size();
    const ReportWaits waits = report_waits(context_.deadlines);
    course.view.delay = report_delay(mirror.my_position(), mirror.ring().position_count(), waits);
    step_later(waits.acknowledged, kind, course.number);
  }
  courses_.insert_or_assign(kind, std::move(course));
  step(kind);
}

void ReportSender::on_state() {
  const JobMirror& mirror = context_.mirror;
  std::erase_if(courses_, [&](const auto& each) { return each.second.report.generation != mirror.generation(); });
  if (!mirror.is_in(JobPhase::quiescing) && !mirror.is_in(JobPhase::restoring)) line_.reset();
}

void ReportSender::step_later(Duration delay, ReportKind kind, std::uint64_t number) {
  context_.after(delay, [this, kind, number, alive = std::weak_ptr(alive_)] {
    if (!alive.expired() && course_of(number) != nullptr) step(kind);
  });
}

ReportSender::Course* ReportSender::course_of(std::uint64_t number) {
  for (auto& [kind, course] : courses_)
    if (course.number == number) return &course;
  return nullptr;
}

void ReportSender::step(ReportKind kind) {
  Course& course = courses_.at(kind);
  const Duration now = context_.clock->now();
  course.view.since_begun = now - course.begun;
  course.view.since_acknowledged = now - course.acknowledged_at;
  const JobMirror& mirror = context_.mirror;
  course.view.phase_goes_on = mirror.generation() == course.report.generation && mirror.is_in(phase_of(kind));
  switch (next_sending_step(course.view, report_waits(context_.deadlines))) {
    case SendingStep::send_to_next:
      return send(course);
    case SendingStep::put_itself:
      return put(course);
    case SendingStep::wait:
    case SendingStep::done:
      return;
  }
}

void ReportSender::send(Course& course) {
  const Member& to = course.collectors[course.view.tried++];
  course.view.line_lost = false;
  if (to.life == context_.self) {
    handlers_.collect_here(course.report, [this, number = course.number, alive = std::weak_ptr(alive_)](bool taken) {
      if (!alive.expired()) answered(number, taken);
    });
    return;
  }
  const Frame frame = frame_of(CollectMessage{to_text(course.report)}, course.number);
  if (!line_ || line_->to.life != to.life) connect(to);
  if (!line_) {
    course.view.line_lost = true;
    return step(course.report.kind);
  }
  if (line_->welcomed)
    line_->connection->send(frame);
  else
    line_->waiting.push_back(frame);
}

void ReportSender::put(Course& course) {
  course.view.put = true;
  const NodeReport& report = course.report;
  context_.control->put(key_of(context_.mirror.keys(), report.kind, report.generation, context_.self.node),
                        report.record,
                        [this, number = course.number, alive = std::weak_ptr(alive_)](const Status& outcome) {
                          if (alive.expired()) return;
                          if (Course* one = course_of(number)) tell(*one, outcome);
                        });
}

void ReportSender::tell(Course& course, const Status& outcome) {
  // One that was acknowledged is told once; should its own put fail then, that is tried again.
  if (!outcome && course.view.acknowledged) {
    course.view.put = false;
    return step_later(report_waits(context_.deadlines).acknowledged, course.report.kind, course.number);
  }
  course.failed = !outcome;
  if (const auto then = std::exchange(course.then, nullptr)) then(outcome);
}

void ReportSender::answered(std::uint64_t number, bool taken) {
  Course* course = course_of(number);
  if (course == nullptr || course->view.acknowledged || course->view.put) return;
  const ReportKind kind = course->report.kind;
  if (!taken) {
    course->view.refused = true;
    return step(kind);
  }
  course->view.acknowledged = true;
  course->acknowledged_at = context_.clock->now();
  step_later(course->view.delay, kind, number);
  tell(*course, {});
}

// --- The line to a collector

void ReportSender::connect(const Member& to) {
  lose_line();
  const auto address = Address::parse(to.address);
  if (!address) return;
  line_ = std::make_unique<Line>();
  line_->to = to;
  Hello hello = handlers_.hello(Purpose::report);
  hello.expected = to.life.incarnation;
  line_->dial = Dial::start(loop_, *address, [this, hello](Result<std::unique_ptr<Stream>> connected) {
    if (!connected) return lose_line();
    line_->connection = Connection::make(
        loop_, std::move(*connected),
        {.on_frame = [this](Frame& frame) { on_frame(frame); }, .on_close = [this](const Error&) { lose_line(); }});
    line_->connection->send(frame_of(hello));
  });
}

void ReportSender::on_frame(const Frame& frame) {
  if (is<WelcomeMessage>(frame) && line_ && !line_->welcomed) {
    line_->welcomed = true;
    // A send that fails loses the line before it returns, and maybe begins another one.
    const auto connection = line_->connection;
    for (const Frame& waiting : std::exchange(line_->waiting, {})) connection->send(waiting);
    return;
  }
  if (is<CollectedMessage>(frame)) return answered(frame.id, true);
  if (is<PeerRefusedMessage>(frame) && frame.id != 0) return answered(frame.id, false);
  lose_line();  // it takes no reports of this node
}

// What was not acknowledged goes another way. In a handler of the line's own, too: dial and connection allow that.
void ReportSender::lose_line() {
  if (!line_) return;
  const NodeLife to = line_->to.life;
  if (line_->connection) line_->connection->close();
  line_.reset();
  std::vector<ReportKind> lost;
  for (auto& [kind, course] : courses_) {
    const bool sent_there = course.view.tried > 0 && course.collectors[course.view.tried - 1].life == to;
    if (!sent_there || course.view.acknowledged || course.view.put) continue;
    course.view.line_lost = true;
    lost.push_back(kind);
  }
  for (const ReportKind kind : lost) step(kind);
}

}  // namespace pawl::job
