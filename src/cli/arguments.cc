// The command line: parsed here and in checkpoint/arguments.cc only. job/commands.h and checkpoint/commands.h carry
// it out.
//
// CLI11 throws, so this and checkpoint/arguments.cc are compiled with exceptions; none leaves run_command_line.
#include "cli/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>

#include "base/text.h"
#include "cli/checkpoint/arguments.h"
#include "cli/job/commands.h"
#include "cli/job/drill_script.h"
#include "cli/output_flag.h"

namespace pawl {
namespace {

using namespace checkpoint;
using namespace job;

constexpr const char* kDescription =
    "pawl keeps a training job running when nodes die, and reads, converts and compares checkpoints of many formats.\n"
    "Exit codes: 0 ok, 1 failed or different, 2 wrong use, 3 not found, 4 degraded or incomplete.\n"
    "Guides: docs/user/ in the source tree.";

// "--nproc-per-node" -> also with underscores, as torchrun spells it.
std::string both(const std::string& flag) {
  std::string underscored = flag;
  std::replace(underscored.begin() + 2, underscored.end(), '-', '_');
  return underscored == flag ? flag : flag + "," + underscored;
}

// CLI11's own message for "-1" is "Could not convert".
std::string whole_number(const std::string& words) {
  std::uint64_t number = 0;
  return parse_number(std::string_view(words), number) ? ""
                                                       : text("\"", words, "\": expected a whole number from 0 on");
}

struct Everything {
  RunOptions run;
  std::string nnodes = "1", nproc = "1", namespaces = "auto", tee, redirects;
  std::uint32_t node_rank = 0, spares = 0, replicas = 0, drill_timeout_s = 60, node_timeout_s = 600;
  std::string rdzv_id;
  KeeperCommandOptions keeper;
  DaemonCommandOptions daemon;
  ControlCommandOptions control;
  StatusOptions status;
  ExposureOptions exposure;
  EventsOptions events;
  DrillOptions drill;
  NodeOptions node;
  DoctorOptions doctor;
  CheckpointArguments checkpoint;
  std::uint64_t at_step = 0;
  std::vector<std::string> after_dashes;  // what came behind "--"
  std::function<int()> chosen;
};

// torchrun's bits: "0", "1", "2", "3". Its form per rank is rejected with an error that says what is possible.
std::uint32_t stream_bits(const std::string& flag, const std::string& value) {
  if (value.size() == 1 && value[0] >= '0' && value[0] <= '3') return static_cast<std::uint32_t>(value[0] - '0');
  throw CLI::ValidationError(flag, "expected 0 (nothing), 1 (stdout), 2 (stderr) or 3 (both), for all ranks alike");
}

void read_node_count(Everything& all) {
  const std::size_t colon = all.nnodes.find(':');
  std::uint32_t most = 0;
  const std::string least = all.nnodes.substr(0, colon);
  const bool good = parse_number(std::string_view(least), all.run.node_count) &&
                    (colon == std::string::npos || parse_number(std::string_view(all.nnodes).substr(colon + 1), most));
  if (!good) throw CLI::ValidationError("--nnodes", text("\"", all.nnodes, "\": expected N, or N:M with M-N spares"));
  if (colon != std::string::npos) all.run.node_count_max = most;
}

void add_job(CLI::App& app, JobOptions& job) {
  app.add_option("--job", job.job, "name of the job; default: the only one that runs here");
  app.add_option("--control", job.control,
                 "HOST:PORT[,HOST:PORT] of the control; default: what the job's launcher on this machine uses");
  app.add_option("--token-file", job.token_file,
                 "file with the job's secret; default: PAWL_TOKEN_FILE, or the file in the job's run directory");
}

void add_without_effect(CLI::App& app, RunOptions& run, const std::string& flag) {
  app.add_option_function<std::string>(
         both(flag),
         [&run, flag](const std::string& value) {
           run.without_effect.push_back({flag, value});
         },
         "accepted for torchrun's sake, no effect")
      ->group("torchrun's flags that have no effect");
}

void add_run(CLI::App& app, Everything& all) {
  CLI::App* run = app.add_subcommand("run", "start a job: one node of it, or all nodes on this machine (--standalone)");
  run->footer(
      "pawl run [OPTIONS] SCRIPT.py ARGUMENTS   or   pawl run [OPTIONS] -- PROGRAM ARGUMENTS\n"
      "Everything after -- (or from the first word that is not a flag) is the trainer and its arguments.\n"
      "The trainers' output goes to logs in the run directory; rank 0's is shown here, too. See docs/user/operate.md.");
  run->prefix_command();
  RunOptions& o = all.run;
  run->add_option("--nnodes", all.nnodes, "number of nodes that train; N:M adds M-N spares")->capture_default_str();
  run->add_option(both("--nproc-per-node"), all.nproc, "trainers (seats) per node")->capture_default_str();
  CLI::Option* rank = run->add_option(both("--node-rank"), all.node_rank,
                                      "number of this node, from 0; with --nnodes N, numbers from N on are spares")
                          ->check(whole_number);
  CLI::Option* spares =
      run->add_option("--spares", all.spares, "nodes that wait to replace a dead one")->check(whole_number);
  run->add_flag("--standalone", o.standalone,
                "start all nodes and a control on this machine (default without --control)");
  run->add_option("--control", o.control, "HOST:PORT[,HOST:PORT] of etcd or `pawl control`; the same on every machine");
  run->add_option("--job", o.job, "name of the job; default: a random one");
  CLI::Option* replicas =
      run->add_option("--replicas", all.replicas,
                      "copies of each seat's state in other nodes' memory, at most one less than the nodes that train; "
                      "default: 1, or 0 if one node trains")
          ->check(whole_number);
  run->add_option("--redundancy", o.redundancy,
                  "how state is kept in other nodes' memory: copies:K is the same as --replicas K; auto is the default")
      ->excludes(replicas);
  run->add_option(
      "--domains", o.domains,
      "file with the failure domain of each node, one line each: NODES DOMAIN, such as \"0-3 rack1\"; or env: "
      "each node's PAWL_DOMAIN; or slurm: its switch. Copies lie in other domains than what they protect");
  run->add_flag(both("--fewer-domains"), o.fewer_domains,
                "let copies share a failure domain if there are too few domains, instead of refusing to begin");
  add_bytes(*run, "--memory", o.memory_bytes,
            "of each node, for the state that is kept there, own and others', such as 64GiB: a job that needs more is "
            "refused "
            "before its first commit; the same on every node. Default: what the machine or control group has");
  add_bytes(
      *run, both("--replica-bandwidth"), o.replica_bytes_a_second,
      "what each node sends to other nodes' memory at most, in bytes a second, such as 2GiB; the same on every node. "
      "Default: no limit");
  run->add_option("--checkpoint", o.checkpoint,
                  "folder in which the job writes its own checkpoints, from memory, while it trains: DIR/step-N; all "
                  "nodes see it at this path. Default: none are written");
  run->add_option(
      "--every", o.every,
      "how often: a number of steps (500), a time (90s, 10m, 2h), or auto: one after another, with a pause of 10 s; "
      "the last step is always written. "
      "Default: 10m");
  add_bytes(
      *run, both("--persist-bandwidth"), o.persist_bytes_a_second,
      "what each node writes to --checkpoint's folder at most, in bytes a second, such as 500MiB; at least 1MiB. Not "
      "of the last one, before the job ends. Default: no limit");
  run->add_option("--grace", o.grace,
                  "when the job is told to stop (Ctrl-C, SIGTERM): how long it may write its newest step to "
                  "--checkpoint's folder before all ends. Default: 60s");
  run->add_option(both("--keep-last"), o.keep_last,
                  "keep only the newest K checkpoints that are sound, and remove older ones. Default: all are kept")
      ->check(whole_number);
  run->add_option(both("--keep-every"), o.keep_every,
                  "with --keep-last: also keep each checkpoint whose step is a multiple of E")
      ->check(whole_number);
  run->add_option(
      "--resume", o.resume,
      "begin with a checkpoint that such a job wrote: its folder (DIR/step-500), or auto: the newest sound one in "
      "--checkpoint's folder, if there is one. As many nodes and trainers as that job had");
  run->add_option("--deadline-ms", o.deadline_ms,
                  "a lost node is noticed within this time; all other deadlines follow from it")
      ->check(whole_number)
      ->capture_default_str();
  run->add_option("--hang-ms", o.hang_ms,
                  "a trainer that makes no progress for this long outside a collective counts as hung")
      ->check(whole_number)
      ->capture_default_str();
  run->add_option(both("--start-timeout"), o.start_timeout_s,
                  "seconds that a new trainer may need to become ready, imports and model included")
      ->check(whole_number)
      ->capture_default_str();
  run->add_flag("--no-wait", o.no_wait,
                "if a node dies and there is no spare: stop the job instead of waiting for one");
  run->add_option(both("--failure-signs"), o.failure_signs,
                  "file with texts by which a trainer's failure is known, see docs/user/operate.md");
  run->add_option(
      both("--health-check"), o.health_check,
      "command that each node runs before it may get seats, for its devices: exit code 0 means sound, within 60 s");
  run->add_option("--token-file", o.token_file,
                  "file with a secret that all nodes share (or PAWL_TOKEN_FILE); only with --control");
  run->add_option("--listen", o.listen,
                  "HOST:PORT for the other nodes, port 0 for any; default: the address that reaches the control");
  run->add_option("--namespaces", all.namespaces,
                  "auto, require or off: whether each node on this machine gets its own network namespace")
      ->check(CLI::IsMember({"auto", "require", "off"}))
      ->capture_default_str();
  run->add_flag_function(
      "--no-namespaces", [&all](std::int64_t) { all.namespaces = "off"; }, "same as --namespaces off");
  run->add_flag_function(
      "--restart-dead-nodes,!--no-restart-dead-nodes", [&o](std::int64_t n) { o.restart_dead_nodes = n > 0; },
      "start a dead node again, as a spare (default with --standalone)");
  run->add_flag("--keep", o.keep, "keep all of the run directory after a clean end, not the logs alone");
  run->add_option(both("--log-dir"), o.log_dir,
                  "write each trainer's output to files in this folder, not to the node's log");
  run->add_option("-t,--tee", all.tee,
                  "show the output of all trainers, with their nodes: 0 nothing, 1 stdout, 2 stderr, 3 both; default: "
                  "both of rank 0, as it is");
  run->add_option("-r,--redirects", all.redirects,
                  "accepted for torchrun's sake, no effect: output always goes to the logs")
      ->group("torchrun's flags that have no effect");
  run->add_flag("-m,--module", o.module, "the trainer is a Python module");
  run->add_flag(both("--no-python"), o.no_python, "run the trainer as a program, even if its name ends in .py");
  run->add_flag("--test-hooks", o.test_hooks, "allow drills to park trainers and daemons in named phases");
  run->add_flag("--gate-off", o.gate_off)->group("");
  run->add_option("--daemon-command", o.daemon_command)->group("");
  run->add_option(both("--rdzv-id"), all.rdzv_id, "torchrun's name for --job");
  for (const char* flag :
       {"--rdzv-backend", "--rdzv-endpoint", "--rdzv-conf", "--max-restarts", "--monitor-interval", "--start-method",
        "--role", "--master-addr", "--master-port", "--local-addr", "--logs-specs", "--local-ranks-filter"})
    add_without_effect(*run, o, flag);
  run->callback([&all, run, rank, spares, replicas] {
    RunOptions& o = all.run;
    read_node_count(all);
    if (!parse_number(std::string_view(all.nproc), o.seats_per_node))
      throw CLI::ValidationError("--nproc-per-node", text("\"", all.nproc, "\": expected a number"));
    if (!all.tee.empty()) o.tee = stream_bits("--tee", all.tee);
    if (!all.redirects.empty()) o.without_effect.push_back({"--redirects", all.redirects});
    if (rank->count() > 0) o.node_rank = all.node_rank;
    if (spares->count() > 0) o.spare_count = all.spares;
    if (replicas->count() > 0) o.replica_count = all.replicas;
    if (o.job.empty()) o.job = all.rdzv_id;
    if (all.namespaces == "require") o.namespaces = Namespaces::require;
    if (all.namespaces == "off") o.namespaces = Namespaces::off;
    o.command = run->remaining();
    if (!o.command.empty() && o.command.front().starts_with("-"))
      throw CLI::ValidationError(o.command.front(), "no such flag; see pawl run --help");
    o.command.insert(o.command.end(), all.after_dashes.begin(), all.after_dashes.end());
    all.chosen = [&all] { return command_run(all.run); };
  });
}

void add_keeper_and_daemon(CLI::App& app, Everything& all) {
  CLI::App* keeper = app.add_subcommand("keeper", "a node's parent process; started by `pawl run`")->group("Internal");
  KeeperCommandOptions& k = all.keeper;
  keeper->add_option("--job", k.job)->required();
  keeper->add_option("--node", k.node)->required();
  keeper->add_option("--control", k.control)->required();
  keeper->add_option("--run-dir", k.run_dir, "the job's directory")->required();
  keeper->add_option("--listen", k.listen, "HOST:PORT")->required();
  keeper->add_option("--nproc-per-node", k.seats_per_node)->required();
  keeper->add_option("--deadline-ms", k.deadline_ms)->capture_default_str();
  keeper->add_option("--grace-ms", k.grace_ms);
  keeper->add_option("--log-dir", k.log_dir);
  keeper->add_option("--domain", k.domain);
  keeper->add_option("--tee", k.tee);
  keeper->add_option("--tee-fd", k.tee_fd);
  keeper->add_option("--netns-fd", k.netns_fd);
  keeper->add_option("--hosts-file", k.hosts_file);
  keeper->add_option("--daemon-command", k.daemon_command)->group("");
  keeper->callback([&all] {
    all.keeper.command = all.after_dashes;
    if (all.keeper.command.empty()) throw CLI::ValidationError("--", "the trainer command is missing behind --");
    all.chosen = [&all] { return command_keeper(all.keeper); };
  });

  CLI::App* daemon = app.add_subcommand("daemon", "pawld, a node's agent; started by its keeper")->group("Internal");
  DaemonCommandOptions& d = all.daemon;
  daemon->add_option("--node", d.node)->required();
  daemon->add_option("--incarnation", d.incarnation)->required();
  daemon->add_option("--job", d.job)->required();
  daemon->add_option("--control", d.control)->required();
  daemon->add_option("--address", d.address, "HOST:PORT of the inherited socket")->required();
  daemon->add_option("--lifeline", d.lifeline, "HOST:PORT of the keeper's own, for lifelines");
  daemon->add_option("--domain", d.domain, "the node's failure domain");
  daemon->add_option("--run-dir", d.run_dir, "the job's directory")->required();
  daemon->add_option("--keeper-fd", d.keeper_fd)->required();
  daemon->add_option("--listen-fd", d.listen_fd)->required();
  daemon->add_option("--local-fd", d.local_fd)->required();
  daemon->add_option("--token-fd", d.token_fd);
  daemon->add_option("--death-fd", d.death_fd);
  daemon->add_option("--held", d.held, "NAME:FD,...");
  daemon->add_option("--nproc-per-node", d.seats_per_node)->required();
  daemon->callback([&all] { all.chosen = [&all] { return command_daemon(all.daemon); }; });
}

void add_control(CLI::App& app, Everything& all) {
  CLI::App* control = app.add_subcommand("control", "run a one-node server of etcd's protocol, until SIGTERM");
  control->add_option("--listen", all.control.listen, "HOST:PORT or unix:/path, several with commas")
      ->capture_default_str();
  control
      ->add_option("--data-dir", all.control.data_dir,
                   "folder for the server's log of changes; a restart continues from it")
      ->required();
  control->add_option("--token-file", all.control.token_file, "file with a secret that every client must send");
  control->callback([&all] { all.chosen = [&all] { return command_control(all.control); }; });
}

void add_views(CLI::App& app, Everything& all) {
  CLI::App* status = app.add_subcommand("status", "show nodes, seats, the protected step, and waits at the fence");
  add_job(*status, all.status.job);
  add_output(*status, all.status.job.json);
  status->add_flag("-w,--watch", all.status.watch, "repeat every second");
  status->callback([&all] { all.chosen = [&all] { return command_status(all.status); }; });

  CLI::App* exposure = app.add_subcommand("exposure", "show what would be lost if nodes died now");
  add_job(*exposure, all.exposure.job);
  add_output(*exposure, all.exposure.job.json);
  exposure->add_option("--if", all.exposure.dead_nodes, "NODE[,NODE] that die at once; default: each node alone")
      ->delimiter(',');
  exposure->callback([&all] { all.chosen = [&all] { return command_exposure(all.exposure); }; });

  CLI::App* events = app.add_subcommand("events", "show what happened to the job");
  add_job(*events, all.events.job);
  add_output(*events, all.events.job.json);
  events->add_flag("-f,--follow", all.events.follow, "continue until the job ends");
  events->callback([&all] { all.chosen = [&all] { return command_events(all.events); }; });

  CLI::App* doctor = app.add_subcommand("doctor", "check that this machine has what pawl needs");
  add_output(*doctor, all.doctor.json);
  doctor
      ->add_option("--python", all.doctor.python,
                   "check only that this interpreter can train with pawl; default: the one that `pawl run` takes")
      ->expected(0, 1)
      ->type_name("[PYTHON]");
  doctor->callback([&all] { all.chosen = [&all] { return command_doctor(all.doctor); }; });
}

void add_drill(CLI::App& app, Everything& all) {
  CLI::App* drill =
      app.add_subcommand("drill", "inject a fault into a running job, or test recovery of your own script");
  drill->footer(
      "pawl drill [OPTIONS] -- python train.py ARGUMENTS: runs the script several times, with and without faults,\n"
      "compares every loss and all state bit by bit, and reports the first difference and its likely cause.\n"
      "The script runs in the current folder; what it writes there through Python is put back when it has ended.\n"
      "Options: pawl drill --help --");
  DrillOptions& o = all.drill;
  drill->add_option("action", o.action, "kill, stop, continue, cut or heal (cut and heal: a node's network link)")
      ->required()
      ->check(CLI::IsMember({"kill", "stop", "continue", "cut", "heal"}));
  drill->add_option("target", o.target, "node N, trainer SEAT, daemon N, control, launcher")
      ->required()
      ->check(CLI::IsMember({"node", "trainer", "daemon", "control", "launcher"}));
  drill->add_option("which", o.which, "number of the node or seat, or `leader`");
  add_job(*drill, o.job);
  add_output(*drill, o.job.json);
  drill->add_flag("--json", o.job.json, "as -o json");
  CLI::Option* step = drill->add_option("--at-step", all.at_step, "wait until the victim is in this step");
  drill->add_option("--phase", o.phase, "wait until the victim is parked in this phase (the job needs --test-hooks)");
  drill->add_option("--timeout", all.drill_timeout_s, "seconds to wait for step and phase")->capture_default_str();
  drill->callback([&all, step] {
    if (step->count() > 0) all.drill.at_step = all.at_step;
    all.drill.timeout_ms = all.drill_timeout_s * 1000ull;
    all.chosen = [&all] { return command_drill(all.drill); };
  });
}

void add_node(CLI::App& app, Everything& all) {
  CLI::App* node = app.add_subcommand("node", "take a node of a running job out of service, or let it back");
  node->footer(
      "cordon N    node N gets no seat from now on; seats that it has stay\n"
      "uncordon N  it may get seats again; withdraws a drain that has not moved the seats yet\n"
      "drain N     cordons node N and moves its seats to a spare. All trainers wait after the same step until its "
      "state is\n"
      "            copied, so no step is done again. Refused if no spare is free. Afterwards the node may be stopped\n"
      "The orders are kept in the control: they hold until `uncordon`, also over restarts of the node.");
  NodeOptions& o = all.node;
  node->add_option("action", o.action, "cordon, uncordon or drain")
      ->required()
      ->check(CLI::IsMember({"cordon", "uncordon", "drain"}));
  node->add_option("node", o.node, "number of the node, as in `pawl status`")->required()->check(whole_number);
  add_job(*node, o.job);
  add_output(*node, o.job.json);
  node->add_option("--timeout", all.node_timeout_s,
                   "drain: seconds to wait until the seats have moved; after that the order still stands")
      ->check(whole_number)
      ->capture_default_str();
  node->add_flag("--no-wait", o.no_wait, "drain: give the order and return");
  node->callback([&all] {
    all.node.timeout_ms = all.node_timeout_s * 1000ull;
    all.chosen = [&all] { return command_node(all.node); };
  });
}

}  // namespace

int run_command_line(int argc, char** argv) {
  Everything all;
  CLI::App app(kDescription, "pawl");
  app.set_version_flag("--version", PAWL_VERSION_TEXT);
  app.require_subcommand(1);
  app.failure_message([&app](const CLI::App*, const CLI::Error& error) {
    const std::vector<CLI::App*> named = app.get_subcommands();
    return text("pawl", named.empty() ? "" : " " + named.front()->get_name(), ": ", error.what(), "\n");
  });
  add_run(app, all);
  add_views(app, all);
  add_checkpoints(app, all.checkpoint, all.chosen);
  add_drill(app, all);
  add_node(app, all);
  add_control(app, all);
  add_keeper_and_daemon(app, all);

  std::vector<std::string> words(argv + 1, argv + argc);
  if (is_script_drill(words)) return command_drill_script(words);
  const auto is_named = [&](const CLI::App* command) { return command->get_name() == words.front(); };
  if (!words.empty() && !words.front().starts_with("-") && app.get_subcommands(is_named).empty())
    return usage_error(text("there is no command \"", words.front(), "\"; see pawl --help"));
  const auto dashes = std::find(words.begin(), words.end(), "--");
  if (dashes != words.end()) all.after_dashes.assign(dashes + 1, words.end());
  words.erase(dashes, words.end());
  std::reverse(words.begin(), words.end());  // as CLI11 wants them
  try {
    app.parse(words);
    const int code = all.chosen();
    if (code != kExitOk || std::ferror(stdout) == 0) return code;
    say("standard output could not be written");
    return kExitFailed;
  } catch (const CLI::Success& help) {
    return app.exit(help);  // --help, --version
  } catch (const CLI::ParseError& error) {
    app.exit(error);
    return kExitUsage;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "pawl: %s\n", error.what());
    return kExitFailed;
  }
}

}  // namespace pawl
