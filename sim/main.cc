// sim: many simulated jobs, each from a seed, with faults of the seed's choice. See README.md.
#include <poll.h>
#include <signal.h>
#include <sys/personality.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/text.h"
#include "faults.h"
#include "scenarios.h"

namespace pawl::sim {
namespace {

using namespace std::chrono_literals;

constexpr unsigned kProcessorSecondsMax = 60;  // and one more for each node of a large job
constexpr unsigned kRealSecondsMax = 1200;     // on a machine that may be busy with other things
constexpr std::uint32_t kNodesOfASeed = 5;     // about
constexpr Duration kPatience = 150s;           // virtual, for each fault and for the end
constexpr Duration kStoredWithin = 20min;      // or given up: its last step, where the storage does not answer

struct Arguments {
  std::uint64_t first = 1;
  std::uint64_t seeds = 200;
  std::uint64_t seconds = 0;  // real: until then, however many seeds that is
  unsigned jobs = std::max(1u, std::thread::hardware_concurrency());
  std::uint32_t nodes = 0;  // members of a large job; 0: as many as each seed draws
  bool one = false;         // a single seed, with its log
  bool quiet = false;
  bool verbose = false;  // its log with what is for debugging, too
  bool gate_off = false;
  bool drain = false;     // of each seed; else of those that draw one
  bool no_drain = false;  // of none
  bool worlds = false;    // the same of other worlds
  bool no_worlds = false;
  bool storage = false;  // the same of checkpoints
  bool no_storage = false;
  std::vector<std::size_t> keep;  // of the seed's faults; empty: all
  bool keep_given = false;
  unsigned failures_max = 1;
  std::string expected;  // a failure that does not say this does not count
  bool all_scenarios = false;
  const Scenario* scenario = nullptr;  // its faults instead of the seed's
};

Cluster* running = nullptr;

void print_line(LogLevel, std::string_view line) {
  const Process* process = running == nullptr ? nullptr : running->scheduler.current_process();
  const double now = running == nullptr ? 0 : static_cast<double>(running->scheduler.now().count()) / 1e9;
  std::fprintf(stdout, "%12.6f %-9s %.*s\n", now, process == nullptr ? "-" : process->name.c_str(),
               static_cast<int>(line.size()), line.data());
}

// In a share of the seeds machines stand in racks, of which a fault may take one.
void draw_domains(ClusterOptions& options) {
  std::mt19937_64 random(options.seed * 0xff51afd7ed558ccdull + 3);
  if (random() % 3 != 0) return;
  const std::uint64_t racks = 2 + random() % 3;
  const bool scattered = random() % 2 == 0;
  const std::uint32_t machines = options.members + options.spares;
  std::set<std::string> of_members;
  for (std::uint32_t machine = 0; machine < machines; ++machine) {
    const std::uint64_t rack = scattered ? random() % racks : machine % racks;
    options.domains.push_back(text("rack", rack));
    if (machine < options.members) of_members.insert(options.domains.back());
  }
  options.fewer_domains = of_members.size() <= options.replicas;
}

ClusterOptions draw_options(std::uint64_t seed) {
  std::mt19937_64 random(seed * 0x2545f4914f6cdd1dull + 5);
  const auto one_in = [&](std::uint64_t n) { return random() % n == 0; };
  ClusterOptions options;
  options.seed = seed;
  options.members = one_in(8) ? 6 + random() % 4 : 2 + random() % 4;
  options.seats_per_node = one_in(5) ? 2 : 1;
  options.spares = 1 + random() % 2;
  options.replicas = options.members > 2 && one_in(4) ? 2 : 1;
  options.deadline_ms = one_in(3) ? 1000 : 3000;
  if (one_in(5)) options.bytes_a_second = 60e3;  // a slot takes a fifth of a second
  if (one_in(5)) options.ns_a_byte = 15e3;       // an arena takes half a second
  options.step = std::chrono::milliseconds(20 + random() % 60);
  if (one_in(4)) options.long_delay = 40ms;  // oversubscribed
  const std::uint64_t rows = (seed * 0x9e3779b97f4a7c15ull) >> 62;
  if (rows < 2) options.state_rows_max = rows;
  const std::uint64_t sheets = (seed * 0xc2b2ae3d27d4eb4full) >> 62;
  if (sheets < 2) options.state_bytes_max = 1 + seed % 16 * 64;  // many of a job's states have more, and some less
  options.bad_sheets = sheets == 0;
  const std::uint64_t groups = (seed * 0xbf58476d1ce4e5b9ull) >> 60;  // of reports; in half of the jobs one for all
  if (groups < 8) options.report_group_size = 2 + groups % 2;
  options.bad_collectors = groups < 4;
  if ((seed * 0x94d049bb133111ebull) >> 63 == 0) options.fetch_sizes = {0, kBucketBytes};  // by several streams
  if ((seed * 0xa24baed4963ee407ull) >> 63 == 0) options.spread_sizes = {0};               // over lanes
  const std::uint64_t followers = (seed * 0xa0761d6478bd642full) >> 62;
  if (followers < 2) options.follow_limits = {0, static_cast<std::uint32_t>(1 + followers)};  // few, as in a large job
  options.ring_exchange = options.members > 3 && (seed * 0xd1342543de82ef95ull) >> 63 == 0;
  const std::uint32_t world = options.members * options.seats_per_node;
  if ((seed * 0xc2b2ae3d27d4eb4full) >> 63 == 0) options.equal_stride = world % 2 == 0 && world > 2 ? 2 : 1;
  draw_domains(options);
  return options;
}

// Messages and events a second grow with the nodes, so these beat and step less often.
ClusterOptions large(ClusterOptions options, std::uint32_t nodes) {
  options.members = nodes;
  options.seats_per_node = 1;
  options.replicas = std::min(options.replicas, nodes - 1);
  options.bytes_a_second = 1e9;
  options.deadline_ms = std::max<std::uint64_t>(options.deadline_ms, 10 * nodes);
  options.step = std::max<Duration>(options.step, std::chrono::milliseconds(nodes));
  options.ring_exchange = nodes > 3;
  options.state_rows_max = job::kMovedRowsMax;
  options.state_bytes_max = job::kStateBytesMax;
  options.report_group_size = job::kReportGroupSize;
  options.follow_limits = {};
  options.domains.clear();
  return options;
}

ClusterOptions options_of(const Arguments& arguments, std::uint64_t seed) {
  if (arguments.scenario == nullptr)
    return arguments.nodes > 0 ? large(draw_options(seed), arguments.nodes) : draw_options(seed);
  ClusterOptions options = arguments.scenario->options;
  options.seed = seed;
  return options;
}

// Beside the other options, which an operator's command changes nothing of.
bool draws_drain(const Arguments& arguments, std::uint64_t seed) {
  if (arguments.gate_off || arguments.no_drain || arguments.scenario != nullptr) return false;
  return arguments.drain || (seed * 0x9e3779b97f4a7c15ull) >> 62 == 0;
}

// Of those that drain nothing; where equal state was declared of the first world's numbers, nothing is known in another.
bool draws_worlds(const Arguments& arguments, const ClusterOptions& options, std::uint64_t seed) {
  if (arguments.gate_off || arguments.no_worlds || arguments.scenario != nullptr || arguments.nodes > 0) return false;
  if (options.equal_stride > 0 || draws_drain(arguments, seed)) return false;
  return arguments.worlds || (seed * 0xd1b54a32d192ed03ull) >> 61 == 0;
}

// Of a third of those in which no other worlds are wished: what is stored is of one world.
bool draws_storage(const Arguments& arguments, const ClusterOptions& options, std::uint64_t seed) {
  if (arguments.gate_off || arguments.no_storage || arguments.scenario != nullptr || arguments.nodes > 0) return false;
  if (draws_worlds(arguments, options, seed)) return false;
  return arguments.storage || (seed * 0x8cb92ba72f3d8dd7ull >> 33) % 3 == 0;
}

// Of a third of those in which what is stored is certain to be there.
bool draws_disaster(const ClusterOptions& options) {
  const StorageHealth health = options.storage.health;
  return (health == StorageHealth::sound || health == StorageHealth::slow) &&
         (options.seed * 0xe7037ed1a0b428dbull >> 33) % 3 == 0;
}

// Of a half of those that store.
bool draws_stop(std::uint64_t seed) {
  return (seed * 0xd6e8feb86659fd93ull >> 33) % 2 == 0;
}

// Each segment of each simulated process has a few.
void more_descriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

// What was committed before has all its copies then.
void stop_when_well(Cluster& cluster) {
  if (cluster.is_over()) return;
  cluster.storage.calm();
  if (cluster.is_well() && cluster.greatest_committed() > 0) return stop_all(cluster);
  cluster.scheduler.after(50ms, [&cluster] { stop_when_well(cluster); });
}

// Empty: all is well.
std::string run_one(const ClusterOptions& options, const std::vector<InjectedFault>& faults) {
  Cluster& cluster = *new Cluster(options);  // fibers of killed processes point into it
  running = &cluster;
  cluster.start();
  Duration limit = cluster.scheduler.now() + kPatience * static_cast<int>(faults.size() + 2);
  for (const InjectedFault& fault : faults) limit += fault.after + fault.length;
  const Duration stored =
      options.storage.health == StorageHealth::hanging || options.storage.health == StorageHealth::stuck
          ? kStoredWithin
          : Duration::zero();
  int going_on = 1 + (options.drain ? 1 : 0) + (options.other_worlds ? 1 : 0) + (options.loses_too_much ? 1 : 0);
  const auto on_end = [&] {
    if (--going_on > 0) return;
    if (options.is_stopped)
      stop_when_well(cluster);
    else
      cluster.end_soon();
    limit = cluster.scheduler.now() + kPatience + stored;
  };
  inject(cluster, faults, on_end);
  if (options.drain) drain_a_node(cluster, on_end);
  if (options.other_worlds) change_worlds(cluster, on_end);
  if (options.loses_too_much) lose_too_much(cluster, on_end);
  while (!cluster.is_over() && cluster.violation().empty() && cluster.scheduler.now() < limit)
    if (cluster.scheduler.run(cluster.scheduler.now() + 1s)) break;
  std::string result = cluster.violation();
  if (result.empty() && !cluster.is_over()) result = "stands still: " + cluster.describe();
  log_info("sim_end", "result", result.empty() ? "ok" : result, "recoveries", cluster.recoveries, "drains",
           cluster.drains, "worlds", cluster.worlds.changes(), "storage", cluster.storage.describe(), "returns",
           cluster.returns, "seconds", (cluster.scheduler.now() - cluster.began) / 1s, "events",
           cluster.scheduler.events, "committed", cluster.greatest_committed());
  std::fflush(stdout);
  running = nullptr;
  return result;
}

std::vector<InjectedFault> all_faults_of(const Arguments& arguments, std::uint64_t seed) {
  return arguments.scenario != nullptr ? arguments.scenario->faults : draw_faults(seed, options_of(arguments, seed));
}

std::vector<InjectedFault> faults_of(const Arguments& arguments, std::uint64_t seed,
                                     const std::vector<std::size_t>* keep) {
  std::vector<InjectedFault> all = all_faults_of(arguments, seed);
  if (keep == nullptr) return all;
  std::vector<InjectedFault> kept;
  for (const std::size_t i : *keep)
    if (i < all.size()) kept.push_back(all[i]);
  return kept;
}

unsigned processor_seconds_max(const Arguments& arguments) {
  return kProcessorSecondsMax + arguments.nodes;
}

// In a process of its own: a simulated cluster leaks what its killed processes had, and may crash.
struct Child {
  pid_t pid = 0;
  int out = -1;
  std::uint64_t seed = 0;
};

Child start_child(const Arguments& arguments, std::uint64_t seed, const std::vector<std::size_t>* keep) {
  int ends[2];
  if (pipe(ends) != 0) std::abort();
  std::fflush(stdout);
  const pid_t pid = fork();
  if (pid == 0) {
    close(ends[0]);
    alarm(kRealSecondsMax);
    const itimerval most{{}, {processor_seconds_max(arguments), 0}};
    (void)setitimer(ITIMER_PROF, &most, nullptr);
    log_through(&print_line, arguments.verbose ? LogLevel::debug : arguments.one ? LogLevel::info : LogLevel::error);
    if (!arguments.one) {
      if (std::freopen("/dev/null", "w", stdout) == nullptr) std::abort();
    }
    ClusterOptions options = options_of(arguments, seed);
    options.gate_off = arguments.gate_off;
    options.drain = draws_drain(arguments, seed);
    options.other_worlds = draws_worlds(arguments, options, seed);
    if (draws_storage(arguments, options, seed)) {
      options.storage = draw_storage(seed);
      options.loses_too_much = options.may_go_back = draws_disaster(options);
      options.is_stopped = draws_stop(seed);
    }
    std::vector<InjectedFault> faults = faults_of(arguments, seed, keep);
    if (options.drain && seed % 4 == 0) faults.clear();
    if (options.drain ||
        options
            .other_worlds)  // who has seats was drawn without the drain: together with another loss it may be one too many
      std::erase_if(faults, [](const InjectedFault& f) { return f.type == FaultType::kill_trainer && f.more > 5s; });
    // The simulated trainer tells of a bad source once, where libpawl repeats it: a pawld that dies then does not know.
    options.collectors_die = std::ranges::none_of(faults, [](const InjectedFault& fault) {
      return fault.type == FaultType::flip_bits || fault.type == FaultType::flip_unsent;
    });
    options.nothing_else = faults.empty();
    const std::string result = run_one(options, faults);
    if (::write(ends[1], result.data(), result.size()) < 0) std::abort();
    _exit(0);
  }
  close(ends[1]);
  return {pid, ends[0], seed};
}

std::string result_of(const Child& child) {
  std::string result;
  char buffer[4096];
  for (ssize_t got = 0; (got = ::read(child.out, buffer, sizeof buffer)) > 0;)
    result.append(buffer, static_cast<std::size_t>(got));
  close(child.out);
  int status = 0;
  waitpid(child.pid, &status, 0);
  if (!WIFSIGNALED(status)) return result;
  const int signal = WTERMSIG(status);
  if (signal == SIGPROF) return "not done after many seconds of a processor";
  if (signal == SIGALRM) return text("not done after ", kRealSecondsMax, " real seconds");
  return text("crashed: ", strsignal(signal));
}

std::string text_of_list(const std::vector<std::size_t>& keep) {
  std::string out;
  for (const std::size_t i : keep) out += text(out.empty() ? "" : ",", i);
  return out.empty() ? "none" : out;
}

// Leaves out the drain, then one fault after the other as long as it still fails.
void shorten(Arguments arguments, std::uint64_t seed, const std::string& first_result) {
  std::vector<std::size_t> keep(all_faults_of(arguments, seed).size());
  for (std::size_t i = 0; i < keep.size(); ++i) keep[i] = i;
  std::string result = first_result;
  const auto leave_out = [&](bool drawn, bool Arguments::*none) {
    if (!drawn) return;
    Arguments without = arguments;
    without.*none = true;
    const std::string result_without = result_of(start_child(without, seed, &keep));
    if (result_without.empty() || result_without.find(arguments.expected) == std::string::npos) return;
    arguments = without;
    result = result_without;
  };
  arguments.drain = draws_drain(arguments, seed);
  arguments.worlds = draws_worlds(arguments, options_of(arguments, seed), seed);
  arguments.storage = draws_storage(arguments, options_of(arguments, seed), seed);
  leave_out(arguments.drain, &Arguments::no_drain);
  leave_out(arguments.worlds, &Arguments::no_worlds);
  leave_out(arguments.storage, &Arguments::no_storage);
  for (bool shorter = arguments.scenario == nullptr; shorter;) {
    shorter = false;
    for (std::size_t i = 0; i < keep.size(); ++i) {
      std::vector<std::size_t> fewer;
      for (std::size_t j = 0; j < keep.size(); ++j)
        if (j != i) fewer.push_back(keep[j]);
      const std::string with_fewer = result_of(start_child(arguments, seed, &fewer));
      if (with_fewer.empty() || with_fewer.find(arguments.expected) == std::string::npos) continue;
      keep.swap(fewer);
      result = with_fewer;
      shorter = true;
      break;
    }
  }
  const ClusterOptions options = options_of(arguments, seed);
  std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), result.c_str());
  std::printf("  %u members, %u spares, %u replicas, deadline %llu ms\n", options.members, options.spares,
              options.replicas, static_cast<unsigned long long>(options.deadline_ms));
  for (const std::size_t i : keep)
    std::printf("  fault %zu: %s\n", i, text_of(all_faults_of(arguments, seed)[i]).c_str());
  if (arguments.scenario != nullptr) {
    const std::string name(arguments.scenario->name);
    std::printf("  again, with its log: build/bin/sim --scenario %s --seed %llu\n", name.c_str(),
                static_cast<unsigned long long>(seed));
    return;
  }
  const std::string nodes = arguments.nodes > 0 ? text(" --nodes ", arguments.nodes) : "";
  std::printf("  again, with its log: build/bin/sim --seed %llu%s --faults %s%s%s%s\n",
              static_cast<unsigned long long>(seed), nodes.c_str(), text_of_list(keep).c_str(),
              arguments.gate_off             ? " --gate-off"
              : draws_drain(arguments, seed) ? " --drain"
                                             : " --no-drain",
              draws_worlds(arguments, options, seed) ? " --worlds" : " --no-worlds",
              draws_storage(arguments, options, seed) ? " --storage" : " --no-storage");
  std::fflush(stdout);
}

