#include "job/daemon/job_mirror.h"

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "job/recovery/duties.h"

namespace pawl::job {

using Json = nlohmann::json;

namespace {

std::uint64_t number_in(const Json& object, const char* name) {
  return object.is_object() && object.contains(name) && object[name].is_number_unsigned()
             ? object[name].get<std::uint64_t>()
             : 0;
}

}  // namespace

JobMirror::Change JobMirror::learn(const JobState& state, Revision revision, Duration now) {
  if (revision <= state_revision_) return {};
  Change change;
  change.state = true;
  change.generation = !state_ || state.generation != state_->generation;
  change.phase = change.generation || state.phase != state_->phase;
  state_revision_ = revision;
  state_ = state;
  if (change.generation) {
    inventories_.clear();
    readies_.clear();
  }
  if (change.phase) state_since_ = now;
  return change;
}

JobMirror::Change JobMirror::apply(const std::string& key, const std::string* value, Revision revision, Duration now) {
  auto number_after = [&](const std::string& prefix, std::uint64_t& number) {
    return key.rfind(prefix, 0) == 0 && parse_number(std::string_view(key).substr(prefix.size()), number);
  };
  Change change;
  std::uint64_t number = 0;
  if (key == keys_.state()) {
    if (value == nullptr) return {};
    auto state = parse_job_state(*value);
    if (state) return learn(*state, revision, now);
    change.refused = state.error().what;
  } else if (number_after(keys_.nodes(), number)) {
    const NodeId node(static_cast<std::uint32_t>(number));
    auto record = value != nullptr ? parse_node_record(*value) : Result<NodeRecord>(Error{Code::not_found, ""});
    if (record) {
      registrations_.nodes[node] = *record;
      registrations_.gone_since.erase(node);
    } else {
      registrations_.nodes.erase(node);
      registrations_.gone_since[node] = now;
    }
  } else if (value == nullptr) {
    return {};
  } else if (state_ && number_after(keys_.inventories(state_->generation), number)) {
    if (auto inventory = parse_inventory(*value)) inventories_[inventory->life.node] = *inventory;
  } else if (state_ && number_after(keys_.readies(state_->generation), number)) {
    readies_[NodeId(static_cast<std::uint32_t>(number))] = state_->generation;
  } else if (key == keys_.stop()) {
    stop_.stop_step = Step(number_in(Json::parse(*value, nullptr, false), "step"));
    change.stop = true;
  } else if (state_ && number_after(keys_.stop_acks(state_->generation), number)) {
    stop_.told[NodeId(static_cast<std::uint32_t>(number))] = state_->generation;
  } else if (number_after(keys_.finishes(), number)) {
    const Json json = Json::parse(*value, nullptr, false);
    const SeatFinish finish{Generation(number_in(json, "generation")), Step(number_in(json, "step")),
                            json.is_object() && json.value("committed", Json()) == true};
    if (finish.generation.value > 0) finishes_[Seat(static_cast<std::uint32_t>(number))] = finish;
  } else if (number_after(keys_.exits(), number)) {
    const Json json = Json::parse(*value, nullptr, false);
    const Seat seat(static_cast<std::uint32_t>(number));
    if (json.is_object() && json.contains("detail") && json["detail"].is_string())
      ends_[seat] = {seat, Generation(number_in(json, "generation")), json["detail"].get<std::string>()};
  }
  return change;
}

std::vector<NodeRecord> JobMirror::nodes() const {
  std::vector<NodeRecord> records;
  for (const auto& [id, record] : registrations_.nodes) records.push_back(record);
  return records;
}

std::vector<Inventory> JobMirror::inventories() const {
  std::vector<Inventory> all;
  for (const auto& [node, inventory] : inventories_) all.push_back(inventory);
  return all;
}

std::vector<NodeLife> JobMirror::ready_members() const {
  std::vector<NodeLife> ready;
  if (!state_) return ready;
  for (const Member& member : state_->seats)
    if (auto found = readies_.find(member.life.node); found != readies_.end() && found->second == state_->generation)
      ready.push_back(member.life);
  return ready;
}

std::vector<TrainerEnd> JobMirror::ends() const {
  std::vector<TrainerEnd> all;
  for (const auto& [seat, end] : ends_) all.push_back(end);
  return all;
}

bool JobMirror::is_member() const {
  return state_ && job::is_member(*state_, self_);
}

const Source* JobMirror::source_of(Seat seat) const {
  if (!state_) return nullptr;
  for (const Source& source : state_->sources)
    if (source.seat == seat) return &source;
  return nullptr;
}

RingOptions JobMirror::ring() const {
  return {spec_.node_count * spec_.seats_per_node, spec_.seats_per_node, spec_.replica_count};
}

std::optional<std::uint32_t> JobMirror::position_of(NodeId node) const {
  if (!state_) return std::nullopt;
  for (const Member& member : state_->seats)
    if (member.life.node == node) return ring_position(member.seat, ring());
  return std::nullopt;
}

std::optional<NodeId> JobMirror::node_at(std::uint32_t position) const {
  const std::size_t seat = std::size_t{position} * spec_.seats_per_node;
  if (!state_ || seat >= state_->seats.size()) return std::nullopt;
  return state_->seats[seat].life.node;
}

std::vector<Member> JobMirror::linked_members() const {
  std::vector<Member> wanted;
  if (!is_member() || is_over()) return wanted;
  for (const std::uint32_t position : linked_positions(my_position(), spec_.node_count)) {
    const std::size_t seat = std::size_t{position} * spec_.seats_per_node;
    if (seat < state_->seats.size() && !is_evicted(state_->seats[seat].life)) wanted.push_back(state_->seats[seat]);
  }
  return wanted;
}

}  // namespace pawl::job
