// statebench: what pawl does with a state of any size. The loop of pawl.h, with nothing but the state and pawl in it.
//
// Seats meet once a step, by keys of pawl's rendezvous; there is no other network. Until the first window is sealed a
// step goes straight to the fence, so that the fence tells how long the seal takes.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>

#include "device.h"
#include "pawl/pawl.hpp"
#include "report.h"
#include "settings.h"
#include "state.h"

namespace statebench {
namespace {

using pawl::Phase;
using pawl::Status;
using Clock = std::chrono::steady_clock;

#define STATEBENCH_TRY(call)                                            \
  do {                                                                  \
    if (const Status tried = (call); tried != Status::ok) return tried; \
  } while (false)

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

class Training {
 public:
  explicit Training(Settings settings) : settings_(std::move(settings)) {}

  // The process's exit code.
  int run() {
    if (!report_.begin(settings_)) return end_with("can't write into --record " + settings_.record);
    if (!prepare()) return end_with(why_);
    Status status = trainer_.attach();
    while (status == Status::ok && !done_) {
      status = train();
      if (status == Status::recover) {
        ++totals_.recoveries;
        status = Status::ok;
      }
    }
    if (status == Status::ok) return 0;
    if (status == Status::stop) {
      std::fprintf(stderr, "statebench: stopped: %s\n", trainer_.error());
      return 3;
    }
    return end_with(!why_.empty() ? why_ : std::string(name_of(status)) + ": " + trainer_.error());
  }

 private:
  // A spare has touched all of its memory long before it is needed.
  bool prepare() {
    if (settings_.cuda) {
      if (!device_.open(settings_.bytes, &why_)) return false;
      state_.use(device_.host(), settings_.bytes, settings_.touch);
    } else if (!state_.allocate(settings_.bytes, settings_.touch)) {
      why_ = "too little memory for --bytes " + std::to_string(settings_.bytes);
      return false;
    }
    Clock::time_point begin = Clock::now();
    state_.fill({settings_.seed, 0});
    totals_.cold_touch_seconds = seconds_since(begin);
    begin = Clock::now();
    state_.fill({settings_.seed, 0});
    totals_.touch_seconds = seconds_since(begin);
    totals_.bytes = state_.bytes();
    totals_.tensors = settings_.tensors;
    totals_.steps = settings_.steps;
    return true;
  }

  // From one recovery to the next, or to the end.
  Status train() {
    STATEBENCH_TRY(join());
    for (std::uint64_t next = seat_.resume_step + 1; next <= settings_.steps; ++next) STATEBENCH_TRY(step(next));
    STATEBENCH_TRY(check(settings_.steps));
    const Clock::time_point begin = Clock::now();
    STATEBENCH_TRY(trainer_.finish());
    totals_.finish_seconds = seconds_since(begin);
    if (totals_.first_seal_seconds == 0 && settings_.steps == 1) totals_.first_seal_seconds = seconds_since(opened_);
    done_ = true;
    report_.end(totals_);
    return Status::ok;
  }

  Status join() {
    STATEBENCH_TRY(trainer_.recover_join(&seat_));
    identity_ = {settings_.seed, seat_.seat};
    totals_.seat = seat_.seat;
    totals_.world = seat_.world;
    opened_step_ = 0;
    if (!declared_) STATEBENCH_TRY(declare());
    if (seat_.resume_step == 0) {
      state_.fill(identity_);
      if (device_.is_open() && !device_.upload(0, state_.bytes())) return device_failed();
    } else {
      const Clock::time_point begin = Clock::now();
      STATEBENCH_TRY(trainer_.restore());
      totals_.restore_seconds = std::max(totals_.restore_seconds, seconds_since(begin));
      ++totals_.restores;
      if (device_.is_open() && !(device_.download(0, state_.bytes()) && device_.finish())) return device_failed();
      if (!settings_.timed) STATEBENCH_TRY(check(seat_.resume_step));
    }
    return trainer_.recover_done();
  }

  Status declare() {
    STATEBENCH_TRY(trainer_.mesh_add("data", {{"dp", seat_.world}}));
    for (std::uint64_t i = 0; i < settings_.tensors; ++i) {
      const std::span<std::uint64_t> words = state_.tensor(i, settings_.tensors);
      const std::string name = "tensor." + std::to_string(i) + "/rank" + std::to_string(seat_.rank);
      std::uint64_t* data = words.data();
      if (device_.is_open()) {
        const std::byte* host = reinterpret_cast<const std::byte*>(data);
        data =
            reinterpret_cast<std::uint64_t*>(device_.memory() + (host - static_cast<const std::byte*>(device_.host())));
      }
      STATEBENCH_TRY(trainer_.tensor_add(name, data, {words.size()}, pawl::unique("weight")));
    }
    if (device_.is_open()) STATEBENCH_TRY(trainer_.stream_use(device_.stream()));
    const Clock::time_point begin = Clock::now();
    STATEBENCH_TRY(trainer_.layout_seal());
    totals_.attach_seconds = seconds_since(begin);
    declared_ = true;
    return Status::ok;
  }

