#include "job/daemon/key_watch.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace pawl::job {
namespace {

constexpr Duration kRelistPause = std::chrono::milliseconds(100);

std::map<std::string, Revision> keys_of(const Listing& listing) {
  std::map<std::string, Revision> keys;
  for (const KeyValue& kv : listing.kvs) keys.emplace_hint(keys.end(), kv.key, kv.mod_revision);
  return keys;
}

}  // namespace

KeyWatch::KeyWatch(Loop& loop, ControlSession& session, std::string root, const Listing& known, Handlers handlers)
    : loop_(loop),
      session_(session),
      root_(std::move(root)),
      handlers_(std::move(handlers)),
      known_(known.revision),
      told_(known.revision),
      there_(keys_of(known)) {
  watch_ = session_.watch(root_, known_ + 1, [this, alive = std::weak_ptr(alive_)](const WatchEvent& event) {
    if (!alive.expired()) on_event(event);
  });
}

void KeyWatch::on_event(const WatchEvent& event) {
  if (event.kind == WatchEvent::Kind::resync) {
    list_once_more_ = listing_;  // what is lost now may not be in the listing that is under way
    if (!std::exchange(listing_, true)) list();
    return;
  }
  if (listing_) return missed_.push_back(event);
  if (event.revision > known_) tell(event);  // else the watch is behind the last listing
}

void KeyWatch::tell(const WatchEvent& event) {
  told_ = event.revision;
  if (event.kind == WatchEvent::Kind::put)
    there_.insert_or_assign(event.kv.key, event.revision);
  else
    there_.erase(event.kv.key);
  handlers_.on_event(event);
  consider_confirmed();
}

void KeyWatch::list_later(Reason reason, Duration patience, std::function<bool()> is_needed) {
  if (!planned_.insert(reason).second) return;
  loop_.after(patience, [this, reason, alive = std::weak_ptr(alive_), is_needed = std::move(is_needed)] {
    if (alive.expired()) return;
    planned_.erase(reason);
    if (!is_needed() || std::exchange(listing_, true)) return;
    list();
  });
}

void KeyWatch::confirm(Duration patience, std::function<void(Duration begun)> then) {
  if (listing_ || confirmation_) return;
  confirmation_ = {loop_.environment().clock.now(), told_, std::nullopt, std::move(then)};
  session_.call_untimed<KeyTally>([root = root_](Control& control) { return control.tally(root); },
                                  [this, patience, alive = std::weak_ptr(alive_)](const Result<KeyTally>& tally) {
                                    if (alive.expired() || !confirmation_) return;
                                    if (!tally) return confirmation_.reset();  // whoever needs it asks again
                                    on_tally(*tally, patience);
                                  });
}

void KeyWatch::on_tally(const KeyTally& tally, Duration patience) {
  confirmation_->tally = tally;
  consider_confirmed();
  if (!confirmation_) return;
  const bool lost_data = tally.revision < confirmation_->told;  // what was told before is not there any more
  loop_.after(lost_data ? Duration::zero() : patience,
              [this, alive = std::weak_ptr(alive_), begun = confirmation_->begun] {
                if (alive.expired() || !confirmation_ || confirmation_->begun != begun) return;
                if (!std::exchange(listing_, true)) list();
              });
}

void KeyWatch::consider_confirmed() {
  if (listing_ || !confirmation_ || !confirmation_->tally || !has_all_of(*confirmation_)) return;
  const Confirmation confirmed = *std::exchange(confirmation_, std::nullopt);
  confirmed.then(confirmed.begun);
}

// Events come in the order of revisions. So when the last one before the answer has come it is as the answer says; and when
// a later one has come, all before have. Of puts of one revision the last may be missing yet: that is a state
// (StateMover::move), and a swap of an older one loses.
bool KeyWatch::has_all_of(const Confirmation& asked) const {
  if (asked.tally->revision < asked.told) return false;
  if (told_ > asked.tally->revision) return true;
  if (there_.size() != asked.tally->count) return false;
  Revision newest = 0;
  for (const auto& [key, revision] : there_) newest = std::max(newest, revision);
  return newest == asked.tally->newest;
}

// What comes meanwhile is told after that.
void KeyWatch::list() {
  confirmation_.reset();
  if (handlers_.on_listing_begun) handlers_.on_listing_begun();
  session_.call_untimed<Listing>([root = root_](Control& control) { return control.list(root); },
                                 [this, alive = std::weak_ptr(alive_)](const Result<Listing>& listing) {
                                   if (!alive.expired()) on_answer(listing);
                                 });
}

void KeyWatch::on_answer(const Result<Listing>& listing) {
  if (!listing) {
    log_warn("control_away", "why", listing.error().what);
    loop_.after(kRelistPause, [this, alive = std::weak_ptr(alive_)] {
      if (!alive.expired()) list();
    });
    return;
  }
  known_ = told_ = listing->revision;
  there_ = keys_of(*listing);
  handlers_.on_listing(*listing);
  if (std::exchange(list_once_more_, false)) return list();
  listing_ = false;
  for (const WatchEvent& event : std::exchange(missed_, {})) on_event(event);
  handlers_.on_listed();
}

}  // namespace pawl::job
