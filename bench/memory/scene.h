// What bench/memory measures with: a model's state, the arena that protects it, and threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "env/fd.h"
#include "env/shared_memory.h"
#include "job/layout/seat_layout.h"
#include "job/snapshot/arena.h"
#include "job/snapshot/trainer_page.h"
#include "job/trainer/capture.h"
#include "job/trainer/copy_plan.h"

namespace pawl::job::bench {

[[noreturn]] void give_up(const std::string& why);
double seconds_now();
double core_seconds_now();  // of this process

// Weights and two moments of a GPT in fp32, about `bytes` in all: matrices, and norms and biases of some KiB.
SeatLayout model_layout(std::uint64_t bytes);

// Calls `copy` with all pieces of [0, bytes), from so many threads.
using CopyPiece = std::function<void(std::uint64_t at, std::size_t size)>;
void in_pieces(unsigned threads, std::uint64_t bytes, std::size_t piece_bytes, const CopyPiece& copy);

class Scene {
 public:
  explicit Scene(std::uint64_t bytes);
  // As pawld makes it for a seat, and its trainer maps it; the one before it goes first.
  void make_arena();
  [[nodiscard]] const SeatLayout& layout() const { return layout_; }
  [[nodiscard]] const CopyPlan& plan() const { return plan_; }
  [[nodiscard]] std::uint64_t bytes() const { return layout_.payload_bytes; }
  [[nodiscard]] std::byte* state() const { return state_.bytes().data(); }
  [[nodiscard]] EntryBases bases() const { return bases_; }
  [[nodiscard]] const Arena& arena() const { return arena_; }
  [[nodiscard]] int segment() const { return segment_.get(); }
  [[nodiscard]] std::uint64_t offset_in_segment(const std::byte* at) const {
    return static_cast<std::uint64_t>(at - arena_memory_.bytes().data());
  }
  [[nodiscard]] TrainerPage& page() const { return *page_; }

  // The optimizer has been here: a word of each page is another one.
  void change_state();
  // A window that nothing else runs beside, from its opening until it is sealed; then the step is committed.
  void capture(Capture& capture);
  [[nodiscard]] std::unique_ptr<Capture> make_capture(unsigned threads);
  [[nodiscard]] const Slot& last_captured() const { return last_captured_; }

 private:
  SeatLayout layout_;
  CopyPlan plan_;
  Fd state_segment_, segment_, page_segment_;
  Mapping state_, arena_memory_, page_memory_;
  std::vector<std::byte*> bases_;
  Arena arena_;
  TrainerPage* page_ = nullptr;
  Slot last_captured_;
  std::uint64_t step_ = 0;
};

}  // namespace pawl::job::bench
