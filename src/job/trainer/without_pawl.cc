#include "job/trainer/without_pawl.h"

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "base/text.h"

namespace pawl::job {
namespace {

std::uint32_t number_of(const char* name, std::uint32_t otherwise) {
  const char* value = std::getenv(name);
  std::uint32_t number = 0;
  return value != nullptr && parse_number(std::string_view(value), number) ? number : otherwise;
}

}  // namespace

pawl_seat seat_without_pawl() {
  pawl_seat seat{};
  seat.seat = seat.rank = number_of("RANK", 0);
  seat.world = number_of("WORLD_SIZE", 1);
  seat.local_rank = number_of("LOCAL_RANK", 0);
  return seat;
}

Result<RendezvousAnswer> WithoutPawl::rendezvous(RendezvousRequest request, Deadline deadline) {
  std::unique_lock lock(mutex_);
  request.client = 1;
  request.number = ++number_;
  for (;;) {
    const std::optional<RendezvousAnswer> answer = rendezvous_.apply(request);
    if (answer) changed_.notify_all();
    if (answer && !answer->refused.empty()) return Error{Code::invalid, answer->refused};
    if (answer) return *answer;
    if (deadline.passed()) return Error{Code::timeout, text("key ", request.key, " is not there")};
    changed_.wait_for(lock, std::min<Duration>(deadline.left(), std::chrono::seconds(1)));
  }
}

Step WithoutPawl::stop_after(Step step) {
  std::uint64_t agreed = 0;
  const std::uint64_t wanted = std::max(step.value, begun_.load() + 1);
  return Step(stop_.compare_exchange_strong(agreed, wanted) ? wanted : agreed);
}

}  // namespace pawl::job
