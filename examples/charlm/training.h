// Training: the loop of pawl.h, written out. Read step() and join(): they are what a training has to do for pawl.
//
// Trainer is pawl::Trainer, or PlainTrainer, which has the same calls and does nothing in them: the same loop is then a
// plain training. All arithmetic is in the other files, compiled once, so that both give the same bits.
// Whatever a call answers with Status::recover, and whatever a collective answers with a failure, ends the step: the
// ring is closed (which frees the neighbours as well) and join() waits for pawl's decision.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "model.h"
#include "optimizer.h"
#include "outcome.h"
#include "pawl/pawl.hpp"
#include "random.h"
#include "record.h"
#include "rendezvous.h"
#include "ring.h"
#include "sampler.h"
#include "settings.h"
#include "text_data.h"

namespace charlm {

using pawl::Phase;
using pawl::Status;

#define CHARLM_TRY_STATUS(call)                                         \
  do {                                                                  \
    if (const Status tried = (call); tried != Status::ok) return tried; \
  } while (false)

inline const char* environment_or(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr || value[0] == '\0' ? otherwise : value;
}

// Lets pawl end a wait in the ring.
template <class Trainer>
class TrainerWatch : public Watch {
 public:
  explicit TrainerWatch(Trainer& trainer) : trainer_(trainer) {}
  // What to report while a wait lasts; nothing while pawl sets the phase itself.
  void enter(std::optional<Phase> phase) { phase_ = phase; }

  [[nodiscard]] int event_fd() const override { return trainer_.event_fd(); }
  [[nodiscard]] bool interrupted() override {
    pawl::Event event{};
    while (trainer_.event_next(&event) == Status::ok) {
    }  // commits too make the descriptor readable
    return trainer_.interrupted();
  }
  void still_waiting() override {
    if (phase_) (void)trainer_.progress(*phase_);  // its answer: interrupted()
  }

 private:
  Trainer& trainer_;
  std::optional<Phase> phase_;
};

// Addresses over pawl's rendezvous; where there is none (PAWL=off, or no pawl at all) at MASTER_ADDR:MASTER_PORT.
template <class Trainer>
class PawlRendezvous : public Rendezvous {
 public:
  explicit PawlRendezvous(Trainer& trainer) : trainer_(trainer) {}
  // The Status behind the last failure: recover and stop are no failures of ours.
  [[nodiscard]] Status status() const { return status_; }
  [[nodiscard]] bool has_rendezvous() const { return has_rendezvous_; }

  Outcome exchange(std::uint32_t rank, std::uint32_t world, const Address& mine, Watch& watch, Address* next) override {
    status_ = trainer_.rendezvous_set(key(rank), mine.host + " " + mine.port);
    pawl::Seat seat{};
    has_rendezvous_ = status_ != Status::unreachable && trainer_.identity(&seat) == Status::ok && seat.generation > 0;
    if (!has_rendezvous_) {  // or one of this process alone
      status_ = Status::ok;
      return MasterRendezvous({environment_or("MASTER_ADDR", ""), environment_or("MASTER_PORT", "")})
          .exchange(rank, world, mine, watch, next);
    }
    std::string found;
    if (status_ == Status::ok)
      status_ = trainer_.rendezvous_get(key((rank + 1) % world), &found, std::chrono::seconds(60));
    if (status_ != Status::ok) return Outcome::failed(std::string("rendezvous: ") + trainer_.error());
    const std::size_t blank = found.find(' ');
    if (blank == found.npos) return Outcome::failed("rendezvous: this is no address: " + found);
    *next = {found.substr(0, blank), found.substr(blank + 1)};
    return {};
  }

 private:
  static std::string key(std::uint32_t rank) { return "ring/" + std::to_string(rank); }
  Trainer& trainer_;
  Status status_ = Status::ok;
  bool has_rendezvous_ = true;
};

template <class Trainer>
class Training {
 public:
  explicit Training(const Settings& settings)
      : settings_(settings), model_({settings.hidden, 0.1}), watch_(trainer_), rendezvous_(trainer_) {}

