// `pawl status`: nodes, seats, the protected step, waits at the fence.
#include <unistd.h>

#include "base/text.h"
#include "cli/job/commands.h"
#include "cli/job/job_view.h"
#include "cli/job/recovery_tally.h"
#include "cli/output.h"
#include "env/clock.h"

namespace pawl::job {
namespace {

std::string number(const json& object, const char* key) {
  return member_of(object, key).is_number() ? text(number_in(object, key)) : "-";
}
std::string name(const json& object, const char* key) {
  const std::string found = string_in(object, key);
  return found.empty() ? "-" : found;
}

std::string node_table(const json& document) {
  // A column more where failure domains are named.
  const bool has_domains = !string_in(member_of(document, "redundancy"), "domains_from").empty();
  std::vector<std::vector<std::string>> rows = {
      {"NODE", "ROLE", "LEASE", "KEEPER", "PAWLD", "TRAINERS", "ADDRESS", ""}};
  if (has_domains) rows.front().insert(rows.front().end() - 1, "DOMAIN");
  for (const json& node : array_in(document, "nodes")) {
    std::string trainers;
    for (const json& trainer : array_in(node, "trainers"))
      trainers += text(trainers.empty() ? "" : ",", number_in(trainer, "pid"));
    const bool answered = member_of(node, "lease_age_ms").is_number();
    const std::string role = text(name(node, "role"), flag_in(node, "draining")   ? ", draining"
                                                      : flag_in(node, "cordoned") ? ", cordoned"
                                                                                  : "");
    rows.push_back({number(node, "node"), role,
                    answered ? text(fixed(real_in(node, "lease_age_ms"), 0), " ms ago") : "-",
                    number(node, "keeper_pid"), number(node, "pawld_pid"), trainers.empty() ? "-" : trainers,
                    name(node, "address"), string_in(node, "error")});
    if (has_domains) rows.back().insert(rows.back().end() - 1, name(node, "domain"));
  }
  return table(rows);
}

// What took longest where a daemon decides; heartbeats and deaths wait meanwhile.
std::string loop_lines(const json& document) {
  std::string out;
  for (const json& node : array_in(document, "nodes")) {
    const json& loop = member_of(node, "loop");
    if (const std::uint64_t count = number_in(loop, "long_turns"); count > 0)
      out += text("node ", number(node, "node"), ": pawld was busy for more than 10 ms ", count, " times, at most ",
                  fixed(real_in(loop, "longest_ms"), 0), " ms (", name(loop, "longest_in"), ")\n");
  }
  return out.empty() ? out : "\n" + out;
}

std::string seat_table(const json& document) {
  std::vector<std::vector<std::string>> rows = {
      {"SEAT", "NODE", "PID", "STATE", "PHASE", "STEP", "PROTECTED", "HOLDERS", "FENCE WAIT (last, max)", "VOIDED"}};
  for (const json& seat : array_in(document, "seats")) {
    std::string holders;
    for (const json& holder : array_in(seat, "holders"))
      if (holder.is_number_unsigned()) holders += text(holders.empty() ? "" : ",", holder.get<std::uint64_t>());
    const json& wait = member_of(seat, "fence_wait_ms");
    rows.push_back(
        {number(seat, "seat"), number(seat, "node"), number(seat, "pid"), name(seat, "state"), name(seat, "phase"),
         number(seat, "step"), number(seat, "held"), holders.empty() ? "-" : holders,
         wait.is_object() ? text(fixed(real_in(wait, "last"), 2), " ms, ", fixed(real_in(wait, "max"), 2), " ms") : "-",
         number(member_of(seat, "windows"), "voided")});
  }
  return table(rows);
}

// Of a job that writes its own.
std::string checkpoint_line(const json& document) {
  for (const json& node : array_in(document, "nodes")) {
    const json& checkpoint = member_of(node, "checkpoint");
    if (!checkpoint.is_object()) continue;
    const std::uint64_t published = number_in(checkpoint, "published");
    std::string out = text("\ncheckpoints in ", string_in(checkpoint, "path"), ": ",
                           published > 0 ? text("step ", published, " is there") : "none yet");
    const std::string phase = string_in(checkpoint, "phase");
    if (phase != "idle")
      out += text(", step ", number_in(checkpoint, "step"), phase == "writing" ? " is being written" : " is next");
    if (number_in(checkpoint, "interval_ms") > 0)
      out += text("; the last two were ", (number_in(checkpoint, "interval_ms") + 500) / 1000, " s apart");
    if (number_in(checkpoint, "failures") > 0)
      out += text("; the last ", number_in(checkpoint, "failures"), " failed: ", string_in(checkpoint, "why"));
    return out;
  }
  return {};
}

std::string job_lines(const json& document, const std::vector<std::string>& why) {
  std::string out = text("job ", string_in(document, "job"), ": ", string_in(document, "phase"), ", generation ",
                         number_in(document, "generation"));
  const bool ended = string_in(document, "phase") == "finished" || string_in(document, "phase") == "failed";
  if (!ended) out += text(", protected step ", number_in(document, "committed"));
  const json& redundancy = member_of(document, "redundancy");
  if (!ended)
    out += text(", ", string_in(redundancy, "policy"),
                string_in(redundancy, "domains_from").empty()
                    ? ""
                    : text(" over ", number_in(redundancy, "domains"), " failure domains"));
  if (number_in(document, "resume") > 0) out += text(", last resumed from ", number_in(document, "resume"));
  out += checkpoint_line(document);
  if (const std::string waiting = string_in(document, "waiting"); !waiting.empty())
    out += text("\nwaiting for ", waiting);
  if (const std::string verdict = string_in(document, "verdict"); !verdict.empty()) out += text("\nverdict: ", verdict);
  for (const json& node : array_in(document, "nodes"))
    for (const json& wait : array_in(node, "waits")) out += "\n" + wait_text(wait);
  for (const std::string& reason : why) out += text("\ndegraded: ", reason);
  for (const json& node : array_in(document, "nodes"))
    for (const json& one : array_in(node, "stragglers"))
      out += text("\nstraggler: seat ", number_in(one, "seat"), " computes ", fixed(real_in(one, "own_ms"), 1),
                  " ms of each step; half of the seats need ", fixed(real_in(one, "median_ms"), 1), " ms or less");
  for (const json& node : array_in(document, "nodes"))
    for (const json& one : array_in(node, "differing")) out += "\n" + difference_text(one);
  return out + "\n";
}

int show(const JobAccess& access, bool as_json) {
  const Result<JobView> view = view_job(access, "status");
  if (!view) return report_error(view.error());
  json document = status_document(*view);
  const std::vector<std::string> why = degradations(*view, document);
  document["degraded"] = why;
  if (as_json)
    print(document.dump() + "\n");
  else
    print(job_lines(document, why) + "\n" + node_table(document) + "\n" + seat_table(document) + loop_lines(document));
  return why.empty() ? kExitOk : kExitDegraded;
}

}  // namespace

int command_status(const StatusOptions& options) {
  const Result<JobAccess> access = find_job(options.job);
  if (!access) return report_error(access.error());
  for (;;) {
    if (options.watch && !options.job.json && ::isatty(STDOUT_FILENO) == 1) print("\033[H\033[2J");
    const int code = show(*access, options.job.json);
    if (!options.watch || code == kExitNotFound) return code;
    if (access->launcher && !is_running(*access->launcher)) return code;
    real_clock().sleep(std::chrono::seconds(1));
  }
}

}  // namespace pawl::job
