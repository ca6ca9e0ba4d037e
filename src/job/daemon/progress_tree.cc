#include "job/daemon/progress_tree.h"

#include "base/text.h"
#include "job/transport/messages.h"

namespace pawl::job {

void ProgressTree::begin(Progress progress) {
  child_reports_.clear();
  last_report_.reset();
  report_ = {progress, 0, 0};
  set(progress);
  for (const auto& [node, heard] : heard_) take(node, heard);
}

bool ProgressTree::takes(Generation generation) const {
  return context_.mirror.has_state() && generation == context_.mirror.generation() &&
         generation == context_.followed.running;
}

void ProgressTree::report() {
  const JobMirror& mirror = context_.mirror;
  if (context_.ending || !context_.is_running() || !mirror.is_member()) return;
  SeatReport report = hooks_.own_report(progress_);
  const std::uint32_t mine = mirror.my_position();
  for (std::uint32_t child : {2 * mine + 1, 2 * mine + 2}) {
    const auto node = mirror.node_at(child);
    if (!node) continue;
    auto known = child_reports_.find(*node);
    report = combine(report, known != child_reports_.end() ? known->second : SeatReport{progress_, 0, 0});
  }
  if (hooks_.before_report && last_report_ != report) hooks_.before_report(report, !last_report_);
  if (mine == 0) {
    const Progress next = advance(progress_, report);
    if (next != progress_) set(next);
    return;
  }
  report_ = report;
  if (last_report_ == report) return;
  const auto parent = mirror.node_at((mine - 1) / 2);
  if (hooks_.send(*parent, frame_of(ReportMessage{mirror.generation(), report}))) last_report_ = report;
}

// Also what was given to a link that turned out to be cut: nobody tells that it did not arrive.
void ProgressTree::tick() {
  if (unsaid()) detour_.consider();
}

std::vector<NodeId> ProgressTree::neighbours() const {
  const JobMirror& mirror = context_.mirror;
  std::vector<NodeId> nodes;
  if (!mirror.has_state() || !mirror.is_member()) return nodes;
  const std::uint32_t mine = mirror.my_position();
  std::vector<std::uint32_t> positions = {2 * mine + 1, 2 * mine + 2};
  if (mine > 0) positions.push_back((mine - 1) / 2);
  for (const std::uint32_t position : positions)
    if (const auto node = mirror.node_at(position)) nodes.push_back(*node);
  return nodes;
}

void ProgressTree::set(Progress progress) {
  const bool committed = progress.committed != progress_.committed;
  progress_ = progress;
  bits_ = progress.pack();
  context_.committed = progress.committed;
  hooks_.show(progress, committed);
  const JobMirror& mirror = context_.mirror;
  const std::uint32_t mine = mirror.my_position();
  for (std::uint32_t child : {2 * mine + 1, 2 * mine + 2})
    if (const auto node = mirror.node_at(child))
      hooks_.send(*node, frame_of(ProgressMessage{mirror.generation(), progress}));
  if (committed) hooks_.on_committed();
}

void ProgressTree::on_report(NodeId child, Generation generation, const SeatReport& report) {
  if (!takes(generation)) return;
  const auto [known, first] = child_reports_.try_emplace(child, report);
  if (!first) known->second = merge(known->second, report);  // a link and the control may bring them in another order
  this->report();
}

void ProgressTree::on_progress(Generation generation, Progress progress) {
  if (!takes(generation)) return;
  const Progress next = join(progress_, progress);
  if (next == progress_) return;
  set(next);
  report();
}

void ProgressTree::on_key(const std::string& key, const std::string& value) {
  const std::string prefix = context_.mirror.keys().all_progress();
  if (!key.starts_with(prefix)) return;
  const std::string_view rest = std::string_view(key).substr(prefix.size());
  const std::size_t end = rest.find('/');
  std::uint64_t generation = 0;
  std::uint32_t node = 0;
  const auto news = parse_progress_news(value);
  if (!news || end == std::string_view::npos || !parse_number(rest.substr(0, end), generation) ||
      !parse_number(rest.substr(end + 1), node) || NodeId(node) == context_.self.node)
    return;
  Heard& heard = heard_[NodeId(node)];
  if (Generation(generation) < heard.generation) return;  // of a listing, which comes by the keys' texts
  heard = {Generation(generation), *news};                // kept for when it runs here
  take(NodeId(node), heard);
}

void ProgressTree::take(NodeId node, const Heard& heard) {
  if (!takes(heard.generation)) return;
  on_progress(heard.generation, heard.news.progress);
  const JobMirror& mirror = context_.mirror;
  const std::uint32_t mine = mirror.my_position();
  const auto position = mirror.position_of(node);
  if (position && (*position == 2 * mine + 1 || *position == 2 * mine + 2))
    on_report(node, heard.generation, heard.news.report);
}

// What links that do not stand should have brought to others.
std::optional<ProgressNews> ProgressTree::unsaid() const {
  if (context_.ending || !context_.is_running() || !takes(context_.mirror.generation())) return std::nullopt;
  for (const NodeId node : neighbours())
    if (hooks_.is_up && !hooks_.is_up(node)) return ProgressNews{report_, progress_};
  return std::nullopt;
}

void ProgressTree::on_link_up(NodeId node) {
  const JobMirror& mirror = context_.mirror;
  last_report_.reset();
  report();
  const std::uint32_t mine = mirror.my_position();
  const auto position = mirror.position_of(node);
  if (position && (*position == 2 * mine + 1 || *position == 2 * mine + 2))
    hooks_.send(node, frame_of(ProgressMessage{context_.followed.running, progress_}));
}

}  // namespace pawl::job