  // The process's exit code.
  int run() {
    if (const Outcome made = prepare(); !made.ok()) return end_with(made.what);
    Status status = trainer_.attach();
    if (status != Status::ok) return end_with(std::string("attach: ") + trainer_.error());
    do {
      status = train();
      ring_.close();
    } while (status == Status::recover);
    if (status == Status::ok) return 0;
    if (status == Status::stop) std::fprintf(stderr, "charlm: stopped: %s\n", trainer_.error());
    if (status == Status::stop) return 3;
    return end_with(!why_.empty() ? why_ : std::string(name_of(status)) + ": " + trainer_.error());
  }

 private:
  // What ranks tell each other about a step besides gradients.
  struct Summary {
    double loss;
    std::uint64_t step;
    std::uint64_t digest;
  };

  // Everything slow that needs no seat: a spare has done it long before it is needed.
  Outcome prepare() {
    CHARLM_TRY(record_.begin(settings_.record));
    CHARLM_TRY(load_text(settings_.data, kContext + 2, &text_));
    sampler_ = Sampler({settings_.seed, text_.bytes.size() - kContext});
    configuration_ = text_.hash;
    std::uint64_t rate_bits;
    std::memcpy(&rate_bits, &settings_.learning_rate, sizeof rate_bits);
    for (const std::uint64_t part : {settings_.steps, settings_.seed, settings_.batch, settings_.hidden, rate_bits}) {
      configuration_ = mix64(configuration_ ^ part) + kGolden;
    }
    return {};
  }

  // From one recovery to the next, or to the end.
  Status train() {
    CHARLM_TRY_STATUS(join());
    for (std::uint64_t next = seat_.resume_step + 1; next <= settings_.steps; ++next) CHARLM_TRY_STATUS(step(next));
    const FinalRecord final{optimizer_step_, sampler_.position(), sampler_.hash(),
                            fnv1a(dropout_.state, sizeof dropout_.state), updates_};
    CHARLM_TRY_STATUS(written(record_.write_final(seat_.seat, final, held_)));
    return survived(trainer_.finish());
  }

  Status join() {
    pawl::Seat seat{};
    watch_.enter(std::nullopt);
    CHARLM_TRY_STATUS(trainer_.recover_join(&seat));
    if (held_.empty()) {
      seat_ = seat;
      CHARLM_TRY_STATUS(declare());
    } else if (seat.rank != seat_.rank || seat.world != seat_.world) {
      return fail("given another rank or world than the one this process has declared its tensors for");
    }
    seat_ = seat;
    if (!sealed_) {  // a recovery may end the wait for the others, or for what is to be restored
      CHARLM_TRY_STATUS(trainer_.layout_seal());
      sealed_ = true;
    }
    if (seat_.resume_step == 0) {
      start_afresh();
    } else {
      CHARLM_TRY_STATUS(trainer_.restore());
      if (optimizer_step_ != seat_.resume_step) return fail("the restored state is of another step than pawl says");
    }
    model_.derive(weights_);
    CHARLM_TRY_STATUS(connect());
    return trainer_.recover_done();
  }

