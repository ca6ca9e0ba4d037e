#include "job/daemon/report_collector.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace pawl::job {

Counter& reports_refused(Metrics& metrics) {
  return metrics.counter("reports_refused_total",
                         "Reports of nodes that a collector brought or was sent, and that could not be taken.");
}

ReportCollector::ReportCollector(NodeContext& context)
    : refused_(reports_refused(context.metrics)), context_(context) {}

void ReportCollector::refuse(const Answered& answered, std::string_view why) {
  refused_.add();
  log_warn("report_refused", "why", why);
  answered(false);
}

void ReportCollector::on_report(NodeLife from, const std::string& text, Answered answered) {
  auto report = parse_node_report(text);
  if (!report) return refuse(answered, report.error().what);
  if (report->life != from) return refuse(answered, "of another life than sends it");
  collect(std::move(*report), std::move(answered));
}

// Whoever sends it has seen a later state than this node.
bool ReportCollector::is_too_early(const NodeReport& report) const {
  const JobMirror& mirror = context_.mirror;
  if (!mirror.has_state() || report.generation > mirror.generation()) return true;
  return report.generation == mirror.generation() && report.kind == ReportKind::ready &&
         mirror.is_in(JobPhase::quiescing);
}

void ReportCollector::collect(NodeReport report, Answered answered) {
  const Whose whose{report.kind, report.life};
  if (is_too_early(report)) {
    early_.insert_or_assign(whose, Early{std::move(report), std::move(answered)});
    return;
  }
  const JobMirror& mirror = context_.mirror;
  if (report.generation < mirror.generation()) return refuse(answered, "of a generation that is over");
  if (!mirror.is_in(phase_of(report.kind))) return answered(false);  // nobody waits for it any more
  if (std::exchange(generation_, mirror.generation()) != mirror.generation()) {
    collected_.clear();
    unput_.clear();
  }
  const auto group =
      report_group_of(mirror.state(), mirror.roster(), mirror.ring(), context_.self, mirror.reports.group_size());
  if (!group || std::ranges::find(group->survivors, report.life, &Member::life) == group->survivors.end())
    return refuse(answered, "of a node outside the group");
  std::string written = to_text(report);
  const auto [known, fresh] = collected_.try_emplace(whose, Collected{written});
  Collected& one = known->second;
  if (one.text != written) return refuse(answered, "another one of that node was collected");
  if (one.with_control) return answered(true);
  one.answers.push_back(std::move(answered));
  if (!fresh) return;
  unput_.push_back(whose);
  if (has_all(report.kind)) return put_all();
  if (std::exchange(put_planned_, true)) return;
  context_.after(report_waits(context_.deadlines).collect, [this] {
    put_planned_ = false;
    put_all();
  });
}

bool ReportCollector::has_all(ReportKind kind) const {
  const JobMirror& mirror = context_.mirror;
  const auto group =
      report_group_of(mirror.state(), mirror.roster(), mirror.ring(), context_.self, mirror.reports.group_size());
  return group && std::ranges::all_of(group->survivors, [&](const Member& member) {
           return collected_.contains({kind, member.life});
         });
}

void ReportCollector::put_all() {
  if (generation_ != context_.mirror.generation()) return;
  std::vector<Whose> batch;
  std::size_t bytes = 0;
  for (const Whose& whose : std::exchange(unput_, {})) {
    const std::size_t size = collected_.at(whose).text.size() + 1;
    if (bytes + size > kCollectedBytesMax) {
      put(std::exchange(batch, {}));
      bytes = 0;
    }
    batch.push_back(whose);
    bytes += size;
  }
  if (!batch.empty()) put(std::move(batch));
}

void ReportCollector::put(std::vector<Whose> whose) {
  std::vector<std::string> texts;
  for (const Whose& each : whose) texts.push_back(collected_.at(each).text);
  const JobMirror& mirror = context_.mirror;
  // No pawld of this life has used it: the machine was not up for so long.
  last_serial_ = std::max(last_serial_ + 1, static_cast<std::uint64_t>(context_.clock->boottime().count()));
  const std::uint32_t group = mirror.my_position() / mirror.reports.group_size();
  context_.control->put(collected_key(mirror.keys(), generation_, group, context_.self.node, last_serial_),
                        join_reports(texts),
                        [this, generation = generation_, whose = std::move(whose)](const Status& done) {
                          on_put(generation, whose, done.has_value());
                        });
}

void ReportCollector::on_put(Generation generation, const std::vector<Whose>& whose, bool done) {
  if (generation != generation_) return;
  for (const Whose& each : whose) {
    Collected& one = collected_.at(each);
    one.with_control = done;
    const std::vector<Answered> answers = std::exchange(one.answers, {});
    if (!done) collected_.erase(each);
    for (const Answered& answer : answers) answer(done);
  }
}

void ReportCollector::on_state() {
  for (auto& [whose, early] : std::exchange(early_, {})) collect(std::move(early.report), std::move(early.answered));
}

}  // namespace pawl::job
