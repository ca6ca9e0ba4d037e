#include "job/daemon/rendezvous_server.h"

#include <utility>

#include "base/log.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kEarlyRequestsMax = 4096;
constexpr Duration kAnotherWayAfter = 1s;

}  // namespace

void RendezvousServer::enter() {
  if (entered_ == hooks_.generation()) return;
  entered_ = hooks_.generation();
  if (!by_another_) turned_at_ = clock_.now();
  store_ = RendezvousStore();
  waits_.clear();
  for (const std::string& record : log_.records(entered_))
    if (!store_.replay(record)) log_error("store_record_refused", "generation", entered_);
  std::vector<EarlyRequest> early;
  early.swap(early_);
  for (EarlyRequest& one : early)
    if (one.asker.is_alive()) on_peer_request(one.generation, std::move(one.request), std::move(one.asker));
}

void RendezvousServer::on_peer_request(Generation generation, RendezvousRequest request, Asker asker) {
  if (generation > entered_) {
    if (early_.size() < kEarlyRequestsMax) early_.push_back({generation, std::move(request), std::move(asker)});
    return;
  }
  // Of another generation: its sender repeats what matters.
  if (generation != hooks_.generation()) return;
  if (hooks_.is_root()) return serve(std::move(request), std::move(asker.on_answer));
  const std::uint64_t id = wait(std::move(request), std::move(asker.on_answer), true);
  send(id, waits_.at(id));
}

void RendezvousServer::ask(RendezvousRequest request, OnAnswer on_answer) {
  if (hooks_.is_root()) return serve(std::move(request), std::move(on_answer));
  const std::uint64_t id = wait(std::move(request), std::move(on_answer));
  send(id, waits_.at(id));
}

// Without a way to the root: when there is one.
void RendezvousServer::send(std::uint64_t id, const Wait& wait) {
  if (hooks_.send_to_root(id, wait.request) || wait.passed || !by_another_) return;
  hooks_.send_by_another(id, wait.request, turn_);
}

void RendezvousServer::tick() {
  const Duration now = clock_.now();
  if (hooks_.is_root() || hooks_.reaches_root() || !hooks_.send_by_another) {
    by_another_ = false;
    turned_at_ = now;
  }
  if (now - turned_at_ < kAnotherWayAfter || waits_.empty()) return;
  if (!std::exchange(by_another_, true)) log_warn("rendezvous_by_another", "why", "no link to the root stands");
  turned_at_ = now;
  ++turn_;
  ask_again();
}

void RendezvousServer::on_answer(std::uint64_t id, const RendezvousAnswer& answer) {
  const auto found = waits_.find(id);
  if (found == waits_.end()) return;
  const OnAnswer on_answer = std::move(found->second.on_answer);
  waits_.erase(found);
  on_answer(answer);
}

void RendezvousServer::ask_again() {
  for (const auto& [id, wait] : waits_) send(id, wait);
}

void RendezvousServer::serve(RendezvousRequest request, OnAnswer on_answer) {
  const bool changes = store_.is_new_change(request);
  if (changes) {  // first where it lasts, or a pawld after us would not know what this one has answered
    const Status kept = log_.append(entered_, RendezvousStore::record_of(request), [this] { return store_.records(); });
    if (!kept) return on_answer({false, {}, kept.error().what});
  }
  const std::string key = request.key;
  if (const auto answer = store_.apply(request)) {
    on_answer(*answer);
  } else if (request.op == RendezvousOp::get) {
    (void)wait(std::move(request), std::move(on_answer));
    return;
  }
  if (changes) answer_waiting(key);
}

// An answer may lead to another request at once, so the waits are taken out first.
void RendezvousServer::answer_waiting(const std::string& key) {
  std::vector<Wait> answered;
  for (auto wait = waits_.begin(); wait != waits_.end();) {
    const bool match = wait->second.request.key == key && store_.apply(wait->second.request).has_value();
    if (match) answered.push_back(std::move(wait->second));
    wait = match ? waits_.erase(wait) : std::next(wait);
  }
  for (const Wait& wait : answered)
    if (const auto answer = store_.apply(wait.request)) wait.on_answer(*answer);
}

std::uint64_t RendezvousServer::wait(RendezvousRequest request, OnAnswer on_answer, bool passed) {
  const Duration now = clock_.now();
  // One that is asked again is the same: its trainer waits for one answer, by whichever way it comes.
  std::erase_if(waits_, [&](const auto& known) {
    const RendezvousRequest& earlier = known.second.request;
    const bool again = passed && request.client != 0 && earlier.client == request.client &&
                       earlier.number == request.number;  // 0: a pawld's own, which it does not number
    return again || known.second.until < now;
  });
  const Duration until = request.wait_ms == 0 ? Duration::max() : now + std::chrono::milliseconds(request.wait_ms);
  const std::uint64_t id = next_id_++;
  waits_.emplace(id, Wait{std::move(request), std::move(on_answer), until, passed});
  return id;
}

}  // namespace pawl::job
