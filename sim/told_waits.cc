#include "told_waits.h"

#include <algorithm>
#include <chrono>

#include <nlohmann/json.hpp>

#include "job/recovery/recovery_waits.h"

namespace pawl::sim {

void ToldWaits::begin(Duration now) {
  tellers_.clear();
  ready_.clear();
  began_ = silent_since_ = now;
  excused_until_ = {};
}

void ToldWaits::on_event(const std::string& event, Duration now) {
  const auto told = nlohmann::json::parse(event, nullptr, false);
  if (!told.is_object() || told.value("kind", "") != "recovery_waits") return;
  const Duration age = std::chrono::milliseconds(told.value("for_ms", std::int64_t{0}));
  Teller& teller = tellers_[{told.value("node", std::uint32_t{0}), told.contains("seat")}];
  const bool again = teller.pause > Duration::zero() && age > teller.age;
  teller = {now, age, again ? std::min(2 * teller.pause, job::kWaitToldEveryMax) : job::kWaitToldEvery};
}

bool ToldWaits::is_told(Duration now) const {
  return std::ranges::any_of(tellers_, [&](const auto& each) {
    const auto& [who, teller] = each;
    const bool waits = !who.second || !ready_.contains(who.first);
    return waits && now - teller.at <= teller.pause;
  });
}

bool ToldWaits::look(bool restores, bool heard, Duration now) {
  if (!heard) excused_until_ = now + (now - began_) + job::kWaitToldEvery;
  if (!restores || !heard || now < excused_until_ || is_told(now)) silent_since_ = now;
  return now - silent_since_ <= patience_;
}

}  // namespace pawl::sim
