#include "job/daemon/rendezvous_server.h"

#include <utility>

#include "base/log.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kEarlyRequestsMax = 1 << 17;  // of the largest world one each, and more
constexpr Duration kAnotherWayAfter = 1s;

}  // namespace

void RendezvousServer::enter() {
  if (entered_ == hooks_.generation()) return;
  entered_ = hooks_.generation();
  if (!by_another_) turned_at_ = clock_.now();
  store_ = RendezvousStore();
  while (!waits_.empty()) (void)take(waits_.begin());
  std::erase_if(early_, [this](const EarlyRequest& one) { return one.generation < entered_; });
  for (const std::string& record : log_.records(entered_))
    if (!store_.replay(record)) log_error("store_record_refused", "generation", entered_);
  open();
}

void RendezvousServer::open() {
  if (early_.empty() || !hooks_.is_open()) return;
  std::vector<EarlyRequest> early;
  early.swap(early_);
  for (EarlyRequest& one : early)
    if (one.asker.is_alive()) on_peer_request(one.generation, std::move(one.request), std::move(one.asker));
}

void RendezvousServer::on_peer_request(Generation generation, RendezvousRequest request, Asker asker) {
  if (generation > entered_ || (generation == hooks_.generation() && !hooks_.is_open())) {
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
  drop_expired();
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
  const OnAnswer on_answer = take(found).on_answer;
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
  } else if (!changes_something(request.op)) {
    (void)wait(std::move(request), std::move(on_answer));
    return;
  }
  if (changes) answer_waiting(key);
}

// An answer may lead to another request at once, so the waits are taken out first.
void RendezvousServer::answer_waiting(const std::string& key) {
  std::vector<std::uint64_t> ids;
  for (auto one = by_key_.lower_bound({key, 0}); one != by_key_.end() && one->first == key; ++one)
    ids.push_back(one->second);
  std::vector<Wait> answered;
  for (const std::uint64_t id : ids)
    if (const auto wait = waits_.find(id); is_complete(id, wait->second)) answered.push_back(take(wait));
  for (const Wait& wait : answered)
    if (const auto answer = store_.apply(wait.request)) wait.on_answer(*answer);
}

std::size_t RendezvousServer::first_missing(const std::vector<std::string>& keys) const {
  std::size_t at = 0;
  while (at < keys.size() && store_.has(keys[at])) ++at;
  return at;
}

// Of several keys it goes on to wait for the next one that is missing.
bool RendezvousServer::is_complete(std::uint64_t id, Wait& wait) {
  by_key_.erase({wait.keys[wait.missing], id});
  for (; wait.missing < wait.keys.size(); ++wait.missing)
    if (!store_.has(wait.keys[wait.missing])) break;
  if (wait.missing == wait.keys.size()) {
    wait.missing = first_missing(wait.keys);  // one may have been erased meanwhile
    if (wait.missing == wait.keys.size()) {
      wait.missing = 0;
      return true;
    }
  }
  by_key_.emplace(wait.keys[wait.missing], id);
  return false;
}

// Who asked waits no more; but whoever carries its answer still counts it among those that do.
void RendezvousServer::drop_expired() {
  const Duration now = clock_.now();
  std::vector<Wait> expired;
  while (!by_end_.empty() && by_end_.begin()->first < now)
    expired.push_back(take(waits_.find(by_end_.begin()->second)));
  for (const Wait& wait : expired) wait.on_answer({false, {}, std::string(kWaitIsOver)});
}

std::uint64_t RendezvousServer::wait(RendezvousRequest request, OnAnswer on_answer, bool passed) {
  drop_expired();
  const Duration now = clock_.now();
  // One that is asked again is the same: its trainer waits for one answer, by whichever way it comes.
  const std::tuple asked(request.client, request.number, std::uint64_t{0});
  const auto is_again = [&](const auto& earlier) {
    return earlier != by_request_.end() && std::get<0>(*earlier) == request.client &&
           std::get<1>(*earlier) == request.number;
  };
  if (passed && request.client != 0)  // 0: a pawld's own, which it does not number
    for (auto earlier = by_request_.lower_bound(asked); is_again(earlier); earlier = by_request_.lower_bound(asked))
      (void)take(waits_.find(std::get<2>(*earlier)));
  const Duration until = request.wait_ms == 0 ? Duration::max() : now + std::chrono::milliseconds(request.wait_ms);
  const std::uint64_t id = next_id_++;
  std::vector<std::string> keys{request.key};
  std::size_t missing = 0;
  if (request.op == RendezvousOp::get_all && hooks_.is_root()) {
    (void)unpack(request.value, keys);  // what was decoded can be unpacked
    missing = first_missing(keys);      // there is one, or it would not wait
  }
  by_key_.emplace(keys[missing], id);
  by_request_.emplace(request.client, request.number, id);
  by_end_.emplace(until, id);
  waits_.emplace(id, Wait{std::move(request), std::move(on_answer), std::move(keys), missing, until, passed});
  return id;
}

RendezvousServer::Wait RendezvousServer::take(Waits::iterator found) {
  const std::uint64_t id = found->first;
  Wait wait = std::move(found->second);
  waits_.erase(found);
  by_key_.erase({wait.keys[wait.missing], id});
  by_request_.erase({wait.request.client, wait.request.number, id});
  by_end_.erase({wait.until, id});
  return wait;
}

}  // namespace pawl::job
