#include "job/snapshot/trainer_page.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/text.h"
#include "env/robust_mutex.h"
#include "pawl/pawl.h"

namespace pawl::job {
namespace {

constexpr std::uint64_t kMagic = 0x3147'4150'4C57'4150;  // "PAWLPAG1"
constexpr std::uint64_t kVersion = 3;

static_assert(offsetof(TrainerPage, magic) == 0);
static_assert(offsetof(TrainerPage, version) == 8);
static_assert(offsetof(TrainerPage, progress) == 64);
static_assert(offsetof(TrainerPage, recover_generation) == 72);
static_assert(offsetof(TrainerPage, stop) == 80);
static_assert(offsetof(TrainerPage, generation) == 88);
static_assert(offsetof(TrainerPage, resume_step) == 96);
static_assert(offsetof(TrainerPage, role) == 104);
static_assert(offsetof(TrainerPage, world) == 112);
static_assert(offsetof(TrainerPage, stop_step) == 120);
static_assert(offsetof(TrainerPage, reached) == 128);
static_assert(offsetof(TrainerPage, step) == 136);
static_assert(offsetof(TrainerPage, updates) == 144);
static_assert(offsetof(TrainerPage, progress_count) == 152);
static_assert(offsetof(TrainerPage, progress_at_ns) == 160);
static_assert(offsetof(TrainerPage, phase) == 168);
static_assert(offsetof(TrainerPage, nonce) == 176);
static_assert(offsetof(TrainerPage, pid) == 184);
static_assert(offsetof(TrainerPage, start_time) == 192);
static_assert(offsetof(TrainerPage, samples) == 200);
static_assert(offsetof(TrainerPage, fence_count) == 256);
static_assert(offsetof(TrainerPage, fence_wait_ns_last) == 264);
static_assert(offsetof(TrainerPage, fence_wait_ns_total) == 272);
static_assert(offsetof(TrainerPage, fence_wait_ns_max) == 280);
static_assert(offsetof(TrainerPage, windows_captured) == 288);
static_assert(offsetof(TrainerPage, windows_voided) == 296);
static_assert(offsetof(TrainerPage, captured_bytes_total) == 304);
static_assert(offsetof(TrainerPage, copy_ns_total) == 312);
static_assert(offsetof(TrainerPage, hold_phase) == 320);
static_assert(offsetof(TrainerPage, hold_step) == 328);
static_assert(offsetof(TrainerPage, held) == 336);
static_assert(offsetof(TrainerPage, gate_off) == 344);
static_assert(offsetof(TrainerPage, pause_step) == 352);
static_assert(offsetof(TrainerPage, paused_before) == 360);
static_assert(offsetof(TrainerPage, alive) == 384);
static_assert(sizeof(TrainerPage) == 448 && sizeof(TrainerPage) <= kTrainerPageBytes);
static_assert(PageWord::is_always_lock_free);

bool fits(std::span<std::byte> memory) {
  return memory.size() >= kTrainerPageBytes && std::bit_cast<std::uintptr_t>(memory.data()) % alignof(TrainerPage) == 0;
}

}  // namespace

bool is_of_recovery(std::uint64_t phase) {
  return phase == PAWL_PHASE_JOIN || phase == PAWL_PHASE_RESTORE;
}

bool ask_to_persist(TrainerPage& page) {
  if (page.stored.load() == 0) return false;
  const std::uint64_t step = std::max<std::uint64_t>(page.step.load(), 1);
  if (page.persist_wanted.load() < step) page.persist_wanted.store(step, std::memory_order_release);
  return true;
}

Step stored_step(const TrainerPage& page) {
  const std::uint64_t stored = page.stored.load(std::memory_order_acquire);
  return Step(stored == 0 ? 0 : stored - 1);
}

Result<TrainerPage*> initialise_page(std::span<std::byte> memory) {
  if (!fits(memory)) return Error{Code::invalid, text("trainer page in ", memory.size(), " bytes")};
  std::memset(memory.data(), 0, kTrainerPageBytes);
  auto* page = reinterpret_cast<TrainerPage*>(memory.data());
  PAWL_TRY(make_robust_mutex(&page->alive));
  page->version.store(kVersion, std::memory_order_relaxed);
  page->magic.store(kMagic, std::memory_order_release);
  return page;
}

Result<TrainerPage*> open_page(std::span<std::byte> memory) {
  if (!fits(memory)) return Error{Code::corrupt, text("trainer page in ", memory.size(), " bytes")};
  auto* page = reinterpret_cast<TrainerPage*>(memory.data());
  if (page->magic.load(std::memory_order_acquire) != kMagic)
    return Error{Code::corrupt, "no trainer page (wrong magic)"};
  const std::uint64_t version = page->version.load(std::memory_order_relaxed);
  if (version != kVersion) return Error{Code::corrupt, text("trainer page of version ", version, ", not ", kVersion)};
  return page;
}

}  // namespace pawl::job