  // All state, by name. A shard's names carry its rank: only that rank has it.
  Status declare() {
    const std::size_t quantum = 4 * seat_.world;
    weights_.assign((model_.parameter_count() + quantum - 1) / quantum * quantum, 0.0f);
    gradients_.assign(weights_.size(), 0.0f);
    const std::size_t shard = weights_.size() / seat_.world;
    adam_ = {std::vector<float>(shard), std::vector<float>(shard)};

    CHARLM_TRY_STATUS(trainer_.mesh_add("data", {{"dp", seat_.world}}));
    for (const Parameter& parameter : model_.parameters()) {
      float* at = weights_.data() + parameter.offset;
      CHARLM_TRY_STATUS(protect(parameter.name, at, parameter.shape, pawl::replicated("weight")));
    }
    const std::string flat = "flat/rank" + std::to_string(seat_.rank);
    CHARLM_TRY_STATUS(protect(flat, adam_.exp_avg.data(), {shard}, pawl::unique("exp_avg")));
    CHARLM_TRY_STATUS(protect(flat, adam_.exp_avg_sq.data(), {shard}, pawl::unique("exp_avg_sq")));
    CHARLM_TRY_STATUS(protect("optimizer", &optimizer_step_, {}, pawl::replicated("step")));
    CHARLM_TRY_STATUS(protect("dropout/rank" + std::to_string(seat_.rank), dropout_.state, {4},
                              pawl::unique("rng", pawl::Lifetime::is_volatile)));
    for (Derived& derived : model_.derived()) {
      CHARLM_TRY_STATUS(protect(derived.name, derived.values.data(), derived.shape,
                                pawl::replicated("transposed", pawl::Lifetime::derived)));
    }
    CHARLM_TRY_STATUS(trainer_.blob_add(
        "sampler", Sampler::kStateBytes,
        [this](void* buffer, std::size_t capacity, std::size_t* size) {
          if (capacity < Sampler::kStateBytes) return false;
          sampler_.save(buffer);
          *size = Sampler::kStateBytes;
          return true;
        },
        [this](const void* buffer, std::size_t size) { return sampler_.load(buffer, size); }));
    return Status::ok;
  }

  template <class Value>
  Status protect(const std::string& name, Value* data, const pawl::Shape& shape, const pawl::TensorOptions& options) {
    std::size_t bytes = sizeof(Value);
    for (const std::uint64_t extent : shape) bytes *= extent;
    const char* lifetime = options.lifetime == pawl::Lifetime::stable    ? "stable"
                           : options.lifetime == pawl::Lifetime::derived ? "derived"
                                                                         : "volatile";
    held_.push_back({name, options.role, lifetime, data, bytes});
    return trainer_.tensor_add(name, data, shape, options);
  }

  void start_afresh() {
    model_.initialize(settings_.seed, weights_);
    std::fill(adam_.exp_avg.begin(), adam_.exp_avg.end(), 0.0f);
    std::fill(adam_.exp_avg_sq.begin(), adam_.exp_avg_sq.end(), 0.0f);
    optimizer_step_ = 0;
    dropout_ = Xoshiro::seeded(random_at(settings_.seed ^ 0x64726f70ull, seat_.rank));
    sampler_.reset();
  }

  Status connect() {
    const Outcome connected = ring_.connect(
        {seat_.rank, seat_.world, seat_.generation, configuration_, environment_or("PAWL_NODE_ADDRESS", "127.0.0.1")},
        rendezvous_, watch_);
    if (connected.ok()) return Status::ok;
    const Status met = rendezvous_.status();
    if (met != Status::ok && met != Status::timeout) return met;  // recover, mostly
    return reached(connected);
  }

  Status step(std::uint64_t step) {
    CHARLM_TRY_STATUS(survived(trainer_.step_begin(step)));
    CHARLM_TRY_STATUS(enter(Phase::compute));
    const Sampler::Slice slice = sampler_.slice(seat_.rank, settings_.batch);
    const double samples = static_cast<double>(settings_.batch) * seat_.world;
    const double loss = model_.forward_backward(weights_, text_.bytes, slice.places, static_cast<float>(1.0 / samples),
                                                dropout_, gradients_);

    if (settings_.device_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(settings_.device_ms));

    CHARLM_TRY_STATUS(enter(Phase::allreduce));
    CHARLM_TRY_STATUS(reached(ring_.reduce_scatter(gradients_, watch_)));
    std::vector<Summary> all(seat_.world);
    const Summary mine{loss, step, slice.digest};
    CHARLM_TRY_STATUS(reached(
        ring_.all_gather_bytes(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)), watch_)));
    double loss_sum = 0.0;  // in rank order
    std::vector<std::uint64_t> digests;
    for (const Summary& summary : all) {
      if (summary.step != step) return fail("another rank is at step " + std::to_string(summary.step));
      loss_sum += summary.loss;
      digests.push_back(summary.digest);
    }

