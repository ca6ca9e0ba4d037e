// What a job's checkpoints make of this machine's disk: the way from a pinned slot to a published checkpoint, and back into a
// slot, as pawld takes it, against raw O_DIRECT of as many bytes; and what it costs trainers that compute meanwhile.
// make bench-storage ARGS="--size MIB --rounds N --trainers 0|1 --folder PATH" (see run).
//
// A raw write stands before and after each checkpoint, a raw read before and after each restore; a ratio is formed within its
// round, against the mean of both. All is on the disk when a clock stops. Files are evicted before they are read, checked with
// mincore; what was restored is compared with the slot, outside the clock. All memory is touched before.
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/memory_kernel.h"
#include "base/text.h"
#include "job/persist/checkpoint_store.h"
#include "job/persist/persist_record.h"
#include "job/persist/slot_part.h"
#include "memory/scene.h"
#include "print.h"
#include "reshape/raw.h"
#include "trainers.h"

namespace pawl::job::bench {
namespace {

using pawl::bench::load;
using pawl::bench::spread;

constexpr Seat kSeat{0};
constexpr Generation kGeneration{1};

struct Options {
  std::uint64_t bytes = std::uint64_t{2} << 30;
  int rounds = 7;
  bool trainers = true;
  std::string folder = "build/bench-storage";
};

template <class Value>
Value must(Result<Value> result) {
  if (!result) give_up(result.error().what);
  return std::move(*result);
}

void must(const Status& status) {
  if (!status) give_up(status.error().what);
}

struct Sample {
  double seconds = 0;
  double core_seconds = 0;  // of this process, with the kernel's on its behalf
};

// On a thread of its own, as pawld's tasks are: what makes itself nice there stays so.
Sample timed(const std::function<void()>& work) {
  const double begun = seconds_now(), used = core_seconds_now();
  std::thread(work).join();
  return {seconds_now() - begun, core_seconds_now() - used};
}

using Phases = std::map<std::string, Sample>;

// The state of a job of one seat, sealed and pinned; and its checkpoints in a folder.
class Job {
 public:
  explicit Job(const Options& options)
      : scene_(options.bytes),
        spec_(scene_.arena().spec()),
        folder_(options.folder + "/checkpoints"),
        store_(file_checkpoint_store()) {
    spec_.layout = text_of(scene_.layout());
    must(claim_checkpoint_folder(folder_, "bench", "digest", true));
    scene_.capture(*scene_.make_capture(2));
    slot().pin(kGeneration, slot().word().step);
  }
  [[nodiscard]] const Slot& slot() const { return scene_.last_captured(); }
  [[nodiscard]] std::uint64_t bytes() const { return scene_.bytes(); }
  [[nodiscard]] std::size_t tensors() const { return scene_.layout().entries.size(); }
  // What nobody needs once the slot is sealed: of the same size.
  [[nodiscard]] std::span<std::byte> memory() const { return {scene_.state(), scene_.bytes()}; }
  [[nodiscard]] std::string path() const { return checkpoint_path(folder_, slot().word().step); }

  // As the root and a seat's node do it (job/daemon/persist.cc), without the control between them. `one_pass`: the slot is proven by
  // what is written of it; else before, by a pass of its own.
  Phases persist(bool one_pass) {
    Phases phases;
    std::unique_ptr<OpenCheckpoint> open;
    PartProgress progress;
    phases["begin the folder"] = timed([&] { open = must(store_->begin({path(), ++attempt_, "", ""})); });
    if (!one_pass) phases["prove the slot"] = timed([&] { must(slot().verify()); });
    phases["write the part"] = timed([&] {
      if (one_pass) {
        must(write_slot_part(*store_, open->folder(), kSeat, slot(), spec_, progress));
      } else {
        const SeatLayout layout = must(parse_layout(spec_.layout));
        const std::string info = to_json(SeatInfo{slot().samples(), spec_.bucket_bytes});
        const auto pieces = share_of(layout, kSeat, slot().payload(), spec_.layout, info);
        const std::string beside = text_of(beside_of(layout, kSeat, slot().payload()));
        must(store_->write(open->folder(), {kSeat, pieces, beside, values_in(layout, slot().payload())}, progress));
      }
      if (!slot().pinned(slot().word())) give_up("the slot is not pinned any more");
    });
    phases["publish"] = timed([&] { must(open->publish(1)); });
    return phases;
  }

