// What capture and restore make of this machine's memory: the shipped classes, against the best that their kernels do with
// nothing around them, against memcpy and torch. bench/memory/run [MIB] [ROUNDS]; all memory is touched before.
//
// A row is a name, its threads and what is timed (rows_of): to add one, add it there. Rounds are shuffled; a ratio is
// formed within its round, against the row that `against` names with as many threads.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>

#include "base/memory_kernel.h"
#include "base/text.h"
#include "job/trainer/slot_restore.h"
#include "print.h"
#include "scene.h"

namespace pawl::job::bench {
namespace {

using pawl::bench::load;
using pawl::bench::spread;

constexpr std::size_t kPieceBytes = 256 << 10;  // a bucket

struct Sample {
  double seconds = 0;
  double core_seconds = 0;  // of this process, or of torch's
};

// torch in a process of its own (torch_copy.py), which copies into the second slot.
class Torch {
 public:
  Torch(const std::string& python, const Scene& scene) {
    std::string places;
    for (const LayoutEntry& entry : scene.layout().entries)
      places += text(places.empty() ? "" : ",", entry.payload_offset, ",", entry.bytes);
    const std::string path = text("/proc/", getpid(), "/fd/", scene.segment());
    const std::string begin = text(scene.offset_in_segment(scene.arena().slot(1).payload().data()));
    std::array<int, 2> in{}, out{};
    if (pipe2(in.data(), O_CLOEXEC) != 0 || pipe2(out.data(), O_CLOEXEC) != 0) give_up("no pipes");
    child_ = fork();
    if (child_ == 0) {
      dup2(in[0], 0);
      dup2(out[1], 1);
      execl(python.c_str(), python.c_str(), "bench/memory/torch_copy.py", path.c_str(), begin.c_str(), places.c_str(),
            nullptr);
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    to_ = fdopen(in[1], "w");
    from_ = fdopen(out[0], "r");
    if (line() != "ready\n") give_up("torch_copy.py does not start");
  }
  Torch(const Torch&) = delete;
  Torch& operator=(const Torch&) = delete;
  ~Torch() {
    std::fclose(to_);
    std::fclose(from_);
    waitpid(child_, nullptr, 0);
  }
  Sample copy(unsigned threads) {
    std::fprintf(to_, "%u\n", threads);
    std::fflush(to_);
    Sample sample;
    if (std::sscanf(line().c_str(), "%lf %lf", &sample.seconds, &sample.core_seconds) != 2) give_up("torch ended");
    return sample;
  }

 private:
  std::string line() {
    std::array<char, 100> text{};
    return std::fgets(text.data(), text.size(), from_) == nullptr ? "" : text.data();
  }
  pid_t child_ = -1;
  FILE* to_ = nullptr;
  FILE* from_ = nullptr;
};

struct Row {
  std::string name;
  unsigned threads = 1;
  std::string against;  // the row that this one is compared with
  std::function<Sample()> sample{};
};

Sample timed(const std::function<void()>& work) {
  const double begun = seconds_now(), used = core_seconds_now();
  work();
  return {seconds_now() - begun, core_seconds_now() - used};
}

constexpr const char* kFloor = "best kernel, copy with CRC32C";
constexpr const char* kTunedCopy = "best kernel, copy alone";

std::vector<Row> rows_of(Scene& scene, Torch* torch, std::map<unsigned, std::unique_ptr<Capture>>& captures) {
  std::vector<Row> rows;
  const auto slot = [&scene] { return scene.arena().slot(1).payload().data(); };
  for (const unsigned threads : {1u, 2u}) {
    const auto add = [&](std::string name, std::string against, std::function<Sample()> sample) {
      rows.push_back({std::move(name), threads, std::move(against), std::move(sample)});
    };
    const auto add_pieces = [&](std::string name, std::string against, std::size_t piece, CopyPiece copy) {
      add(std::move(name), std::move(against), [&scene, threads, piece, copy = std::move(copy)] {
        return timed([&] { in_pieces(threads, scene.bytes(), piece, copy); });
      });
    };
    add_pieces(
        "memcpy, one call a thread", kFloor, (scene.bytes() + threads - 1) / threads,
        [&scene, slot](std::uint64_t at, std::size_t size) { std::memcpy(slot() + at, scene.state() + at, size); });
    add_pieces("memcpy, 256 KiB a call", kFloor, kPieceBytes, [&scene, slot](std::uint64_t at, std::size_t size) {
      std::memcpy(slot() + at, scene.state() + at, size);
    });
    add_pieces(kTunedCopy, kFloor, kPieceBytes, [&scene, slot](std::uint64_t at, std::size_t size) {
      memory_kernel().copy_rows({slot() + at, 0, scene.state() + at, 0, size, 1});
      memory_fence();
    });
    // Without the reference: what sums a byte at a time takes minutes.
    for (const MemoryKernel* kernel : memory_kernels()) {
      const bool best = kernel == &memory_kernel();
      if (!best && kernel == memory_kernels().back()) continue;
      add_pieces(best ? kFloor : text("kernel ", kernel->name), kFloor, kPieceBytes,
                 [&scene, slot, kernel](std::uint64_t at, std::size_t size) {
                   (void)kernel->copy_and_sum(slot() + at, scene.state() + at, size, ~0u);
                   memory_fence();
                 });
    }
    if (torch != nullptr)
      add("torch.Tensor.copy_, tensor by tensor", kFloor, [torch, threads] { return torch->copy(threads); });
    add("capture", kFloor, [&scene, &captures, threads] {
      scene.change_state();
      return timed([&] { scene.capture(*captures[threads]); });
    });
    add("restore of one's own slot", kTunedCopy, [&scene, &captures, threads] {
      scene.capture(*captures[2]);  // the rows above have written to the slots
      const Slot from = scene.last_captured();
      return timed([&] {
        SlotRestore restore(
            scene.plan(), scene.bases(), [] {}, threads);
        Status found = from.verify_header();
        if (found) found = restore.copy_rest(from);
        if (!found) give_up(found.error().what);
      });
    });
  }
  return rows;
}

void measure(std::uint64_t bytes, int rounds, const std::string& python) {
  Scene scene(bytes);
  std::printf("%.2f GB in %zu tensors; kernel %s; load %s before\n", static_cast<double>(scene.bytes()) * 1e-9,
              scene.layout().entries.size(), memory_kernel().name, load().c_str());

  // The first captures into new memory, and the next ones into the same, as long as nothing else has run.
  std::vector<double> first_of_warm, first_of_warm_cores;
  std::map<unsigned, std::unique_ptr<Capture>> captures;
  for (int round = 0; round < 3; ++round) {
    if (round > 0) scene.make_arena();
    captures[2] = scene.make_capture(2);
    const auto both_slots = [&] {
      return timed([&] {
        scene.capture(*captures[2]);
        scene.capture(*captures[2]);
      });
    };
    const Sample first = both_slots(), warm = both_slots();
    first_of_warm.push_back(warm.seconds / first.seconds);
    first_of_warm_cores.push_back(warm.core_seconds / first.core_seconds);
    captures.clear();
  }
  captures[1] = scene.make_capture(1);
  captures[2] = scene.make_capture(2);

  std::unique_ptr<Torch> torch;
  if (!python.empty()) torch = std::make_unique<Torch>(python, scene);
  const std::vector<Row> rows = rows_of(scene, torch.get(), captures);
  std::vector<std::size_t> order(rows.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::mt19937 random(static_cast<unsigned>(getpid()));
  std::vector<std::vector<Sample>> samples(rows.size());
  for (int round = 0; round < rounds; ++round) {
    std::ranges::shuffle(order, random);
    for (const std::size_t i : order) samples[i].push_back(rows[i].sample());
  }
  scene.capture(*captures[2]);
  if (Status verified = scene.last_captured().verify(); !verified) give_up(verified.error().what);

  std::printf("load %s after; medians of %d shuffled rounds (least .. greatest)\n\n", load().c_str(), rounds);
  std::printf("| | threads | GB/s | GB a second of a core | of its floor | of its floor, by time of cores | floor |\n");
  std::printf("|---|---|---|---|---|---|---|\n");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    const auto floor = static_cast<std::size_t>(
        std::ranges::find_if(rows,
                             [&](const Row& each) { return each.name == row.against && each.threads == row.threads; }) -
        rows.begin());
    std::vector<double> rates, core_rates, ratios, core_ratios;
    for (std::size_t round = 0; round < samples[i].size(); ++round) {
      const Sample &sample = samples[i][round], &least = samples[floor][round];
      rates.push_back(static_cast<double>(scene.bytes()) / sample.seconds * 1e-9);
      core_rates.push_back(static_cast<double>(scene.bytes()) / sample.core_seconds * 1e-9);
      ratios.push_back(least.seconds / sample.seconds);
      core_ratios.push_back(least.core_seconds / sample.core_seconds);
    }
    std::printf("| %s | %u | %s | %s | %s | %s | %s |\n", row.name.c_str(), row.threads, spread(rates, 1).c_str(),
                spread(core_rates, 1).c_str(), spread(ratios, 2).c_str(), spread(core_ratios, 2).c_str(),
                row.against.c_str());
  }
  std::printf("| first captures into new memory | 2 | | | %s | %s | the captures after them |\n",
              spread(first_of_warm, 2).c_str(), spread(first_of_warm_cores, 2).c_str());
}

}  // namespace
}  // namespace pawl::job::bench

int main(int argc, char** argv) {
  const std::uint64_t mib = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 3072;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 7;
  if (mib == 0 || rounds < 1) {
    std::fprintf(stderr, "memory_bench [MIB] [ROUNDS] [PYTHON]\n");
    return 2;
  }
  pawl::job::bench::measure(mib << 20, rounds, argc > 3 ? argv[3] : "");
}