    pawl::FenceReport fence{};
    CHARLM_TRY_STATUS(survived(trainer_.fence(&fence)));  // from here to window_open stable state changes
    CHARLM_TRY_STATUS(enter(Phase::update));
    const std::size_t shard = weights_.size() / seat_.world;
    AdamOptions adam;
    adam.learning_rate = static_cast<float>(settings_.learning_rate);
    adam_update(adam, step, std::span(gradients_).subspan(seat_.rank * shard, shard), adam_,
                std::span(weights_).subspan(seat_.rank * shard, shard));
    optimizer_step_ = step;
    ++updates_;
    CHARLM_TRY_STATUS(enter(Phase::allgather));
    CHARLM_TRY_STATUS(reached(ring_.all_gather(weights_, watch_)));
    sampler_.consume(settings_.batch, digests);
    CHARLM_TRY_STATUS(survived(trainer_.window_open(step, sampler_.position())));

    model_.derive(weights_);
    return tell({step, loss_sum / samples, sampler_.hash(), updates_, fence.waited_ns});
  }

  Status tell(const StepRecord& done) {
    if (settings_.verbose && seat_.rank == 0) {
      std::printf("step %llu loss %.4f fence_wait_ms %.3f\n", static_cast<unsigned long long>(done.step), done.loss,
                  static_cast<double>(done.fence_wait_ns) * 1e-6);
      std::fflush(stdout);
    }
    return written(record_.write_step(seat_.seat, done));
  }

  Status enter(Phase phase) {
    watch_.enter(phase);
    return survived(trainer_.progress(phase));
  }

  // A pawl that has given itself up is no reason to stop training.
  Status survived(Status status) {
    if (status != Status::broken) return status;
    if (!std::exchange(unprotected_, true)) {
      std::fprintf(stderr, "charlm: training goes on unprotected: %s\n", trainer_.error());
    }
    return Status::ok;
  }

  // From a collective's outcome to what the loop does about it.
  Status reached(const Outcome& outcome) {
    if (outcome.ok()) return Status::ok;
    if (outcome.kind == Outcome::Kind::interrupted) return Status::recover;
    if (outcome.kind == Outcome::Kind::refused || !rendezvous_.has_rendezvous() || unprotected_)
      return fail(outcome.what);
    const Status reported = trainer_.fault_report(outcome.what, ring_.lost());
    return reported == Status::ok ? Status::recover : reported;
  }

  Status written(const Outcome& outcome) { return outcome.ok() ? Status::ok : fail(outcome.what); }

  Status fail(std::string why) {
    why_ = std::move(why);
    return Status::io;
  }

  static int end_with(const std::string& why) {
    std::fprintf(stderr, "charlm: %s\n", why.c_str());
    return 1;
  }

  const Settings settings_;
  Text text_;
  std::uint64_t configuration_ = 0;
  Record record_;
  std::string why_;  // set by fail()
  bool unprotected_ = false;

  // The protected state; trainer_ comes after it and so lets go of it first.
  Model model_;
  std::vector<float> weights_;    // padded to equal shards
  std::vector<float> gradients_;  // the same shape
  AdamState adam_;                // of this rank's shard
  std::uint64_t optimizer_step_ = 0;
  Xoshiro dropout_;
  Sampler sampler_{SamplerOptions{}};
  std::vector<HeldTensor> held_;  // all of it, for the record
  bool sealed_ = false;
  std::uint64_t updates_ = 0;

  Trainer trainer_;
  pawl::Seat seat_{};
  TrainerWatch<Trainer> watch_;
  PawlRendezvous<Trainer> rendezvous_;
  Ring ring_;
};

template <class Trainer>
int run_training(int count, const char* const* arguments) {
  Settings settings;
  if (const Outcome parsed = parse_settings(count, arguments, &settings); !parsed.ok()) {
    std::fprintf(stderr, "charlm: %s\n", parsed.what.c_str());
    return 2;
  }
  if (settings.help) {
    std::fputs(usage(), stdout);
    return 0;
  }
  return Training<Trainer>(settings).run();
}

}  // namespace charlm
