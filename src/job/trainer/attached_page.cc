#include "job/trainer/attached_page.h"

#include <unistd.h>

#include <utility>

#include "env/process.h"
#include "env/robust_mutex.h"

namespace pawl::job {
namespace {

void copy_trainer_fields(const TrainerPage& from, TrainerPage& to) {
  constexpr PageWord TrainerPage::*fields[] = {&TrainerPage::reached,
                                               &TrainerPage::step,
                                               &TrainerPage::updates,
                                               &TrainerPage::progress_count,
                                               &TrainerPage::progress_at_ns,
                                               &TrainerPage::phase,
                                               &TrainerPage::samples,
                                               &TrainerPage::fence_count,
                                               &TrainerPage::fence_wait_ns_last,
                                               &TrainerPage::fence_wait_ns_total,
                                               &TrainerPage::fence_wait_ns_max,
                                               &TrainerPage::windows_captured,
                                               &TrainerPage::windows_voided,
                                               &TrainerPage::captured_bytes_total,
                                               &TrainerPage::copy_ns_total};
  for (auto field : fields) (to.*field).store((from.*field).load());
}

void introduce(TrainerPage& page, std::uint64_t nonce) {
  page.start_time.store(process_start_time(getpid()).value_or(0));
  page.nonce.store(nonce);
  page.pid.store(static_cast<std::uint64_t>(getpid()), std::memory_order_release);
}

}  // namespace

Status AttachedPage::adopt(const Fd& segment) {
  Result<Mapping> mapping = map_segment(segment.get(), kTrainerPageBytes, {.populate = true});
  if (!mapping) return Error{Code::broken, mapping.error().what};
  Result<TrainerPage*> opened = open_page(mapping->bytes());
  if (!opened) return Error{Code::broken, opened.error().what};
  TrainerPage* page = *opened;
  TrainerPage* before = page_.load();
  // The same memory again (the keeper kept it over pawld's restart): we go on with our first mapping, which is where
  // the kernel knows our lock to be.
  if (before != nullptr && page->nonce.load() == nonce_) return {};
  if (hold_robust_mutex(&page->alive)) locked_.push_back(&page->alive);  // else pawld has only the pidfd to go by
  if (before != nullptr) copy_trainer_fields(*before, *page);
  introduce(*page, nonce_);
  mappings_.push_back(std::move(*mapping));
  page_.store(page, std::memory_order_release);
  return {};
}

void AttachedPage::unlock() {
  for (pthread_mutex_t* mutex : locked_) pthread_mutex_unlock(mutex);
}

}  // namespace pawl::job
