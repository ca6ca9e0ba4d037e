// bench/reshape: the executor against the floors of this machine, as ratios formed within rounds (see run).
//
// Reading: a TP=4 checkpoint of four files becomes the buffers of TP=2's ranks, from cold files, against the best of
// three raw reads of the same files. One rank: the same for one of the two. Memory: the same from memory to memory,
// against tuned copies of as many bytes. Convert: the four files become one safetensors file, on the disk, against the
// best of three plain copies of them. Results are checked element by element, outside the clock.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <thread>

#include "base/text.h"
#include "checkpoint/reshape/execute.h"
#include "checkpoint/reshape/file_source.h"
#include "raw.h"

namespace pawl::bench {

using namespace checkpoint;
namespace {

constexpr std::uint32_t kFrom = 4, kTo = 2;             // tensor-parallel ranks, of files and of targets
constexpr std::uint64_t kRows = 2048, kColumns = 8192;  // of each tensor: 64 MiB of float32
constexpr std::uint64_t kTensorBytes = kRows * kColumns * 4;
constexpr std::uint64_t kHeader = 1272;  // in each file: so that nothing is aligned by accident
constexpr double kForeignMax = 0.04;     // of all cores; above, a sample is taken again
constexpr int kRetakesMax = 3;

struct Options {
  std::string folder = "build/bench";
  std::string json;
  std::uint64_t file_bytes = std::uint64_t{1} << 30;
  std::uint64_t memory_bytes = std::uint64_t{1} << 30;
  std::uint64_t budget = std::uint64_t{1} << 30;
  int rounds = 5;
  unsigned threads = 0;
  bool reading = true, memory = true, convert = true;
};

// The value of element `index` of a tensor: noise that nobody can compress, and anybody can check.
std::uint32_t value_of(std::uint64_t tensor, std::uint64_t index) {
  std::uint64_t x = (tensor << 40) + index + 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return static_cast<std::uint32_t>(x >> 32);
}

class Memory {
 public:
  explicit Memory(std::uint64_t size) : size_(size) {
    void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) give_up("memory");
    (void)::madvise(data, size, MADV_HUGEPAGE);
    data_ = static_cast<std::byte*>(data);
    std::memset(data_, 1, size);
  }
  ~Memory() { ::munmap(data_, size_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  [[nodiscard]] std::span<std::byte> all() const { return {data_, size_}; }

 private:
  std::byte* data_ = nullptr;
  std::uint64_t size_;
};

// Even tensors are cut along rows, odd ones along columns.
std::uint32_t dimension_of(std::uint32_t tensor) {
  return tensor % 2;
}

Box part_of(std::uint32_t tensor, std::uint32_t rank, std::uint32_t ranks) {
  Box box{2, {0, 0}, {kRows, kColumns}};
  const std::uint32_t d = dimension_of(tensor);
  box.size[d] /= ranks;
  box.begin[d] = rank * box.size[d];
  return box;
}

CheckpointView view_of(const std::string& folder, std::uint32_t tensors) {
  CheckpointView view;
  for (std::uint32_t rank = 0; rank < kFrom; ++rank)
    view.files.push_back({.path = text(folder, "/shard", rank), .content = {}});
  for (std::uint32_t t = 0; t < tensors; ++t) {
    StoredTensor tensor{text("layer", t), "weight", ElementType::float32, {kRows, kColumns}, {}, 1, {}};
    for (std::uint32_t rank = 0; rank < kFrom; ++rank) {
      const Box box = part_of(t, rank, kFrom);
      tensor.pieces.push_back({box, rank, kHeader + t * (kTensorBytes / kFrom), dense_stride(box), false, 0, 0, rank});
    }
    view.tensors.push_back(tensor);
  }
  return view;
}

// The bytes of one rank's piece, row after row.
void fill_piece(std::uint32_t tensor, const Box& box, std::uint32_t* out) {
  for (std::uint64_t row = box.begin[0]; row < box.begin[0] + box.size[0]; ++row)
    for (std::uint64_t column = box.begin[1]; column < box.begin[1] + box.size[1]; ++column)
      *out++ = value_of(tensor, row * kColumns + column);
}

void write_shard(const std::string& path, std::uint32_t rank, std::uint32_t tensors) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  std::vector<std::uint32_t> piece(kTensorBytes / kFrom / 4);
  std::vector<std::byte> header(kHeader);
  bool good = fd >= 0 && ::write(fd, header.data(), kHeader) == static_cast<ssize_t>(kHeader);
  for (std::uint32_t t = 0; t < tensors && good; ++t) {
    fill_piece(t, part_of(t, rank, kFrom), piece.data());
    good = ::write(fd, piece.data(), piece.size() * 4) == static_cast<ssize_t>(piece.size() * 4);
  }
  if (!good || ::fsync(fd) != 0) give_up("write " + path);
  ::close(fd);
}

JobLayout wanted_layout(std::uint32_t tensors) {
  JobLayout layout;
  layout.world = kTo;
  layout.meshes.push_back({"mesh", {{"tp", kTo}}});
  for (std::uint32_t t = 0; t < tensors; ++t) {
    JobTensor tensor{text("layer", t), "weight", ElementType::float32, {kRows, kColumns}, {}, {}};
    tensor.placement.patterns.push_back(AxisPattern::shard(0, dimension_of(t)));
    layout.tensors.push_back(tensor);
  }
  return layout;
}

// --- The clock ----------------------------------------------------------------------------------------------------

struct Sample {
  double seconds = 0;
  double core_seconds = 0;  // that this process used
  double foreign = 0;       // share of all cores that others used
};

double busy_core_seconds() {
  std::ifstream in("/proc/stat");
  std::string name;
  double user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, soft = 0, steal = 0;
  in >> name >> user >> nice >> system >> idle >> wait >> irq >> soft >> steal;
  return (user + nice + system + irq + soft + steal) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

double own_core_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

Sample measure(const std::function<void()>& prepare, const std::function<void()>& body) {
  Sample best;
  for (int attempt = 0; attempt <= kRetakesMax; ++attempt) {
    prepare();
    const double busy = busy_core_seconds(), own = own_core_seconds();
    const auto begin = std::chrono::steady_clock::now();
    body();
    Sample sample;
    sample.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    sample.core_seconds = own_core_seconds() - own;
    const double all = sample.seconds * static_cast<double>(std::thread::hardware_concurrency());
    // Kernel threads that work for us are foreign here, and so they are for the floors.
    sample.foreign = std::max(0.0, busy_core_seconds() - busy - sample.core_seconds) / all;
    if (attempt == 0 || sample.foreign < best.foreign) best = sample;
    if (best.foreign <= kForeignMax) break;
  }
  return best;
}

struct Task {
  std::string name;
  std::uint64_t bytes = 0;
  std::function<void()> prepare;
  std::function<void()> body;
};

using Rounds = std::map<std::string, std::vector<Sample>>;

Rounds run_rounds(const std::vector<Task>& tasks, int rounds) {
  Rounds out;
  std::mt19937 random(std::random_device{}());
  for (int round = -1; round < rounds; ++round) {  // the first one warms up the machine and isn't counted
    std::vector<const Task*> order;
    for (const Task& task : tasks) order.push_back(&task);
    std::shuffle(order.begin(), order.end(), random);
    for (const Task* task : order) {
      const Sample sample = measure(task->prepare, task->body);
      if (round >= 0) out[task->name].push_back(sample);
      std::fprintf(stderr, "  round %d  %-22s %7.3f s  %6.2f GB/s  foreign %4.1f %%\n", round, task->name.c_str(),
                   sample.seconds, static_cast<double>(task->bytes) / sample.seconds * 1e-9, sample.foreign * 100);
    }
  }
  return out;
}

struct Spread {
  double median = 0, least = 0, most = 0;
};

Spread spread_of(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  const double median = values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
  return {median, values.front(), values.back()};
}

nlohmann::json json_of(const Spread& spread) {
  return {{"median", spread.median}, {"min", spread.least}, {"max", spread.most}};
}

std::string text_of(const Spread& spread, int digits) {
  char line[96];
  std::snprintf(line, sizeof line, "%.*f [%.*f .. %.*f]", digits, spread.median, digits, spread.least, digits,
                spread.most);
  return line;
}

// Rates of every task, and the ratios of one of them to the fastest of the others, round by round.
void tell(const std::string& title, const std::vector<Task>& tasks, const Rounds& rounds, const std::string& ours,
          const std::vector<std::string>& floors, bool time_over_floor, const std::string& goal, nlohmann::json& out) {
  std::printf("\n### %s\n\n| | GB/s, median [min .. max] | own core-s/GB | foreign CPU |\n|---|---|---|---|\n",
              title.c_str());
  double floor_least = 0, floor_most = 0;
  for (const Task& task : tasks) {
    std::vector<double> rates, cores, foreign;
    const double gigabytes = static_cast<double>(task.bytes) * 1e-9;
    for (const Sample& sample : rounds.at(task.name)) {
      rates.push_back(gigabytes / sample.seconds);
      cores.push_back(sample.core_seconds / gigabytes);
      foreign.push_back(sample.foreign * 100);
    }
    std::printf("| %s | %s | %.2f | %.0f %% |\n", task.name.c_str(), text_of(spread_of(rates), 2).c_str(),
                spread_of(cores).median, spread_of(foreign).median);
    out[task.name] = {{"gb_per_s", json_of(spread_of(rates))},
                      {"own_core_s_per_gb", json_of(spread_of(cores))},
                      {"foreign_percent", json_of(spread_of(foreign))},
                      {"bytes", task.bytes}};
  }
  const auto bytes_of = [&](const std::string& name) {
    return static_cast<double>(std::ranges::find(tasks, name, &Task::name)->bytes);
  };
  std::vector<double> ratios, best_rates;
  for (std::size_t i = 0; i < rounds.at(ours).size(); ++i) {
    double best = 0;
    for (const std::string& floor : floors) best = std::max(best, bytes_of(floor) / rounds.at(floor)[i].seconds);
    const double mine = bytes_of(ours) / rounds.at(ours)[i].seconds;
    ratios.push_back(time_over_floor ? best / mine : mine / best);
    best_rates.push_back(best);
  }
  const Spread best = spread_of(best_rates);
  floor_least = best.least;
  floor_most = best.most;
  std::printf("\n%s to the best floor of its round, %s: **%s** (goal %s)%s\n", ours.c_str(),
              time_over_floor ? "time over time" : "rate over rate", text_of(spread_of(ratios), 3).c_str(),
              goal.c_str(), floor_most > 1.15 * floor_least ? "; the floor moved by more than 15 %: void" : "");
  out["ratio"] = json_of(spread_of(ratios));
  out["floor_moved"] = floor_most / floor_least;
}

// --- What is measured ---------------------------------------------------------------------------------------------

ExecuteReport must(Result<ExecuteReport> report) {
  if (!report) {
    std::fprintf(stderr, "bench/reshape: %s\n", report.error().what.c_str());
    std::exit(1);
  }
  return *report;
}

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {
    if (options_.threads == 0) options_.threads = std::max(1u, std::thread::hardware_concurrency());
  }

  void run() {
    std::uint64_t tensors = std::max<std::uint64_t>(2, options_.file_bytes / kTensorBytes);
    print_machine();
    if (options_.reading || options_.convert) {
      make_files(static_cast<std::uint32_t>(tensors));
      if (options_.reading) read_files();
      if (options_.convert) convert();
      for (const RawFile& file : files_) ::unlink(file.path.c_str());
    }
    if (options_.memory) move_memory();
    if (!options_.json.empty()) std::ofstream(options_.json) << json_.dump(1) << "\n";
  }

 private:
  void print_machine() {
    double load[3] = {};
    (void)::getloadavg(load, 3);
    std::printf("%u cores, load %.1f, budget %.0f MiB, %d rounds\n", options_.threads, load[0],
                static_cast<double>(options_.budget) / (1 << 20), options_.rounds);
    json_["load"] = load[0];
    json_["rounds"] = options_.rounds;
  }

  void make_files(std::uint32_t tensors) {
    tensors_ = tensors;
    if (Status made = make_directories(options_.folder); !made) give_up(made.error().what);
    struct statvfs disk {};
    const std::uint64_t need = tensors * kTensorBytes * (options_.convert ? 2 : 1) * 21 / 20;
    if (::statvfs(options_.folder.c_str(), &disk) != 0) give_up("statvfs");
    if (disk.f_bavail * disk.f_frsize < need) {
      std::fprintf(stderr, "bench/reshape: %s has less than the %.1f GB that are needed\n", options_.folder.c_str(),
                   static_cast<double>(need) * 1e-9);
      std::exit(1);
    }
    view_ = view_of(options_.folder, tensors);
    for (std::uint32_t rank = 0; rank < kFrom; ++rank) {
      write_shard(view_.files[rank].path, rank, tensors);
      files_.push_back({view_.files[rank].path, kHeader + tensors * (kTensorBytes / kFrom)});
    }
  }

  void evict_files() const {
    for (const RawFile& file : files_) evict(file.path);
  }

  // Each rank's buffers, one after another.
  [[nodiscard]] CopyTarget memory_target(std::span<std::byte> memory) const {
    CopyTarget target;
    target.place = [memory, tensors = tensors_](std::uint32_t rank, std::uint32_t tensor) {
      const std::uint64_t size = kTensorBytes / kTo;
      return BufferPlace{memory.data() + (rank * std::uint64_t{tensors} + tensor) * size, 0, 0, size};
    };
    return target;
  }

  [[nodiscard]] ExecuteOptions execute_options() const {
    ExecuteOptions options;
    options.memory_bytes = options_.budget;
    options.threads = options_.threads;
    return options;
  }

  void check_rank(std::span<const std::byte> memory, std::uint32_t rank) const {
    std::vector<std::uint32_t> expected(kTensorBytes / kTo / 4);
    for (std::uint32_t t = 0; t < tensors_; ++t) {
      fill_piece(t, part_of(t, rank, kTo), expected.data());
      const std::byte* got = memory.data() + (rank * std::uint64_t{tensors_} + t) * (kTensorBytes / kTo);
      if (std::memcmp(got, expected.data(), expected.size() * 4) == 0) continue;
      std::fprintf(stderr, "bench/reshape: tensor %u of rank %u is WRONG\n", t, rank);
      std::exit(1);
    }
  }

  void read_files() {
    const JobLayout layout = wanted_layout(tensors_);
    const std::uint64_t bytes = tensors_ * kTensorBytes;
    const Memory memory(bytes + kFrom * (kHeader + 4096));
    const std::span<std::byte> to = memory.all();
    ExecuteReport all, one;
    const auto reshape = [&](bool one_rank) {
      const Enumeration enumeration(layout);
      const ReshapeSource source = source_of(view_);
      const Result<ReshapePlan> plan = ReshapePlan::create(source, enumeration);
      if (!plan) give_up(plan.error().what);
      const CopyStream copies = [&](const CopySink& sink) {
        return one_rank ? plan->plan_rank(1, sink) : plan->plan_all(sink);
      };
      return must(execute(copies, places_of(view_), memory_target(to), execute_options()));
    };
    const auto cold = [&] { evict_files(); };
    const std::vector<Task> tasks{
        {"raw, O_DIRECT io_uring", bytes, cold, [&] { read_direct(files_, to, options_.threads); }},
        {"raw, buffered", bytes, cold, [&] { read_buffered(files_, to, options_.threads); }},
        {"raw, mmap", bytes, cold, [&] { read_mapped(files_, to, options_.threads); }},
        {"pawl, one rank of 2", bytes / kTo, cold, [&] { one = reshape(true); }},
        {"pawl, all ranks", bytes, cold, [&] { all = reshape(false); }}};
    const Rounds rounds = run_rounds(tasks, options_.rounds);
    reshape(false);
    check_rank(to, 0);
    check_rank(to, 1);
    const std::vector<std::string> raw{tasks[0].name, tasks[1].name, tasks[2].name};
    tell("Direct reshape of cold files: TP 4 to TP 2", tasks, rounds, "pawl, all ranks", raw, false, ">= 0.95",
         json_["read"]);
    nlohmann::json& out = json_["read"];
    out["all_read_over_needed"] = static_cast<double>(all.bytes_read) / static_cast<double>(bytes);
    out["rank_read_over_needed"] = static_cast<double>(one.bytes_read) / static_cast<double>(bytes / kTo);
    out["buffer_bytes_max"] = all.buffer_bytes_max;
    std::printf("Bytes read over bytes needed: all ranks %.4f, one rank %.4f (goal <= 1.05). Buffers: %.0f MiB.\n",
                out["all_read_over_needed"].get<double>(), out["rank_read_over_needed"].get<double>(),
                static_cast<double>(all.buffer_bytes_max) / (1 << 20));
    std::printf("io_uring: %s\n", all.used_io_uring ? "yes" : "no");
  }

  void move_memory() {
    tensors_ = static_cast<std::uint32_t>(std::max<std::uint64_t>(2, options_.memory_bytes / kTensorBytes));
    const std::uint64_t bytes = tensors_ * kTensorBytes;
    const JobLayout from = wanted_layout_of(kFrom), to = wanted_layout(tensors_);
    const Memory source_memory(bytes), target_memory(bytes);
    for (std::uint32_t rank = 0; rank < kFrom; ++rank) {
      for (std::uint32_t t = 0; t < tensors_; ++t)
        fill_piece(t, part_of(t, rank, kFrom), reinterpret_cast<std::uint32_t*>(source_place(source_memory, rank, t)));
    }
    const Enumeration held(from), wanted(to);
    const ReshapeSource source = source_of(held);
    CopySource places;
    places.place = [&](std::uint32_t rank, std::uint32_t tensor) {
      return BufferPlace{source_place(source_memory, rank, tensor), 0, 0, kTensorBytes / kFrom};
    };
    const auto nothing = [] {};
    const std::span<std::byte> target = target_memory.all();
    const std::vector<Task> tasks{
        {"tuned copy", bytes, nothing, [&] { copy_tuned(source_memory.all(), target, options_.threads); }},
        {"memcpy, one a thread", bytes, nothing, [&] { copy_plain(source_memory.all(), target, options_.threads); }},
        {"pawl, memory to memory", bytes, nothing, [&] {
           const Result<ReshapePlan> plan = ReshapePlan::create(source, wanted);
           if (!plan) give_up(plan.error().what);
           must(execute([&](const CopySink& sink) { return plan->plan_all(sink); }, places, memory_target(target),
                        execute_options()));
         }}};
    const Rounds rounds = run_rounds(tasks, options_.rounds);
    std::ranges::fill(target, std::byte{0});
    tasks.back().body();
    check_rank(target, 0);
    check_rank(target, 1);
    tell("Memory to memory: TP 4 to TP 2, runs of 8 KiB and longer", tasks, rounds, "pawl, memory to memory",
         {tasks[0].name, tasks[1].name}, false, ">= 0.9", json_["memory"]);
  }

  [[nodiscard]] std::byte* source_place(const Memory& memory, std::uint32_t rank, std::uint32_t tensor) const {
    return memory.all().data() + (rank * std::uint64_t{tensors_} + tensor) * (kTensorBytes / kFrom);
  }

  [[nodiscard]] JobLayout wanted_layout_of(std::uint32_t ranks) const {
    JobLayout layout = wanted_layout(tensors_);
    layout.world = ranks;
    layout.meshes[0].axes[0].size = ranks;
    return layout;
  }

  // The peak of resident memory since the last call, above what it was then.
  static std::uint64_t resident_peak() {
    std::ifstream in("/proc/self/status");
    for (std::string line; std::getline(in, line);)
      if (line.starts_with("VmHWM:")) return std::strtoull(line.c_str() + 6, nullptr, 10) * 1024;
    return 0;
  }
  static std::uint64_t begin_peak() {
    std::ofstream("/proc/self/clear_refs") << 5;
    return resident_peak();
  }

  void convert() {
    std::string head = "{";
    for (std::uint32_t t = 0; t < tensors_; ++t) {
      head += text(t == 0 ? "" : ",", "\"layer", t, "/weight\":{\"dtype\":\"F32\",\"shape\":[", kRows, ',', kColumns,
                   "],\"data_offsets\":[", t * kTensorBytes, ',', (t + 1) * kTensorBytes, "]}");
    }
    head += "}";
    while (head.size() % 8 != 0) head += ' ';
    const std::uint64_t length = head.size();
    head.insert(0, reinterpret_cast<const char*>(&length), 8);
    const std::uint64_t bytes = tensors_ * kTensorBytes;
    const std::string path = options_.folder + "/target";
    JobLayout layout = wanted_layout_of(1);
    std::uint64_t peak = 0, temporary = 0;
    ExecuteReport report;
    const auto prepare = [&] {
      ::unlink(path.c_str());
      ::sync();
      evict_files();
    };
    const auto body = [&] {
      const std::uint64_t before = begin_peak();
      const Enumeration enumeration(layout);
      const ReshapeSource source = source_of(view_);
      const Result<ReshapePlan> plan = ReshapePlan::create(source, enumeration);
      if (!plan) give_up(plan.error().what);
      CopyTarget target;
      target.files = {{path, head.size() + bytes, head}};
      target.place = [&](std::uint32_t, std::uint32_t tensor) {
        return BufferPlace{nullptr, 0, head.size() + tensor * kTensorBytes, kTensorBytes};
      };
      report = must(execute([&](const CopySink& sink) { return plan->plan_all(sink); }, places_of(view_), target,
                            execute_options()));
      peak = std::max(peak, resident_peak() - before);
      const Result<std::vector<std::string>> names = real_files().list(options_.folder);
      temporary = names ? names->size() - kFrom - 1 : 1;
    };
    const std::vector<Task> tasks{
        {"copy, O_DIRECT io_uring", bytes, prepare, [&] { copy_direct(files_, path, options_.threads); }},
        {"copy, buffered + fsync", bytes, prepare, [&] { copy_buffered(files_, path, options_.threads); }},
        {"copy_file_range + fsync", bytes, prepare, [&] { copy_in_kernel(files_, path); }},
        {"pawl, convert", bytes, prepare, body}};
    const Rounds rounds = run_rounds(tasks, options_.rounds);
    prepare();
    body();
    check_converted(path, head);
    ::unlink(path.c_str());
    tell("Four files to one safetensors, on the disk", tasks, rounds, "pawl, convert",
         {tasks[0].name, tasks[1].name, tasks[2].name}, true, "<= 1.25", json_["convert"]);
    std::printf("Peak memory %.0f MiB; buffers %.0f MiB; temporary files: %llu.\n",
                static_cast<double>(peak) / (1 << 20), static_cast<double>(report.buffer_bytes_max) / (1 << 20),
                static_cast<unsigned long long>(temporary));
    json_["convert"]["peak_bytes"] = peak;
    json_["convert"]["temporary_files"] = temporary;
    json_["convert"]["read_over_needed"] = static_cast<double>(report.bytes_read) / static_cast<double>(bytes);
  }

  void check_converted(const std::string& path, const std::string& head) const {
    std::ifstream in(path, std::ios::binary);
    std::string found(head.size(), '\0');
    in.read(found.data(), static_cast<std::streamsize>(found.size()));
    std::vector<std::uint32_t> expected(kTensorBytes / 4), got(kTensorBytes / 4);
    bool good = found == head;
    for (std::uint32_t t = 0; t < tensors_ && good; ++t) {
      fill_piece(t, whole_box({kRows, kColumns}), expected.data());
      in.read(reinterpret_cast<char*>(got.data()), static_cast<std::streamsize>(kTensorBytes));
      good = in.good() && got == expected;
    }
    if (good) return;
    std::fprintf(stderr, "bench/reshape: the converted file is WRONG\n");
    std::exit(1);
  }

  Options options_;
  std::uint32_t tensors_ = 0;
  CheckpointView view_;
  std::vector<RawFile> files_;
  nlohmann::json json_;
};

std::uint64_t mebibytes(const char* value) {
  return std::strtoull(value, nullptr, 10) << 20;
}

}  // namespace
}  // namespace pawl::bench

int main(int argc, char** argv) {
  using namespace pawl::bench;
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (name == "--full") {
      options.file_bytes = std::uint64_t{5'000'000'000};
      options.memory_bytes = std::uint64_t{3} << 30;
      options.rounds = 7;
      continue;
    }
    ++i;
    if (name == "--folder") {
      options.folder = value;
    } else if (name == "--json") {
      options.json = value;
    } else if (name == "--rounds") {
      options.rounds = std::max(1, std::atoi(value));
    } else if (name == "--threads") {
      options.threads = static_cast<unsigned>(std::atoi(value));
    } else if (name == "--size-mib") {
      options.file_bytes = options.memory_bytes = mebibytes(value);
    } else if (name == "--budget-mib") {
      options.budget = mebibytes(value);
    } else if (name == "--only") {
      const std::string only = value;
      options.reading = only == "read";
      options.memory = only == "memory";
      options.convert = only == "convert";
    } else {
      std::fprintf(
          stderr,
          "usage: run [--full] [--folder build/bench] [--json FILE] [--rounds 5] [--threads 0] [--size-mib 1024]\n"
          "           [--budget-mib 1024] [--only read|memory|convert]\n");
      return 2;
    }
  }
  Bench(options).run();
  return 0;
}
