#include "cli/job/job_view.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <string_view>
#include <thread>

#include "base/text.h"
#include "env/clock.h"
#include "env/files.h"
#include "env/network.h"
#include "job/daemon/orders.h"
#include "job/recovery/members.h"
#include "job/recovery/survival.h"
#include "job/redundancy/protection.h"
#include "job/transport/messages.h"

namespace pawl::job {
namespace {

constexpr Duration kAnswerWithin = std::chrono::milliseconds(1500);
constexpr std::size_t kAskedAtOnce = 64;  // daemons, by a thread each
constexpr int kReadsMax = 10;             // of a state and its topology, which may move in between

Result<Fd> connect_daemon(const NodeRecord& record, Deadline deadline, bool& local) {
  // A node of this machine may have an address that only its own network knows, or that is another's here.
  local = !record.local_path.empty() && path_exists(parent_path(parent_path(record.local_path)));
  if (local) return connect_unix(record.local_path, deadline);
  PAWL_ASSIGN(const Address address, Address::parse(record.address));
  return connect_tcp(address, deadline);
}

void ask_all(JobView& view, const std::string& token, const char* question) {
  std::atomic<std::size_t> next = 0;
  const auto ask = [&] {
    for (std::size_t i = next++; i < view.nodes.size(); i = next++) {
      NodeView& node = view.nodes[i];
      if (!node.registered) {
        node.why_not = "not registered";
        continue;
      }
      Result<json> answer = ask_daemon(node.record, token, {{"ask", question}});
      if (answer)
        node.answer = std::move(answer).value();
      else
        node.why_not = answer.error().what;
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < std::min(view.nodes.size(), kAskedAtOnce); ++i) threads.emplace_back(ask);
  for (std::thread& thread : threads) thread.join();
}

// Members that are not registered any more are shown, too: that is what people look for.
void add_missing_members(JobView& view) {
  if (!view.state) return;
  for (const Member& member : view.state->seats) {
    const bool there = std::any_of(view.nodes.begin(), view.nodes.end(),
                                   [&](const NodeView& node) { return node.record.life.node == member.life.node; });
    if (there) continue;
    NodeView missing;
    missing.record.life = member.life;
    missing.record.address = member.address;
    missing.record.domain = member.domain;
    missing.registered = false;
    view.nodes.push_back(std::move(missing));
  }
  std::sort(view.nodes.begin(), view.nodes.end(),
            [](const NodeView& a, const NodeView& b) { return a.record.life < b.record.life; });
}

json seat_document(const Member& member, const JobView& view) {
  json seat = {{"seat", member.seat.value}, {"node", member.life.node.value}, {"local_index", member.local_index}};
  for (const NodeView& node : view.nodes) {
    if (node.record.life.node != member.life.node) continue;
    for (const json& trainer : array_in(node.answer, "trainers"))
      if (trainer.is_object() && number_in(trainer, "local_index") == member.local_index)
        for (const auto& [key, value] : trainer.items())
          seat.emplace(key == "held" ? "parked" : key, value);  // by a test hook; a seat's "held" is its step
    for (const json& held : array_in(node.answer, "seats"))
      if (held.is_object() && number_in(held, "seat") == member.seat.value)
        for (const auto& [key, value] : held.items()) seat.emplace(key, value);
  }
  return seat;
}

}  // namespace

Result<json> ask_daemon(const NodeRecord& record, const std::string& token, json question) {
  const Deadline deadline = Deadline::in(kAnswerWithin);
  bool local = false;
  PAWL_ASSIGN(const Fd fd, connect_daemon(record, deadline, local));
  if (!local) question["token"] = token;
  const std::string request = encode_frame(frame_of(QuestionMessage{question.dump()}, 1));
  PAWL_TRY(send_all(fd.get(), std::as_bytes(std::span(request)), deadline));
  PAWL_ASSIGN(const Frame frame, receive_frame(fd.get(), deadline));
  json answer = json::parse(frame.payload, nullptr, false);
  if (!is<AnswerMessage>(frame) || !answer.is_object())
    return Error{Code::corrupt, text("node ", record.life.node, ": its answer is not understood")};
  if (const std::string error = string_in(answer, "error"); !error.empty())
    return Error{Code::invalid, text("node ", record.life.node, ": ", error)};
  return answer;
}

Status StateReader::learn_topology_of(const KeyValue& state) {
  const auto named = topology_named_by(state.value);
  if (!named || (topology_ && topology_->generation == *named)) return {};
  const Result<KeyValue> there = control_.get(keys_.topology(*named));
  if (!there && there.error().code != Code::not_found) return there.error();
  if (!there) return {};  // the state that names it is not the newest any more
  PAWL_ASSIGN(topology_, parse_topology(there->value));
  return {};
}

Status StateReader::learn_sheet_of(const KeyValue& state) {
  const auto named = sheet_named_by(state.value);
  if (!named || (sheet_ && sheet_->name == *named)) return {};
  const std::string key = sheet_key(keys_, *named);
  const Result<KeyValue> there = control_.get(key);
  if (!there && there.error().code != Code::not_found) return there.error();
  sheet_ = there ? sheet_in(keys_, key, there->value) : std::nullopt;  // none: read anew
  return {};
}

Result<JobState> StateReader::read(std::optional<KeyValue> there) {
  Result<JobState> read = Error{Code::not_found, ""};
  for (int i = 0; i < kReadsMax; ++i) {
    if (!there) {
      PAWL_ASSIGN(there, control_.get(keys_.state()));
    }
    PAWL_TRY(learn_topology_of(*there));
    PAWL_TRY(learn_sheet_of(*there));
    read = read_state(there->value, topology_ ? &*topology_ : nullptr, sheet_ ? &*sheet_ : nullptr);
    revision_ = there->mod_revision;
    if (read || read.error().code != Code::stale) break;
    there.reset();  // the state has moved between the two
    sheet_.reset();
    topology_.reset();  // or the job is another one of this name
  }
  return read;
}

Result<JobState> read_job_state(Control& control, const JobKeys& keys) {
  return StateReader(control, keys).read();
}

Result<JobView> read_job(const JobAccess& access) {
  const JobKeys keys(access.job);
  JobView view;
  const Result<KeyValue> spec = access.control->get(keys.spec());
  if (!spec && spec.error().code == Code::not_found)
    return Error{Code::not_found, text("the control ", access.endpoints, " knows no job ", access.job)};
  if (!spec) return Error{spec.error().code, text("control ", access.endpoints, ": ", spec.error().what)};
  PAWL_ASSIGN(view.spec, parse_job_spec(spec->value));
  Result<JobState> state = read_job_state(*access.control, keys);
  if (state)
    view.state = std::move(*state);
  else if (state.error().code != Code::not_found)
    return state.error();
  PAWL_ASSIGN(const Listing nodes, access.control->list(keys.nodes()));
  for (const KeyValue& kv : nodes.kvs) {
    NodeView node;
    PAWL_ASSIGN(node.record, parse_node_record(kv.value));
    view.nodes.push_back(std::move(node));
  }
  add_missing_members(view);
  PAWL_ASSIGN(const Listing listed, access.control->list(keys.orders()));
  Orders orders(access.job);
  orders.apply_all(listed);
  view.cordoned = orders.cordoned();
  view.leaving = orders.drains().leaving;
  return view;
}

Result<JobView> view_job(const JobAccess& access, const char* question) {
  PAWL_ASSIGN(JobView view, read_job(access));
  ask_all(view, access.token, question);
  return view;
}

json redundancy_document(const JobView& view) {
  ProtectionPolicy policy;
  policy.losses = view.spec.replica_count;
  json document = {{"policy", to_text(policy)},
                   {"domains_from", view.spec.domains},
                   {"domains", 0},
                   {"plan", ""},
                   {"shared", json::array()}};
  if (!view.state || view.state->seats.empty()) return document;
  const Ring ring = ring_of(view.state->seats, view.spec.replica_count);
  std::set<std::string_view> domains;  // where the members stand; planned copies may rest on more
  for (const Member& member : view.state->seats) domains.insert(member.domain);
  document["domains"] = view.spec.domains.empty() ? std::size_t{ring.domain_count()} : domains.size();
  document["plan"] = digest_in_hex(plan_of_copies(view.state->seats, view.spec.replica_count).digest);
  for (const SharedDomain& shared : shared_domains(view.state->seats, ring))
    document["shared"].push_back(to_text(shared, ring));
  return document;
}

std::string redundancy_line(const JobView& view) {
  const json document = redundancy_document(view);
  std::string line = text("redundancy ", string_in(document, "policy"));
  const std::uint64_t domains = number_in(document, "domains");
  if (!view.spec.domains.empty() && domains > 0)
    line += text(" over ", domains, domains == 1 ? " failure domain" : " failure domains");
  if (const std::string plan = string_in(document, "plan"); !plan.empty()) line += text(", plan ", plan);
  return line;
}

json status_document(const JobView& view) {
  json nodes = json::array();
  std::uint64_t committed = view.state ? view.state->committed.value : 0;
  for (const NodeView& node : view.nodes) {
    json entry = node.answer.is_object() ? node.answer : json::object();
    entry["node"] = node.record.life.node.value;
    entry["registered"] = node.registered;
    entry["domain"] = node.record.domain;
    entry["cordoned"] = contains(view.cordoned, node.record.life.node);
    entry["draining"] = contains(view.leaving, node.record.life);
    if (!node.answer.is_object()) {
      entry["incarnation"] = node.record.life.incarnation.value;
      entry["address"] = node.record.address;
      entry["keeper_pid"] = node.record.keeper_pid;
      entry["pawld_pid"] = node.record.pawld_pid;
      entry["error"] = node.why_not;
    }
    committed = std::max(committed, number_in(entry, "committed"));
    nodes.push_back(std::move(entry));
  }
  json document = {{"job", view.spec.job},
                   {"phase", view.state ? name_of(view.state->phase) : "forming"},
                   {"generation", 0},
                   {"committed", committed},
                   {"resume", 0},
                   {"leader", nullptr},
                   {"waiting", ""},
                   {"verdict", ""},
                   {"redundancy", redundancy_document(view)},
                   {"spec", json::parse(to_json(view.spec), nullptr, false)},
                   {"nodes", std::move(nodes)},
                   {"cordoned", json::array()},
                   {"draining", json::array()},
                   {"seats", json::array()}};
  for (const NodeId node : view.cordoned) document["cordoned"].push_back(node.value);
  for (const NodeLife& life : view.leaving) document["draining"].push_back(life.node.value);
  if (!view.state) return document;
  document["generation"] = view.state->generation.value;
  document["resume"] = view.state->resume.value;
  document["leader"] = view.state->leader.node.value;
  document["waiting"] = view.state->waiting;
  document["verdict"] = view.state->verdict;
  for (const Member& member : view.state->seats) document["seats"].push_back(seat_document(member, view));
  return document;
}

std::vector<std::string> degradations(const JobView& view, const json& document) {
  std::vector<std::string> why;
  const std::string phase = string_in(document, "phase");
  if (phase == "finished") return why;
  if (phase != "running") why.push_back(text("it is ", phase));
  std::uint32_t spares = 0;
  for (const json& node : array_in(document, "nodes")) {
    if (!flag_in(node, "registered"))
      why.push_back(text("node ", number_in(node, "node"), " is gone"));
    else if (const std::string error = string_in(node, "error"); !error.empty())
      why.push_back(text("node ", number_in(node, "node"), " does not answer: ", error));
    const std::string unhealthy = string_in(node, "unhealthy");
    if (!unhealthy.empty()) why.push_back(text("node ", number_in(node, "node"), " gets no seats: ", unhealthy));
    if (string_in(node, "role") == "spare" && !flag_in(node, "cordoned") && unhealthy.empty()) ++spares;
    for (const json& exposed : array_in(node, "exposed"))
      if (exposed.is_string()) why.push_back(exposed.get<std::string>());
  }
  if (spares < view.spec.spare_count) why.push_back(text(spares, " of ", view.spec.spare_count, " spares are there"));
  std::sort(why.begin(), why.end());
  why.erase(std::unique(why.begin(), why.end()), why.end());
  return why;
}

}  // namespace pawl::job
