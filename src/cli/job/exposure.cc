// `pawl exposure`: what would be lost if these nodes died now. The planner of a real recovery answers, from what the
// daemons' memory holds at this moment. Nothing is frozen, so reality can only be better than this answer.
#include <algorithm>

#include "base/text.h"
#include "cli/job/commands.h"
#include "cli/job/job_view.h"
#include "cli/output.h"
#include "env/clock.h"
#include "job/recovery/members.h"
#include "job/recovery/planner.h"
#include "job/recovery/survival.h"

namespace pawl::job {
namespace {

constexpr int kLooksMax = 20;
constexpr Duration kLookPause = std::chrono::milliseconds(5);

struct Case {
  std::vector<NodeId> dead;
  Exposure exposure;
  std::string domain = {};  // of which these are all members; empty: named by the user, or alone
};

// How many more may die, and which seats that is due to.
struct Margin {
  std::vector<NodeId> dead;  // before; empty: now
  Survival survival;
};

std::vector<NodeId> members_of(const JobState& state) {
  std::vector<NodeId> nodes;
  for (const Member& member : state.seats)
    if (std::find(nodes.begin(), nodes.end(), member.life.node) == nodes.end()) nodes.push_back(member.life.node);
  return nodes;
}

std::string names_of(const std::vector<NodeId>& nodes) {
  std::string names;
  for (const NodeId node : nodes) names += text(names.empty() ? "" : ",", node);
  return names;
}

// Each domain that has several members, by its first.
std::vector<Case> cases_of_domains(const JobState& state) {
  std::vector<Case> cases;
  for (const Member& member : state.seats) {
    if (member.domain.empty()) continue;
    auto found = std::ranges::find(cases, member.domain, &Case::domain);
    if (found == cases.end()) found = cases.insert(cases.end(), {{}, {}, member.domain});
    if (!contains(found->dead, member.life.node)) found->dead.push_back(member.life.node);
  }
  std::erase_if(cases, [](const Case& one) { return one.dead.size() < 2; });
  return cases;
}

std::string sentence_of(const Margin& margin, bool has_domains) {
  const std::string when = margin.dead.empty() ? "now" : text("after the death of node ", names_of(margin.dead));
  const char* const one = has_domains ? "failure domain" : "node";
  if (!margin.survival.whole) return text(when, ": the planned copies no longer have all state");
  const std::uint32_t count = margin.survival.domains;
  const std::vector<Seat>& weakest = margin.survival.weakest;
  const std::vector<Seat> named(
      weakest.begin(), weakest.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(weakest.size(), 8)));
  return text(when, ": ",
              count == 0 ? text("no further ", one, " may be lost")
                         : text("any ", count, ' ', one, count == 1 ? "" : "s", " may be lost at once"),
              ", because of seat ", numbers_of(named),
              weakest.size() > named.size() ? text(" and ", weakest.size() - named.size(), " more") : "");
}

json document_of(const Margin& margin) {
  json dead = json::array();
  for (const NodeId node : margin.dead) dead.push_back(node.value);
  json weakest = json::array();
  for (const Seat seat : margin.survival.weakest) weakest.push_back(seat.value);
  return {{"dead", dead},
          {"whole", margin.survival.whole},
          {"may_be_lost", margin.survival.domains},
          {"weakest_seats", weakest}};
}

json document_of(const JobView& view, Step committed, const std::vector<Case>& cases,
                 const std::vector<Margin>& margins, const std::vector<std::string>& silent) {
  json list = json::array();
  for (const Case& one : cases) {
    json dead = json::array();
    for (const NodeId node : one.dead) dead.push_back(node.value);
    list.push_back({{"dead", dead},
                    {"domain", one.domain},
                    {"recoverable", one.exposure.recoverable},
                    {"resume", one.exposure.resume.value},
                    {"steps_lost", one.exposure.steps_lost},
                    {"lost", one.exposure.lost}});
  }
  json survives = json::array();
  for (const Margin& margin : margins) survives.push_back(document_of(margin));
  return {{"job", view.spec.job},
          {"committed", committed.value},
          {"redundancy", redundancy_document(view)},
          {"survives", survives},
          {"cases", list},
          {"silent", silent}};
}

std::string table_of(const JobView& view, Step committed, const std::vector<Case>& cases,
                     const std::vector<Margin>& margins, const std::vector<std::string>& silent) {
  std::string out = text("committed step ", committed, ", ", redundancy_line(view), "\n");
  if (margins.empty()) out += "nothing is committed yet: no death is survived with state\n";
  for (const Margin& margin : margins) out += sentence_of(margin, !view.spec.domains.empty()) + "\n";
  for (const std::string& sentence : silent) out += sentence + "\n";
  std::vector<std::vector<std::string>> rows = {{"IF THESE DIE", "RECOVERABLE", "RESUME", "STEPS LOST", "LOST"}};
  for (const Case& one : cases) {
    std::string lost;
    for (const std::string& shard : one.exposure.lost) lost += text(lost.empty() ? "" : "; ", shard);
    rows.push_back({text(one.domain.empty() ? "" : one.domain + ": ", "node ", names_of(one.dead)),
                    one.exposure.recoverable ? "yes" : "NO", one.exposure.recoverable ? text(one.exposure.resume) : "-",
                    one.exposure.recoverable ? text(one.exposure.steps_lost) : "all", lost});
  }
  return out + "\n" + table(rows);
}

struct Holdings {
  JobView view;
  std::vector<Inventory> inventories;
  std::vector<std::string> silent;
  Step committed;
};

Result<Holdings> look(const JobAccess& access) {
  Holdings found;
  PAWL_ASSIGN(found.view, view_job(access, "inventory"));
  const std::optional<JobState>& state = found.view.state;
  if (!state || state->seats.empty())
    return Error{Code::not_found, text("job ", found.view.spec.job, " has not begun: nothing is held yet")};
  found.committed = state->committed;
  for (const NodeView& node : found.view.nodes) {
    if (!node.answer.is_object()) {
      found.silent.push_back(text("node ", node.record.life.node, " was not asked: ", node.why_not));
      continue;
    }
    Result<Inventory> inventory = parse_inventory(string_in(node.answer, "inventory"));
    if (!inventory) return std::move(inventory).error().within(text("node ", node.record.life.node));
    found.committed = std::max(found.committed, inventory->committed);
    found.inventories.push_back(std::move(inventory).value());
  }
  return found;
}

// Nodes are asked one after the other, and steps go on meanwhile. Where all that hold something know the same step to be
// committed, the answers are as good as one moment's: no node gives up a slot of that step before it knows a greater one
// to be committed (the gate).
bool is_one_moment(const Holdings& found) {
  return std::ranges::all_of(found.inventories, [&](const Inventory& inventory) {
    return inventory.items.empty() ||
           (inventory.committed == found.committed && inventory.generation == found.view.state->generation);
  });
}

Result<Holdings> look_until_one_moment(const JobAccess& access) {
  Result<Holdings> found = look(access);
  for (int again = 0; found && !is_one_moment(*found) && again < kLooksMax; ++again) {
    real_clock().sleep(kLookPause);
    found = look(access);
  }
  if (found && !is_one_moment(*found))
    found->silent.emplace_back("the nodes went on while they were asked: what is shown may be a step too pessimistic");
  return found;
}

}  // namespace

