// `pawl run`: checks the options and makes a plan of them; launcher.cc carries it out.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <sstream>

#include "base/text.h"
#include "checkpoint/formats/native/store_view.h"
#include "checkpoint/store/checkpoint_folder.h"
#include "cli/job/commands.h"
#include "cli/job/launcher.h"
#include "cli/job/namespaces.h"
#include "cli/job/own_host.h"
#include "cli/job/run_directory.h"
#include "cli/job/trainer_command.h"
#include "env/files.h"
#include "env/network.h"
#include "env/random.h"
#include "job/daemon/keeper_output.h"
#include "job/persist/checkpoint_places.h"
#include "job/persist/checkpoint_store.h"
#include "job/persist/persist_record.h"
#include "job/recovery/classes.h"
#include "job/redundancy/failure_domains.h"
#include "job/redundancy/protection.h"

namespace pawl::job {
namespace {

constexpr std::uint64_t kPersistBytesMin = std::uint64_t{1} << 20;
constexpr std::uint64_t kAutoKept = 2;  // of --every auto
constexpr int kControlPort = 2379;      // in a fabric of our own, so nobody else can have them
constexpr int kNodePort = 7000;
constexpr const char* kEveryDefault = "10m";
constexpr std::string_view kGraceDefault = "60s";
constexpr std::uint64_t kGraceMsMin = 2000;
constexpr std::uint64_t kGraceMsMax = 86400000;

Error usage(std::string sentence) {
  return {Code::invalid, std::move(sentence)};
}

// With --nnodes N:M it is N: spares hold nothing before they have a seat.
std::uint32_t replicas_of(const RunOptions& options) {
  if (!options.redundancy.empty())
    if (const auto policy = parse_redundancy(options.redundancy); policy && policy->scheme == RedundancyScheme::copies)
      return policy->losses;
  return options.replica_count.value_or(std::min(1U, options.node_count - 1));
}

// What trainers and daemons can do by now. The plan knows more (job/redundancy/protection.h).
Status check_redundancy(const RunOptions& options) {
  if (options.redundancy.empty()) return {};
  const auto policy = parse_redundancy(options.redundancy);
  if (!policy) return usage(text("--redundancy ", policy.error().what));
  const bool is_copies = policy->scheme == RedundancyScheme::copies || policy->scheme == RedundancyScheme::automatic;
  if (is_copies && !policy->cut_own) return {};
  return usage(text("--redundancy ", options.redundancy, ": ",
                    is_copies ? "a job does not cut its own copies yet" : "parity is not built yet",
                    "; use copies:", policy->losses));
}

Status check_replicas(const RunOptions& options) {
  const std::uint32_t count = replicas_of(options);
  const std::uint32_t others = options.node_count - 1;
  if (count > 0 && others == 0)
    return usage(text("--replicas ", count,
                      ": replicas lie on other nodes, and --nnodes 1 has none, so at most 0 are "
                      "possible: leave out --replicas, or let more nodes train"));
  if (count > others)
    return usage(text("--replicas ", count, ": ", options.node_count, " nodes can hold at most ", others,
                      " of each seat, one on each other node"));
  return {};
}

// Torchrun's meeting points, where several nodes are wanted and no control is named.
std::vector<UnusedFlag> meeting_points(const RunOptions& options) {
  const bool one_node = options.node_count == 1 && options.node_count_max.value_or(1) == 1;
  if (one_node || options.standalone || !options.control.empty()) return {};
  std::vector<UnusedFlag> points;
  for (const UnusedFlag& unused : options.without_effect)
    if (unused.flag == "--rdzv-endpoint" || unused.flag == "--master-addr") points.push_back(unused);
  return points;
}

constexpr const char* kSeveralMachines =
    "machines of a pawl job find each other through a control: start etcd or "
    "`pawl control`, and pass --control HOST:PORT, --job, --token-file and --node-rank instead "
    "(docs/user/operate.md)";

// A command line of torchrun's for several machines, which without a control would start a whole job on each.
Status check_no_meeting_elsewhere(const RunOptions& options) {
  for (const auto& [flag, value] : meeting_points(options))
    if (host_kind(host_of(value)) == HostKind::another)
      return usage(
          text(flag, " ", value, ": ", kSeveralMachines, ". To run all nodes on this machine, pass --standalone"));
  return {};
}

// One machine's command line may name that machine; the first machine's of several does, too.
void say_that_all_run_here(const RunOptions& options) {
  for (const auto& [flag, value] : meeting_points(options)) {
    if (host_kind(host_of(value)) != HostKind::own) continue;
    say(text(flag, " ", value, " is this machine, so all nodes of the job run here (--standalone, without this note). ",
             "On several machines: ", kSeveralMachines));
    return;
  }
}

Status check(const RunOptions& options) {
  if (options.node_count == 0) return usage("--nnodes 0: a job needs at least one node");
  if (options.node_count_max && *options.node_count_max < options.node_count)
    return usage(
        text("--nnodes ", options.node_count, ":", *options.node_count_max, ": the greater number comes second"));
  if (options.seats_per_node == 0) return usage("--nproc-per-node 0: a node needs at least one trainer");
  PAWL_TRY(check_redundancy(options));
  PAWL_TRY(check_replicas(options));
  if (options.deadline_ms < 200 || options.deadline_ms > 600000)
    return usage(text("--deadline-ms ", options.deadline_ms, ": expected 200 to 600000"));
  if (options.start_timeout_s < 1 || options.start_timeout_s > 86400)
    return usage(text("--start-timeout ", options.start_timeout_s, ": expected 1 to 86400 seconds"));
  if (options.gate_off && !options.test_hooks)
    return usage("--gate-off loses data and is for tests only: it needs --test-hooks");
  if (options.standalone && !options.control.empty())
    return usage("--standalone starts its own control: leave out --control, or leave out --standalone");
  PAWL_TRY(check_no_meeting_elsewhere(options));
  const bool alone = options.control.empty();
  if (alone && options.node_rank)
    return usage(
        "--node-rank: with one `pawl run` per machine, name the control with --control HOST:PORT; to run all nodes on "
        "this machine, leave out --node-rank");
  if (!alone && !options.node_rank) return usage("--control: also pass --node-rank, the number of this machine's node");
  if (alone && !options.listen.empty())
    return usage("--listen: only possible with --control; on one machine pawl chooses the addresses");
  return {};
}

// "500" steps, or "90s", "10m", "2h", or "auto".
struct Interval {
  std::uint64_t steps = 0;
  std::uint64_t ms = 0;
  bool is_auto = false;
};

Result<Interval> interval_of(std::string_view every) {
  if (every == "auto") return Interval{0, 0, true};
  std::uint64_t unit_ms = 0;
  const char last = every.empty() ? '0' : every.back();
  if (last == 's') unit_ms = 1000;
  if (last == 'm') unit_ms = 60'000;
  if (last == 'h') unit_ms = 3'600'000;
  std::uint64_t number = 0;
  if (!parse_number(every.substr(0, every.size() - (unit_ms > 0 ? 1 : 0)), number) || number == 0 ||
      number > 1000000000)
    return usage(
        text("--every ", every, ": expected a number of steps, such as 500, a time, such as 90s, 10m or 2h, or auto"));
  return unit_ms > 0 ? Interval{0, number * unit_ms, false} : Interval{number, 0, false};
}

// "60s", "5m", "1h".
Result<std::uint64_t> grace_of(std::string_view grace) {
  const Result<Interval> time = interval_of(grace);
  if (!time || time->ms < kGraceMsMin || time->ms > kGraceMsMax)
    return usage(text("--grace ", grace, ": expected a time between 2s and 24h, such as 60s or 5m"));
  return time->ms;
}

std::string absolute(const std::string& path) {
  if (is_in_object_storage(path)) return path.substr(0, path.find_last_not_of('/') + 1);
  const char* here = std::getenv("PWD");
  return path.empty() || path.front() == '/' ? path : text(here != nullptr ? here : ".", "/", path);
}

// Those that look whole, by their steps, the newest first.
std::vector<Step> sound_in(std::span<const checkpoint::ListedCheckpoint> listed) {
  std::vector<Step> steps;
  for (const std::uint64_t step : checkpoint::sound_steps(listed)) steps.emplace_back(step);
  std::ranges::reverse(steps);
  return steps;
}

// Of the history that was written last, so that a job goes on with what the last one did. It must not begin with something else
// because the newest can't be looked at now; nor guess, where one of two says nothing of its history.
Result<std::vector<Step>> newest_history(const std::vector<checkpoint::ListedCheckpoint>& listed) {
  const checkpoint::ListedCheckpoint* const last = checkpoint::last_written(listed);
  if (last == nullptr) return std::vector<Step>();
  if (last->is_unknown)
    return Error{Code::io, text("--resume auto: the newest checkpoint can't be looked at: ", last->damage,
                                "; name the one to begin with by --resume DIR/step-N")};
  for (const checkpoint::ListedCheckpoint& one : listed) {
    if (!one.finished || one.step <= last->step || (!one.damage.empty() && !one.is_unknown)) continue;
    if (one.identity.id.empty() || last->identity.id.empty())
      return Error{Code::invalid, text("--resume auto: ", one.path, " has the greatest step, but ", last->path,
                                       " was written later, and they don't say whether one led to the other: name the "
                                       "one to begin with by --resume DIR/step-N")};
    say(text("--resume auto: ", last->path, " was written last; ", one.path, " is of a history that was left"));
  }
  std::vector<Step> steps;
  if (last->identity.id.empty()) {
    std::vector<checkpoint::ListedCheckpoint> others = listed;
    std::erase_if(others, [](const checkpoint::ListedCheckpoint& one) { return !one.identity.id.empty(); });
    steps = sound_in(others);
  } else {
    steps = sound_in(checkpoint::history_of(listed, *last));
  }
  if (steps.empty())
    return Error{Code::corrupt, text("--resume auto: ", last->path, " was written last, is damaged (", last->damage,
                                     "), and none that led to it is sound: name the one to begin with by --resume "
                                     "DIR/step-N")};
  if (!last->damage.empty())
    say(text("--resume auto: ", last->path, " is damaged (", last->damage, "): begins with step ", steps.front(),
             ", which led to it"));
  return steps;
}

// With what it begins.
Status name_resume(const RunOptions& options, JobSpec& spec) {
  if (options.resume.empty()) return {};
  const bool automatic = options.resume == "auto";
  if (automatic && options.checkpoint.empty())
    return usage(
        "--resume auto: name the folder of the checkpoints with --checkpoint DIR, or the checkpoint itself with "
        "--resume DIR/step-N");
  std::string folder = absolute(automatic ? options.checkpoint : parent_path(absolute(options.resume)));
  if (!automatic && !path_exists(folder) && !is_in_object_storage(folder))
    return usage(text("--resume ", options.resume, ": ", folder, " is not there"));
  Result<std::vector<checkpoint::ListedCheckpoint>> found = list_job_checkpoints(folder);
  if (!found) return std::move(found).error().within("--resume");
  const std::vector<checkpoint::ListedCheckpoint> listed = std::move(*found);
  std::vector<Step> steps = sound_in(listed);
  if (automatic) {
    PAWL_ASSIGN(steps, newest_history(listed));
  } else {
    const std::string path = join_path(folder, last_name(absolute(options.resume)));
    std::erase_if(steps, [&](Step step) { return checkpoint_path(folder, step) != path; });
    if (steps.empty())
      return usage(text("--resume ", options.resume,
                        ": there is no checkpoint that a job wrote (DIR/step-N); `pawl ls ", folder,
                        "` lists those that are there"));
  }
  if (steps.empty()) return {};
  spec.checkpoints.resume_step = steps.front();
  spec.checkpoints.resume_path = checkpoint_path(folder, steps.front());
  const std::size_t older = std::min(steps.size() - 1, kOlderMax);
  spec.checkpoints.resume_older.assign(steps.begin() + 1, steps.begin() + 1 + static_cast<std::ptrdiff_t>(older));
  return {};
}

// Of how many seats the job is that it goes on from, where this one has more or fewer.
void tell_other_world(const JobSpec& spec) {
  if (spec.checkpoints.resume_step == Step(0)) return;
  const auto manifest = checkpoint::read_store_manifest(spec.checkpoints.resume_path);
  const std::uint32_t there = manifest ? seat_count_in(*manifest) : 0, here = spec.node_count * spec.seats_per_node;
  if (there == 0 || there == here) return;
  say(text("goes on from step ", spec.checkpoints.resume_step, " of a job of ", there, " seats; this one has ", here));
}

// Which of them stay.
Status name_retention(const RunOptions& options, JobSpec& spec) {
  if (options.checkpoint.empty() && (options.keep_last || options.keep_every))
    return usage(text(options.keep_last ? "--keep-last" : "--keep-every",
                      ": also name the folder of the checkpoints with --checkpoint DIR"));
  if (options.keep_every && !options.keep_last)
    return usage("--keep-every: also say with --keep-last K how many of the newest are kept");
  if (options.keep_last == 0u) return usage("--keep-last 0: at least 1, the newest, has to stay");
  if (options.keep_every == 0u) return usage("--keep-every 0: expected a number of steps, such as 5000");
  spec.checkpoints.keep_last = options.keep_last.value_or(0);
  spec.checkpoints.keep_every = options.keep_every.value_or(0);
  return {};
}

// What is written where, how often, and for how long at the end.
Status name_checkpoints(const RunOptions& options, LaunchPlan& plan) {
  JobSpec& spec = plan.spec;
  PAWL_TRY(name_resume(options, spec));
  tell_other_world(spec);
  PAWL_TRY(name_retention(options, spec));
  if (options.checkpoint.empty()) {
    if (options.persist_bytes_a_second > 0)
      return usage("--persist-bandwidth: also name the folder of the checkpoints with --checkpoint DIR");
    for (const auto& [flag, value] : {std::pair("--every", &options.every), std::pair("--grace", &options.grace)})
      if (!value->empty()) return usage(text(flag, ": also name the folder of the checkpoints with --checkpoint DIR"));
    return {};
  }
  PAWL_ASSIGN(plan.grace_ms, grace_of(options.grace.empty() ? kGraceDefault : std::string_view(options.grace)));
  PAWL_ASSIGN(const Interval every, interval_of(options.every.empty() ? kEveryDefault : options.every));
  spec.checkpoints.path = absolute(options.checkpoint);
  spec.checkpoints.every_steps = every.steps;
  spec.checkpoints.every_ms = every.ms;
  spec.checkpoints.every_auto = every.is_auto;
  if (options.persist_bytes_a_second > 0 && options.persist_bytes_a_second < kPersistBytesMin)
    return usage("--persist-bandwidth: at least 1MiB; a step's slot is kept until it is written");
  spec.checkpoints.bytes_a_second = options.persist_bytes_a_second;
  if (every.is_auto && !options.keep_last) {  // else they fill any disk
    PAWL_ASSIGN(const std::vector<checkpoint::ListedCheckpoint> there, list_job_checkpoints(spec.checkpoints.path));
    if (!sound_in(there).empty())
      return usage(text("--every auto keeps the newest ", kAutoKept, " checkpoints, and ", spec.checkpoints.path,
                        " holds some already, which this job would remove: say with --keep-last K how many are kept"));
    spec.checkpoints.keep_last = kAutoKept;
    say(text("--every auto: the newest ", kAutoKept, " checkpoints are kept (--keep-last K for another number)"));
  }
  const bool goes_on =
      spec.checkpoints.resume_step > Step(0) && parent_path(spec.checkpoints.resume_path) == spec.checkpoints.path;
  if (Status claimed = claim_checkpoints(spec.checkpoints.path, spec.job, spec.token_digest, goes_on); !claimed)
    return std::move(claimed).error().within("--checkpoint");
  return {};
}

std::uint32_t spares_of(const RunOptions& options) {
  if (options.spare_count) return *options.spare_count;
  return options.node_count_max ? *options.node_count_max - options.node_count : 0;
}

JobSpec spec_of(const RunOptions& options, const std::string& job, const std::string& token) {
  JobSpec spec;
  spec.job = job;
  spec.node_count = options.node_count;
  spec.seats_per_node = options.seats_per_node;
  spec.spare_count = spares_of(options);
  spec.replica_count = replicas_of(options);
  spec.fewer_domains = options.fewer_domains;
  spec.memory_bytes = options.memory_bytes;
  spec.replica_bytes_a_second = options.replica_bytes_a_second;
  spec.wait_for_spare = !options.no_wait;
  spec.test_hooks = options.test_hooks;
  spec.gate_off = options.gate_off;
  spec.deadline_ms = options.deadline_ms;
  spec.hang_ms = options.hang_ms;
  spec.start_ms = options.start_timeout_s * 1000;
  spec.token_digest = token_digest(token);
  return spec;
}

LaunchPlan plan_of(const RunOptions& options, const std::string& job, const std::string& token) {
  LaunchPlan plan;
  plan.spec = spec_of(options, job, token);
  plan.token = token;
  plan.keep = options.keep;
  plan.log_dir = absolute(options.log_dir);
  plan.tee = options.tee.value_or(kTeeFirstSeat | kTeeStdout | kTeeStderr);
  plan.daemon_command = options.daemon_command;
  return plan;
}

Result<DomainTable> read_domains(const std::string& path) {
  const Result<std::string> file = read_file(path);
  if (!file) return Error{Code::invalid, file.error().what}.within("--domains");
  Result<DomainTable> table = parse_domains(*file);
  if (!table) return std::move(table).error().within(text("--domains ", path));
  return table;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// Of the node that is started here, by its own environment.
Result<std::string> domain_here(const std::string& source) {
  if (source == "slurm")
    return domain_in_slurm(variable("SLURM_TOPOLOGY_ADDR"), variable("SLURM_TOPOLOGY_ADDR_PATTERN"));
  std::string name = variable("PAWL_DOMAIN");
  if (name.empty()) return usage("--domains env: set PAWL_DOMAIN to the name of this node's failure domain");
  PAWL_TRY(check_domain(name));
  return name;
}

// The lowest nodes train, where all are there. Refused here it costs nobody's time; who knows only its own domain learns it
// when the job forms.
Status check_domains(const JobSpec& spec, const DomainTable& table) {
  std::vector<std::string> names;
  for (std::uint32_t node = 0; node < spec.node_count; ++node) names.push_back(table.at(NodeId(node)));
  const std::vector<std::uint32_t> numbers = numbers_of_domains(names);
  const std::uint32_t there = 1 + std::ranges::max(numbers);
  if (there > spec.replica_count || spec.replica_count == 0 || spec.fewer_domains) return {};
  return usage(text("--domains: with ", spec.replica_count, spec.replica_count == 1 ? " copy" : " copies",
                    " each seat's state must lie in ", spec.replica_count + 1, " failure domains, and nodes 0 to ",
                    spec.node_count - 1, " are in ", there,
                    ": name more domains, keep fewer copies (--redundancy copies:", there - 1,
                    "), or accept that copies share a domain (--fewer-domains)"));
}

// Of the nodes that are started here.
Status name_domains(const RunOptions& options, LaunchPlan& plan) {
  if (options.domains.empty()) return {};
  if (options.domains == "env" || options.domains == "slurm") {
    if (options.control.empty())
      return usage(text("--domains ", options.domains,
                        ": all nodes run on this machine, in one environment; name their domains in a file"));
    plan.spec.domains = options.domains;
    PAWL_ASSIGN(plan.nodes.front().domain, domain_here(options.domains));
    return {};
  }
  PAWL_ASSIGN(const DomainTable table, read_domains(options.domains));
  const std::uint32_t count = plan.spec.node_count + (options.control.empty() ? plan.spec.spare_count : 0);
  for (std::uint32_t node = 0; node < count; ++node)
    if (!table.contains(NodeId(node)))
      return usage(text("--domains ", options.domains, ": node ", node, " is in no line"));
  for (NodePlan& node : plan.nodes) {
    const auto found = table.find(node.node);
    if (found == table.end()) return usage(text("--domains ", options.domains, ": node ", node.node, " is in no line"));
    node.domain = found->second;
  }
  plan.spec.domains = text("file:", digest_of(table));
  return check_domains(plan.spec, table);
}

Status store_token(const LaunchPlan& plan) {
  return write_file_atomically(join_path(plan.directory, "token"), plan.token);
}

// A fabric with all nodes, where that is allowed; `fabric` must live as long as the nodes.
Status place_nodes(const RunOptions& options, LaunchPlan& plan, Fabric& fabric) {
  const std::uint32_t count = plan.spec.node_count + plan.spec.spare_count;
  if (count > kFabricNodesMax)
    return usage(text(count, " nodes on one machine: at most ", kFabricNodesMax, " are possible"));
  std::string why = "switched off";
  if (is_in_object_storage(options.checkpoint) || is_in_object_storage(options.resume)) {
    why = "object storage can't be reached from them";
    if (options.namespaces == Namespaces::require) return usage(text("--namespaces require: ", why));
  } else if (options.namespaces != Namespaces::off) {
    Result<Fabric> made = make_fabric(count);
    plan.namespaces = made.has_value();
    if (made)
      fabric = std::move(made).value();
    else
      why = made.error().what;
    if (!plan.namespaces && options.namespaces == Namespaces::require)
      return Error{Code::io, text("namespaces are required and can't be had: ", why)};
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    if (plan.namespaces)
      plan.nodes.push_back(
          {NodeId(i), text(fabric_node_address(i), ":", kNodePort), fabric.nodes[i].get(), fabric.links[i]});
    else
      plan.nodes.push_back({NodeId(i), text("127.0.1.", 10 + i, ":0"), -1, ""});
  }
  if (!plan.namespaces)
    say(text("no namespaces (", why,
             "): the nodes share this machine's network, on loopback addresses 127.0.1.10 and up"));
  plan.hosts_file = join_path(plan.directory, "hosts");
  return write_file_atomically(plan.hosts_file, fabric_hosts(count));
}

Result<std::string> control_address(bool namespaces) {
  if (namespaces) return text(kFabricAddress, ":", kControlPort);
  // It must be known before the control runs, so that a control that died comes back at the same place.
  PAWL_ASSIGN(const Fd probe, listen_tcp({"127.0.1.1", 0}));
  PAWL_ASSIGN(const Address address, local_address(probe.get()));
  return text(address);
}

Result<int> run_standalone(const RunOptions& options, std::vector<std::string> trainer) {
  const std::string job = options.job.empty() ? text("job-", random_hex(3)) : options.job;
  LaunchPlan plan = plan_of(options, job, random_hex(32));
  plan.trainer_argv = std::move(trainer);
  PAWL_ASSIGN(plan.directory, make_job_directory(job));
  Fabric fabric;
  const auto prepare = [&]() -> Status {
    PAWL_TRY(store_token(plan));
    PAWL_TRY(place_nodes(options, plan, fabric));
    PAWL_TRY(name_domains(options, plan));
    PAWL_TRY(name_checkpoints(options, plan));
    PAWL_ASSIGN(plan.endpoints, control_address(plan.namespaces));
    return {};
  };
  if (Status prepared = prepare(); !prepared) {
    (void)remove_tree(run_root(), plan.directory);  // the error that counts is the first
    return std::move(prepared).error();
  }
  plan.own_endpoints = text("unix:", join_path(plan.directory, "control.sock"));
  plan.control_argv = {"control",
                       "--listen",
                       text(plan.endpoints, ",", plan.own_endpoints),
                       "--data-dir",
                       join_path(plan.directory, "control"),
                       "--token-file",
                       join_path(plan.directory, "token")};
  plan.restart_dead_nodes = options.restart_dead_nodes.value_or(true);
  return launch(plan);
}

// Our own address on the way to the control: what the others can surely reach.
Result<std::string> address_towards(const std::string& endpoints) {
  std::istringstream list(endpoints);
  Error last{Code::invalid, "--control: no address named"};
  for (std::string endpoint; std::getline(list, endpoint, ',');) {
    if (endpoint.starts_with("unix:")) return std::string("127.0.0.1:0");
    PAWL_ASSIGN(const Address address, Address::parse(endpoint));
    const Result<Fd> connected = connect_tcp(address, Deadline::in(std::chrono::seconds(3)));
    if (connected) {
      PAWL_ASSIGN(Address own, local_address(connected->get()));
      own.port = 0;
      return text(own);
    }
    last = connected.error();
  }
  return Error{Code::unreachable,
               text("control ", endpoints, ": ", last.what,
                    ": start it there (`pawl control` or etcd), or check --control and the network")};
}

Result<std::string> shared_token(const RunOptions& options) {
  const char* variable = std::getenv("PAWL_TOKEN_FILE");
  const std::string path = !options.token_file.empty() ? options.token_file : variable != nullptr ? variable : "";
  if (path.empty())
    return usage(
        "no token: nodes on several machines need a shared secret; name its file with --token-file or PAWL_TOKEN_FILE "
        "(make one: head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \\n' > F; "
        "chmod 600 F)");
  return read_token(path);
}

Result<int> run_member(const RunOptions& options, std::vector<std::string> trainer) {
  if (options.job.empty()) return usage("--job: with --control the job needs a name, the same on every machine");
  PAWL_ASSIGN(const std::string token, shared_token(options));
  LaunchPlan plan = plan_of(options, options.job, token);
  plan.trainer_argv = std::move(trainer);
  std::string listen = options.listen;
  if (listen.empty()) {
    PAWL_ASSIGN(listen, address_towards(options.control));
  }
  PAWL_ASSIGN(const Address checked, Address::parse(listen));
  if (checked.host == "0.0.0.0" || checked.host == "::")
    return usage(text("--listen ", listen, ": use the address at which the other nodes reach this machine"));
  plan.nodes.push_back({NodeId(*options.node_rank), listen, -1, ""});
  PAWL_TRY(name_domains(options, plan));
  PAWL_TRY(name_checkpoints(options, plan));
  if (Status fits = check_records_of(plan.spec, listen.size(), plan.nodes.front().domain.size()); !fits)
    return usage(text("--nnodes ", plan.spec.node_count, ": ", fits.error().what));
  PAWL_ASSIGN(plan.directory, make_job_directory(options.job));
  if (Status stored = store_token(plan); !stored) return std::move(stored).error();
  plan.endpoints = plan.own_endpoints = options.control;
  plan.may_join = true;
  plan.restart_dead_nodes = options.restart_dead_nodes.value_or(false);
  return launch(plan);
}

// To every keeper and pawld that is started from here (job/daemon/trainer_watch.h).
Status pass_on_signs(const std::string& path) {
  if (path.empty()) return {};
  const Result<std::string> lines = read_file(path);
  if (!lines) return Error{lines.error()}.within("--failure-signs");
  if (auto signs = parse_signs(*lines); !signs) return std::move(signs).error().within(text("--failure-signs ", path));
  ::setenv("PAWL_FAILURE_SIGNS", absolute(path).c_str(), 1);
  return {};
}

}  // namespace

int command_run(const RunOptions& options) {
  if (!options.health_check.empty()) ::setenv("PAWL_HEALTH_CHECK", options.health_check.c_str(), 1);
  if (Status checked = check(options); !checked) return usage_error(checked.error().what);
  if (Status passed = pass_on_signs(options.failure_signs); !passed) return usage_error(passed.error().what);
  Result<std::vector<std::string>> trainer = trainer_command(options);
  if (!trainer)
    return trainer.error().code == Code::invalid ? usage_error(trainer.error().what) : report_error(trainer.error());
  if (!options.job.empty())
    if (Status named = check_job_name(options.job); !named) return usage_error(named.error().what);
  if (!options.replica_count && replicas_of(options) == 0)
    say("one node trains, so no other holds replicas: a trainer that dies is started again, a lost node ends the job");
  for (const UnusedFlag& unused : options.without_effect) say(text(unused.flag, " has no effect in pawl"));
  say_that_all_run_here(options);
  const Result<int> code = options.control.empty() ? run_standalone(options, std::move(trainer).value())
                                                   : run_member(options, std::move(trainer).value());
  if (code) return *code;
  return code.error().code == Code::invalid ? usage_error(code.error().what) : report_error(code.error());
}

}  // namespace pawl::job