double processor_seconds() {
  rusage used{};
  getrusage(RUSAGE_CHILDREN, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

int run_many(const Arguments& arguments) {
  const auto began = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(); };
  std::vector<Child> children;
  std::uint64_t next = arguments.first, done = 0;
  unsigned failures = 0;
  double told = 0;
  const auto wanted = [&] {
    if (failures >= arguments.failures_max) return false;
    if (arguments.seconds > 0) return seconds() < static_cast<double>(arguments.seconds);
    return next < arguments.first + arguments.seeds;
  };
  for (;;) {
    while (children.size() < arguments.jobs && wanted()) children.push_back(start_child(arguments, next++, nullptr));
    if (children.empty()) break;
    std::vector<pollfd> polled;
    for (const Child& child : children) polled.push_back({child.out, POLLIN, 0});
    (void)poll(polled.data(), polled.size(), 1000);
    for (std::size_t i = polled.size(); i-- > 0;) {
      if (polled[i].revents == 0) continue;
      const Child child = children[i];
      children.erase(children.begin() + static_cast<std::ptrdiff_t>(i));
      const std::string result = result_of(child);
      ++done;
      if (result.empty() || result.find(arguments.expected) == std::string::npos) continue;
      ++failures;
      shorten(arguments, child.seed, result);
    }
    if (!arguments.quiet && seconds() - told > (told < 60 ? 5 : 60)) {
      told = seconds();
      std::printf("%llu seeds, %u failed, %.0f s", static_cast<unsigned long long>(done), failures, told);
      if (arguments.seconds == 0 && done > 0)
        std::printf(", about %.0f minutes left",
                    told * static_cast<double>(arguments.seeds - done) / static_cast<double>(done) / 60);
      std::printf("\n");
      std::fflush(stdout);
    }
  }
  std::printf("%llu seeds from %llu, %u failed, %.1f s, %.1f seeds a second of a processor\n",
              static_cast<unsigned long long>(done), static_cast<unsigned long long>(arguments.first), failures,
              seconds(), static_cast<double>(done) / std::max(processor_seconds(), 0.001));
  return failures == 0 ? 0 : 1;
}

// One after the other, each with as many seeds.
int run_scenarios(Arguments arguments) {
  int failed = 0;
  for (const Scenario& scenario : scenarios()) {
    arguments.scenario = &scenario;
    std::printf("%.*s: ", static_cast<int>(scenario.name.size()), scenario.name.data());
    std::fflush(stdout);
    failed += run_many(arguments);
  }
  return failed == 0 ? 0 : 1;
}

const char* const kUsage =
    "sim [--seeds N] [--nodes N] [--first N] [--seconds S] [--jobs N] [--failures N] [--gate-off] [--drain|--no-drain] "
    "[--worlds|--no-worlds] [--storage|--no-storage] [--quiet]\n"
    "    simulates a job for each seed, with faults; prints those that fail, shortened\n"
    "    of every fourth seed an operator drains a node, too (--drain: of each, --no-drain: of none); of every fourth "
    "of "
    "these\n"
    "    nothing else happens, and no step is done again\n"
    "    of every eighth one that drains nothing other worlds are wished (--worlds: of each that can, --no-worlds: of "
    "none)\n"
    "    a third of the others stores checkpoints (--storage: each that can, --no-storage: none)\n"
    "    --expect TEXT: failures that do not say this do not count\n"
    "    --nodes N: large jobs, of so many nodes each, and as many fewer seeds\n"
    "sim --seed N [--faults I,I,...|none] [--gate-off] [--drain|--no-drain] [--worlds|--no-worlds] "
    "[--storage|--no-storage]\n"
    "    [--verbose]\n"
    "    one of them again, with its log\n"
    "sim --scenarios|--scenario NAME [--seeds N | --seed N]\n"
    "    all scenarios of sim/scenarios.cc, or one, instead of the faults that a seed draws\n";

bool parse(int argc, char** argv, Arguments& arguments) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    const auto number = [&](auto& out) {
      std::uint64_t value = 0;
      if (i + 1 >= argc || !parse_number(std::string_view(argv[++i]), value)) return false;
      out = static_cast<std::remove_reference_t<decltype(out)>>(value);
      return true;
    };
    bool good = true;
    if (name == "--seeds") {
      good = number(arguments.seeds);
    } else if (name == "--first") {
      good = number(arguments.first);
    } else if (name == "--seconds") {
      good = number(arguments.seconds);
    } else if (name == "--jobs") {
      good = number(arguments.jobs) && arguments.jobs > 0;
    } else if (name == "--failures") {
      good = number(arguments.failures_max);
    } else if (name == "--seed") {
      good = number(arguments.first);
      arguments.one = true;
    } else if (name == "--nodes") {
      good = number(arguments.nodes) && arguments.nodes >= 2;
    } else if (name == "--gate-off") {
      arguments.gate_off = true;
    } else if (name == "--drain") {
      arguments.drain = true;
    } else if (name == "--no-drain") {
      arguments.no_drain = true;
    } else if (name == "--worlds") {
      arguments.worlds = true;
    } else if (name == "--no-worlds") {
      arguments.no_worlds = true;
    } else if (name == "--storage") {
      arguments.storage = true;
    } else if (name == "--no-storage") {
      arguments.no_storage = true;
    } else if (name == "--verbose") {
      arguments.verbose = true;
    } else if (name == "--scenarios") {
      arguments.all_scenarios = true;
    } else if (name == "--scenario" && i + 1 < argc) {
      arguments.scenario = scenario_named(argv[++i]);
      good = arguments.scenario != nullptr;
    } else if (name == "--expect" && i + 1 < argc) {
      arguments.expected = argv[++i];
    } else if (name == "--quiet") {
      arguments.quiet = true;
    } else if (name == "--faults" && i + 1 < argc) {
      arguments.keep_given = true;
      std::string_view list = argv[++i];
      while (good && list != "none" && !list.empty()) {
        const std::size_t comma = std::min(list.find(','), list.size());
        std::size_t index = 0;
        good = parse_number(list.substr(0, comma), index);
        arguments.keep.push_back(index);
        list.remove_prefix(std::min(comma + 1, list.size()));
      }
    } else {
      good = false;
    }
    if (!good) return false;
  }
  return true;
}

}  // namespace
}  // namespace pawl::sim

int main(int argc, char** argv) {
  using namespace pawl::sim;
  // Equal addresses, equal order of whatever is sorted by them: a seed replays exactly.
  const int persona = personality(0xffffffff);
  if (persona != -1 && (persona & ADDR_NO_RANDOMIZE) == 0 && personality(persona | ADDR_NO_RANDOMIZE) != -1)
    execv("/proc/self/exe", argv);
  Arguments arguments;
  if (!parse(argc, argv, arguments)) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  if (arguments.nodes > 0) {
    arguments.seeds = std::max<std::uint64_t>(1, arguments.seeds * kNodesOfASeed / arguments.nodes);
    more_descriptors();
  }
  if (arguments.all_scenarios) return run_scenarios(arguments);
  if (!arguments.one) return run_many(arguments);
  const std::string result =
      result_of(start_child(arguments, arguments.first, arguments.keep_given ? &arguments.keep : nullptr));
  std::printf("seed %llu: %s\n", static_cast<unsigned long long>(arguments.first),
              result.empty() ? "ok" : result.c_str());
  return result.empty() ? 0 : 1;
}