  Status step(std::uint64_t step) {
    const Clock::time_point begin = Clock::now();
    STATEBENCH_TRY(trainer_.step_begin(step));
    StepReport told;
    const bool seals_first = totals_.captured == 0 && opened_step_ > 0;
    if (seals_first) STATEBENCH_TRY(fence(&told));
    STATEBENCH_TRY(compute());
    const Clock::time_point arrived = Clock::now();
    STATEBENCH_TRY(barrier(step));
    told.barrier_seconds = seconds_since(arrived);
    if (!seals_first) STATEBENCH_TRY(fence(&told));

    STATEBENCH_TRY(trainer_.progress(Phase::update));
    STATEBENCH_TRY(advance(step));
    opened_ = Clock::now();
    STATEBENCH_TRY(trainer_.window_open(step, step * seat_.world));
    opened_step_ = step;

    told.seat = seat_.seat;
    told.generation = seat_.generation;
    told.step = step;
    told.seconds = seconds_since(begin);
    told.committed = trainer_.committed_step();
    totals_.barriers.push_back(told.barrier_seconds);
    report_.step(told);
    return Status::ok;
  }

  // On a device the change is on its way when the window opens, in the stream that pawl was told of.
  Status advance(std::uint64_t step) {
    if (!device_.is_open()) {
      state_.advance(identity_, step);
      return Status::ok;
    }
    bool works = device_.finish();  // what is uploaded is not written any more
    state_.advance(identity_, step);
    state_.each_change(step, [&](std::uint64_t begin) { works = works && device_.upload(begin, kBlockBytes); });
    return works ? Status::ok : device_failed();
  }

  Status device_failed() {
    why_ = "the CUDA device has failed";
    return Status::io;
  }

  Status fence(StepReport* told) {
    pawl::FenceReport report{};
    STATEBENCH_TRY(trainer_.fence(&report));
    told->window = report.step;
    told->captured = report.captured != 0;
    told->why_void = report.why_void;
    told->fence_seconds = static_cast<double>(report.waited_ns) * 1e-9;
    totals_.fence_seconds_max = std::max(totals_.fence_seconds_max, told->fence_seconds);
    if (report.step == 0) return Status::ok;
    if (told->captured && totals_.captured == 0) {
      totals_.first_seal_seconds = seconds_since(opened_);
      totals_.first_sealed_step = report.step;
    }
    ++(told->captured ? totals_.captured : totals_.voided);
    return Status::ok;
  }

  // As a device that computes while the cores are free. The wait ends with the step if that is lost, as a collective
  // would.
  Status compute() {
    const Clock::time_point end = Clock::now() + std::chrono::milliseconds(settings_.step_ms);
    for (;;) {
      STATEBENCH_TRY(trainer_.progress(Phase::compute));
      if (trainer_.interrupted()) return Status::ok;  // the next call says why
      const auto left = end - Clock::now();
      if (left <= Clock::duration::zero()) return Status::ok;
      std::this_thread::sleep_for(std::min<Clock::duration>(left, std::chrono::milliseconds(20)));
    }
  }

  // Nobody passes before all have come. Whoever comes last opens it and takes the last one's keys away, which all have
  // passed.
  Status barrier(std::uint64_t step) {
    if (seat_.world == 1) return Status::ok;
    const std::string count = "count/", open = "open/", now = std::to_string(step), last = std::to_string(step - 1);
    STATEBENCH_TRY(trainer_.progress(Phase::allreduce));
    std::int64_t come = 0;
    STATEBENCH_TRY(trainer_.rendezvous_add(count + now, 1, &come));
    if (come == static_cast<std::int64_t>(seat_.world)) {
      STATEBENCH_TRY(trainer_.rendezvous_set(open + now, "1"));
      STATEBENCH_TRY(trainer_.rendezvous_delete(count + last));
      return trainer_.rendezvous_delete(open + last);
    }
    for (;;) {
      std::string value;
      const Status got = trainer_.rendezvous_get(open + now, &value, std::chrono::milliseconds(500));
      if (got != Status::timeout) return got;
      STATEBENCH_TRY(trainer_.progress(Phase::allreduce));
    }
  }

  // Every byte is that of this step.
  Status check(std::uint64_t step) {
    STATEBENCH_TRY(trainer_.progress(Phase::aside));
    if (device_.is_open() && !(device_.finish() && device_.download(0, state_.bytes()) && device_.finish()))
      return device_failed();
    const std::optional<std::uint64_t> wrong = state_.first_difference(identity_, step);
    totals_.bitwise = !wrong;
    if (!wrong) return Status::ok;
    why_ = "seat " + std::to_string(seat_.seat) + ": the state is not that of step " + std::to_string(step) +
           ", first within 4096 bytes from " + std::to_string(*wrong);
    report_.end(totals_);
    return Status::io;
  }

  static int end_with(const std::string& why) {
    std::fprintf(stderr, "statebench: %s\n", why.c_str());
    return 1;
  }

  const Settings settings_;
  Report report_;
  Totals totals_;
  Device device_;  // before state_, which may lie in its memory
  State state_;    // before trainer_, which lets go of it first
  pawl::Trainer trainer_;
  pawl::Seat seat_{};
  Identity identity_;
  bool declared_ = false;
  bool done_ = false;
  std::uint64_t opened_step_ = 0;  // whose window may be open; 0: none
  Clock::time_point opened_;
  std::string why_;
};

}  // namespace
}  // namespace statebench

int main(int count, char** arguments) {
  statebench::Settings settings;
  std::string why;
  if (!statebench::parse_settings(count, arguments, &settings, &why)) {
    std::fprintf(stderr, "statebench: %s\n", why.c_str());
    return 2;
  }
  if (settings.help) {
    std::printf("%s", statebench::usage());
    return 0;
  }
  return statebench::Training(std::move(settings)).run();
}
