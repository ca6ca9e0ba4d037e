#include "job/daemon/rendezvous_server.h"

#include "base/log.h"

namespace pawl::job {
namespace {

constexpr std::size_t kEarlyRequestsMax = 4096;

}  // namespace

void RendezvousServer::enter() {
  if (entered_ == hooks_.generation()) return;
  entered_ = hooks_.generation();
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
  if (generation != hooks_.generation() || !hooks_.is_root()) return;
  serve(std::move(request), std::move(asker.on_answer));
}

void RendezvousServer::ask(RendezvousRequest request, OnAnswer on_answer) {
  if (hooks_.is_root()) return serve(std::move(request), std::move(on_answer));
  const std::uint64_t id = wait(std::move(request), std::move(on_answer));
  hooks_.send_to_root(id, waits_.at(id).request);  // without a link: when there is one
}

void RendezvousServer::on_answer(std::uint64_t id, const RendezvousAnswer& answer) {
  const auto found = waits_.find(id);
  if (found == waits_.end()) return;
  const OnAnswer on_answer = std::move(found->second.on_answer);
  waits_.erase(found);
  on_answer(answer);
}

void RendezvousServer::ask_again() {
  for (const auto& [id, wait] : waits_) hooks_.send_to_root(id, wait.request);
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

std::uint64_t RendezvousServer::wait(RendezvousRequest request, OnAnswer on_answer) {
  const Duration now = clock_.now();
  std::erase_if(waits_, [now](const auto& wait) { return wait.second.until < now; });
  const Duration until = request.wait_ms == 0 ? Duration::max() : now + std::chrono::milliseconds(request.wait_ms);
  const std::uint64_t id = next_id_++;
  waits_.emplace(id, Wait{std::move(request), std::move(on_answer), until});
  return id;
}

}  // namespace pawl::job