int command_exposure(const ExposureOptions& options) {
  const Result<JobAccess> access = find_job(options.job);
  if (!access) return report_error(access.error());
  const Result<Holdings> found = look_until_one_moment(*access);
  if (!found) return report_error(found.error());
  const auto& [view_found, inventories, silent, committed] = *found;
  const JobView* view = &view_found;
  const PlanInput input{static_cast<std::uint32_t>(view->state->seats.size()),
                        inventories,
                        view->state->lineage,
                        view->state->struck,
                        view->state->evicted,
                        view->state->committed,
                        view->state->seats,
                        view->spec.replica_count};
  std::vector<Case> cases;
  if (!options.dead_nodes.empty()) {
    cases.emplace_back();
    for (const std::uint32_t node : options.dead_nodes) cases.back().dead.emplace_back(node);
  } else {
    for (const NodeId node : members_of(*view->state)) cases.push_back({{node}, {}});
    for (Case& one : cases_of_domains(*view->state)) cases.push_back(std::move(one));
  }
  bool all_recoverable = true;
  for (Case& one : cases) {
    one.exposure = exposure_if(input, one.dead, committed);
    all_recoverable &= one.exposure.recoverable;
  }
  const ProtectionPlan plan = plan_of_copies(view->state->seats, view->spec.replica_count);
  const auto margin_after = [&](const std::vector<NodeId>& dead) {
    return Margin{dead, survival_if(plan, input, dead, exposure_if(input, dead, committed).resume)};
  };
  std::vector<Margin> margins;  // of what is committed
  if (committed != Step(0)) margins.push_back(margin_after({}));
  if (committed != Step(0) && !options.dead_nodes.empty()) margins.push_back(margin_after(cases.front().dead));
  if (options.job.json)
    print(document_of(*view, committed, cases, margins, silent).dump() + "\n");
  else
    print(table_of(*view, committed, cases, margins, silent));
  return all_recoverable ? kExitOk : kExitDegraded;
}

}  // namespace pawl::job