  // As a seat whose state is nowhere in memory.
  Phases restore() {
    std::unique_ptr<StoredCheckpoint> stored;
    Phases phases;
    PartProgress progress;
    phases["open"] = timed([&] { stored = must(store_->open(path())); });
    phases["read"] = timed([&] {
      const StoredSeat seat = must(stored->seat(kSeat));
      must(stored->read(kSeat, must(parse_layout(seat.layout)), memory(), progress));
    });
    return phases;
  }

  // Each tensor: what lies between them is nobody's.
  void compare_restored() const {
    for (const LayoutEntry& entry : scene_.layout().entries)
      if (std::memcmp(memory().data() + entry.payload_offset, slot().payload().data() + entry.payload_offset,
                      entry.bytes) != 0)
        give_up(text("restored ", entry.name, " (", entry.role, ") differs"));
  }

  void evict_checkpoint() const {
    for (const auto& file : std::filesystem::directory_iterator(path())) pawl::bench::evict(file.path());
  }
  void remove() const { std::filesystem::remove_all(path()); }

 private:
  Scene scene_;
  ArenaSpec spec_;
  std::string folder_;
  std::unique_ptr<CheckpointStore> store_;
  std::uint64_t attempt_ = 0;
};

Sample total(const Phases& phases) {
  Sample sum;
  for (const auto& [name, one] : phases) {
    sum.seconds += one.seconds;
    sum.core_seconds += one.core_seconds;
  }
  return sum;
}

Sample raw_write(const Job& job, const std::string& path) {
  std::filesystem::remove(path);
  return timed([&] { pawl::bench::write_direct(job.slot().payload(), path, 1); });
}

Sample raw_read(const Job& job, const std::string& path) {
  pawl::bench::evict(path);
  const std::vector<pawl::bench::RawFile> files{{path, job.bytes() / 4096 * 4096}};
  return timed([&] { pawl::bench::read_direct(files, job.memory(), 1); });
}

Sample mean(const Sample& one, const Sample& other) {
  return {(one.seconds + other.seconds) / 2, (one.core_seconds + other.core_seconds) / 2};
}

template <class Of>
std::string spread_of(const std::vector<Sample>& samples, int digits, const Of& of) {
  std::vector<double> values;
  for (const Sample& sample : samples) values.push_back(of(sample));
  return spread(std::move(values), digits);
}

// What was measured of one thing, round by round, and of the raw one of the same rounds.
struct Row {
  std::string name;
  std::vector<Sample> samples{};
  std::vector<Sample> raw{};
  std::map<std::string, std::vector<Sample>> phases{};
  void add(const Phases& one, const Sample& raw_one) {
    samples.push_back(total(one));
    raw.push_back(raw_one);
    for (const auto& [phase, sample] : one) phases[phase].push_back(sample);
  }
};

void print(const Row& row, double bytes) {
  const auto rate = [bytes](const Sample& one) { return bytes / one.seconds * 1e-9; };
  const auto cost = [bytes](const Sample& one) { return one.core_seconds / bytes * 1e9; };
  std::vector<double> ratios;
  for (std::size_t i = 0; i < row.samples.size(); ++i) ratios.push_back(row.raw[i].seconds / row.samples[i].seconds);
  std::printf("| raw O_DIRECT, as many bytes | %s | | %s |\n", spread_of(row.raw, 2, rate).c_str(),
              spread_of(row.raw, 3, cost).c_str());
  std::printf("| %s | %s | %s | %s |\n", row.name.c_str(), spread_of(row.samples, 2, rate).c_str(),
              spread(ratios, 2).c_str(), spread_of(row.samples, 3, cost).c_str());
  for (const auto& [phase, samples] : row.phases)
    std::printf("| - %s | %s ms | | %s |\n", phase.c_str(),
                spread_of(samples, 0, [](const Sample& one) { return one.seconds * 1e3; }).c_str(),
                spread_of(samples, 3, cost).c_str());
}

void measure(const Options& options) {
  std::filesystem::create_directories(options.folder);
  const std::string raw = options.folder + "/raw";
  Job job(options);
  const auto bytes = static_cast<double>(job.bytes());
  std::printf("%.2f GB in %zu tensors; %u cores; kernel %s; load %s before\n", bytes * 1e-9, job.tensors(),
              std::thread::hardware_concurrency(), memory_kernel().name, load().c_str());
  Row written{"checkpoint, durable: proven, then written"}, in_one_pass{"checkpoint, durable: proven as it is written"},
      read{"restore, cold"};
  for (int round = -1; round < options.rounds; ++round) {  // the first warms up
    const Sample write_before = raw_write(job, raw);
    const Phases persisted = job.persist(false);
    job.remove();
    const Sample write_between = raw_write(job, raw);
    const Phases persisted_in_one = job.persist(true);
    const Sample write_after = raw_write(job, raw);
    const Sample read_before = raw_read(job, raw);
    job.evict_checkpoint();
    const Phases restored = job.restore();
    job.compare_restored();
    const Sample read_after = raw_read(job, raw);
    job.remove();
    if (round < 0) continue;
    written.add(persisted, mean(write_before, write_between));
    in_one_pass.add(persisted_in_one, mean(write_between, write_after));
    read.add(restored, mean(read_before, read_after));
  }
  std::printf("load %s after; medians of %d rounds (least .. greatest)\n\n", load().c_str(), options.rounds);
  std::printf("| | GB/s | of raw | core-seconds per GB |\n|---|---|---|---|\n");
  print(written, bytes);
  print(in_one_pass, bytes);
  print(read, bytes);

  if (!options.trainers) {
    std::filesystem::remove_all(options.folder);
    return;
  }
  std::vector<double> of_alone, of_alone_raw, seconds;
  const Trainers trainers(std::max(1u, std::thread::hardware_concurrency()));
  for (int round = -1; round < options.rounds; ++round) {
    const double alone = trainers.rate_during([] { ::usleep(1'000'000); });
    const double begun = seconds_now();
    const double during = trainers.rate_during([&] { (void)job.persist(true); });
    const double took = seconds_now() - begun;
    job.remove();
    const double during_raw = trainers.rate_during([&] { (void)raw_write(job, raw); });
    if (round < 0) continue;
    of_alone.push_back(during / alone);
    of_alone_raw.push_back(during_raw / alone);
    seconds.push_back(took);
  }
  std::printf("\nA trainer on each core: speed during a checkpoint, of its speed alone: %s; during a raw write: %s.\n",
              spread(of_alone, 2).c_str(), spread(of_alone_raw, 2).c_str());
  std::printf("The checkpoint takes %s s then.\n", spread(seconds, 2).c_str());
  std::filesystem::remove_all(options.folder);
}

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i], value = argv[i + 1];
    std::uint64_t number = 0;
    if (name == "--folder") {
      options.folder = value;
      continue;
    }
    if (std::from_chars(value.data(), value.data() + value.size(), number).ptr != value.data() + value.size())
      return false;
    if (name == "--size" && number > 0)
      options.bytes = number << 20;
    else if (name == "--rounds" && number > 0)
      options.rounds = static_cast<int>(number);
    else if (name == "--trainers" && number < 2)
      options.trainers = number == 1;
    else
      return false;
  }
  return argc % 2 == 1;
}

}  // namespace
}  // namespace pawl::job::bench

int main(int argc, char** argv) {
  pawl::job::bench::Options options;
  if (!pawl::job::bench::parse(argc, argv, options)) {
    std::fprintf(stderr, "storage_bench [--size MIB] [--rounds N] [--trainers 0|1] [--folder PATH]\n");
    return 2;
  }
  pawl::job::bench::measure(options);
}
