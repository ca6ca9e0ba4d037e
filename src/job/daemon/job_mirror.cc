#include "job/daemon/job_mirror.h"

#include <algorithm>
#include <utility>

#include "base/json_access.h"
#include "job/recovery/duties.h"
#include "job/recovery/suspicion.h"

namespace pawl::job {

namespace {

std::optional<TrainerEnd> trainer_end_in(Seat seat, const std::string& value) {
  const json record = json::parse(value, nullptr, false);
  if (!member_of(record, "detail").is_string()) return std::nullopt;
  TrainerEnd end{seat, Generation(number_in(record, "generation")), string_in(record, "detail")};
  end.step = Step(number_in(record, "step"));
  end.failure = string_in(record, "failure");
  end.times = static_cast<std::uint32_t>(std::min<std::uint64_t>(number_in(record, "times"), kSameEndsMax));
  end.failure_class = failure_class_named(string_in(record, "class")).value_or(FailureClass::trainer_process);
  end.remedy = string_in(record, "remedy");
  return end;
}

}  // namespace

std::string to_json(const TrainerEnd& end) {
  const json record{{"generation", end.generation.value},
                    {"detail", end.detail},
                    {"step", end.step.value},
                    {"failure", end.failure},
                    {"times", end.times},
                    {"class", name_of(end.failure_class)},
                    {"remedy", end.remedy}};
  return record.dump(-1, ' ', false, json::error_handler_t::replace);  // a trainer says what it likes
}

JobMirror::Change JobMirror::learn(JobState state, Revision revision, Duration now) {
  if (revision <= state_revision_) return {};
  Change change;
  change.state = true;
  change.generation = !state_ || state.generation != state_->generation;
  change.phase = change.generation || state.phase != state_->phase;
  state_revision_ = revision;
  state_ = std::move(state);
  news_.at = now;
  if (change.generation) {
    accusations_.clear();
    faults.clear();
  }
  if (change.phase) state_since_ = now;
  roster_ = Roster(*state_);
  learn_ring();
  own_seats_ = seats_of(*state_, self_);
  reports.expect(*state_, roster_, ring_);
  nodes.note_state(*state_, roster_, now);
  return change;
}

// When they came is not known, so whoever takes a turn to lead goes on with it.
JobMirror::Change JobMirror::apply_nodes(const Listing& listing, Duration now) {
  Change change;
  change.nodes = true;
  const Duration news_at = news_.at;
  std::map<NodeId, NodeRecord> before = nodes.begin_listing();
  for (const KeyValue& kv : listing.kvs) (void)apply(kv.key, &kv.value, kv.mod_revision, now);
  nodes.end_listing(before, now);
  if (state_) nodes.note_state(*state_, roster_, now);
  news_.at = news_at;
  return change;
}

// When they came is not known, so whoever takes a turn to lead goes on with it.
void JobMirror::apply_reports(const Listing& listing, Duration now) {
  const Duration news_at = news_.at;
  reports.clear();
  for (const KeyValue& kv : listing.kvs) (void)apply(kv.key, &kv.value, kv.mod_revision, now);
  news_.at = news_at;
}

JobMirror::Change JobMirror::apply(const std::string& key, const std::string* value, Revision revision, Duration now) {
  Change change;
  if (key == keys_.state()) {
    if (value == nullptr || revision <= state_revision_) return change;
    auto state = beside.read(*value);
    if (state) {
      beside.note_named(sheet_named_by(*value), revision);
      return learn(std::move(*state), revision, now);
    }
    if (state.error().code == Code::stale)
      change.unread = revision;
    else
      change.refused = state.error().what;
    return change;
  }
  if (BesideState::has_key(keys_, key)) {
    if (value == nullptr) return change;
    BesideState::Taken taken = beside.take(keys_, key, *value, revision);
    change.refused = std::move(taken.refused);
    change.spoiled = taken.spoiled;
    return change;
  }
  if (key.starts_with(keys_.all_progress())) return change;
  if (key.rfind(keys_.all_accusations(), 0) != 0) {
    news_.at = now;
    news_.newest = std::max(news_.newest, revision);
  }
  if (NodeId node; id_after(keys_.nodes(), key, node)) {
    auto record = value != nullptr ? parse_node_record(*value) : Result<NodeRecord>(Error{Code::not_found, ""});
    nodes.note(node, record ? &*record : nullptr, now);
    change.nodes = true;
  } else {
    apply_record(key, value, change);
  }
  return change;
}

// Of which a later one takes the place of an earlier one, and that nobody erases but the leader when they are over.
void JobMirror::apply_record(const std::string& key, const std::string* value, Change& change) {
  NodeId node;
  Seat seat;
  if (state_ && key.rfind(keys_.accusations(state_->generation), 0) == 0) {
    auto accusation = value != nullptr ? parse_accusation(*value) : Result<Accusation>(Error{Code::not_found, ""});
    if (accusation)
      accusations_[key] = *accusation;
    else
      accusations_.erase(key);
  } else if (value == nullptr) {
    return;
  } else if (state_ && id_after(keys_.inventories(state_->generation), key, node)) {
    if (const auto inventory = parse_inventory(*value)) reports.note(*inventory);
  } else if (state_ && id_after(keys_.readies(state_->generation), key, node)) {
    reports.note_ready({node, incarnation_in_ready(*value)});
  } else if (const auto group = state_ ? group_in_collected_key(keys_, state_->generation, key) : std::nullopt) {
    reports.note_collected(*group, key, *value);
  } else if (state_ && id_after(keys_.faults(state_->generation), key, seat)) {
    if (const auto report = parse_fault_report(*value)) faults.insert_or_assign(report->seat, *report);
  } else if (key == keys_.stop()) {
    stop_.stop_step = Step(number_in(json::parse(*value, nullptr, false), "step"));
    change.stop = true;
  } else if (state_ && id_after(keys_.stop_acks(state_->generation), key, node)) {
    stop_.told[node] = state_->generation;
  } else if (id_after(keys_.finishes(), key, seat)) {
    const json record = json::parse(*value, nullptr, false);
    const SeatFinish finish{Generation(number_in(record, "generation")), Step(number_in(record, "step")),
                            flag_in(record, "committed")};
    if (finish.generation.value > 0) finishes_.note(seat, finish);
  } else if (id_after(keys_.exits(), key, seat)) {
    if (const auto end = trainer_end_in(seat, *value)) note_end(*end);
  }
}

JobMirror::Change JobMirror::apply_all(const Listing& listing, Duration now) {
  Change all;
  const News before = news_;
  const KeyValue* state = nullptr;
  for (const KeyValue& kv : listing.kvs)
    if (kv.key == keys_.state()) state = &kv;
  BesideState::Taken taken = beside.take_all(keys_, listing);
  all.refused = std::move(taken.refused);
  if (state != nullptr && all.refused.empty()) all = apply(state->key, &state->value, state->mod_revision, now);
  all.spoiled = taken.spoiled;
  // Revisions only grow, and nobody erases the state: it is the control that is not the one it was.
  all.lost = state_ && (state == nullptr || listing.revision < state_revision_);

  accusations_.clear();
  faults.clear();
  stop_.told.clear();
  finishes_.clear();
  ends_.clear();
  for (const KeyValue& kv : listing.kvs) {
    if (&kv == state || BesideState::has_key(keys_, kv.key)) continue;
    const Change change = apply(kv.key, &kv.value, kv.mod_revision, now);
    all.stop = all.stop || change.stop;
  }
  // One that brings nothing new is no news: whoever takes a turn to lead lists, and goes on with it.
  if (news_.newest == before.newest && !all.state && !all.lost) news_.at = before.at;
  return all;
}

std::vector<NodeRecord> records_of_others(const JobMirror& mirror) {
  std::vector<NodeRecord> others;
  for (const auto& [node, record] : mirror.registrations().nodes)
    if (!mirror.roster().is_survivor(record.life)) others.push_back(record);
  return others;
}

std::vector<TrainerEnd> JobMirror::ends() const {
  std::vector<TrainerEnd> all;
  for (const auto& [seat, end] : ends_) all.push_back(end);
  return all;
}

std::optional<TrainerEnd> JobMirror::end_of(Seat seat) const {
  const auto found = ends_.find(seat);
  return found != ends_.end() ? std::optional(found->second) : std::nullopt;
}

const Source* JobMirror::source_of(Seat seat) const {
  const auto sources = state_ ? sources_of(state_->sources, seat) : std::span<const Source>();
  return sources.empty() ? nullptr : &sources.front();
}

void JobMirror::learn_ring() {
  const bool formed = state_ && !state_->seats.empty();
  ring_ = formed ? ring_of(state_->seats, spec_.replica_count) : ring_of(spec_);
  nodes.set_seats_per_node_max(ring_.seats_per_node_max());
}

std::optional<std::uint32_t> JobMirror::position_of(NodeId node) const {
  const auto seat = roster_.lowest_seat_of(node);
  return seat ? std::optional(ring_.position_of(*seat)) : std::nullopt;
}

std::optional<NodeId> JobMirror::node_at(std::uint32_t position) const {
  if (!state_ || state_->seats.empty() || position >= ring_.position_count()) return std::nullopt;
  return state_->seats[ring_.first_seat(position).value].life.node;
}

std::vector<Accusation> JobMirror::accusations() const {
  std::vector<Accusation> all;
  for (const auto& [key, accusation] : accusations_) all.push_back(accusation);
  return all;
}

std::vector<Member> JobMirror::linked_members() const {
  return state_ ? watched_by(*state_, registrations(), self_) : std::vector<Member>();
}

const Links& JobMirror::links() const {
  const std::pair as_of(state_revision_, registrations().changes);
  if (state_ && std::exchange(links_.as_of, as_of) != as_of) links_.links = links_of(*state_, registrations(), self_);
  return links_.links;
}

}  // namespace pawl::job
