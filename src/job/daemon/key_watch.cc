#include "job/daemon/key_watch.h"

#include <utility>

#include "base/log.h"

namespace pawl::job {
namespace {

constexpr Duration kListPause = std::chrono::milliseconds(100);

}  // namespace

KeyWatch::KeyWatch(Loop& loop, ControlSession& session, std::string root, Revision known, Handlers handlers)
    : loop_(loop), session_(session), root_(std::move(root)), handlers_(std::move(handlers)), known_(known) {
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
  if (event.revision > known_) handlers_.on_event(event);  // else the watch is behind the last listing
}

void KeyWatch::list_later(Duration patience, std::function<bool()> is_needed) {
  if (std::exchange(list_planned_, true)) return;
  loop_.after(patience, [this, alive = std::weak_ptr(alive_), is_needed = std::move(is_needed)] {
    if (alive.expired()) return;
    list_planned_ = false;
    if (!is_needed() || std::exchange(listing_, true)) return;
    list();
  });
}

// What comes meanwhile is told after that.
void KeyWatch::list() {
  if (handlers_.on_listing_begun) handlers_.on_listing_begun();
  session_.call_untimed<Listing>([root = root_](Control& control) { return control.list(root); },
                                 [this, alive = std::weak_ptr(alive_)](const Result<Listing>& listing) {
                                   if (!alive.expired()) on_answer(listing);
                                 });
}

void KeyWatch::on_answer(const Result<Listing>& listing) {
  if (!listing) {
    log_warn("control_away", "why", listing.error().what);
    loop_.after(kListPause, [this, alive = std::weak_ptr(alive_)] {
      if (!alive.expired()) list();
    });
    return;
  }
  known_ = listing->revision;
  handlers_.on_listing(*listing);
  if (std::exchange(list_once_more_, false)) return list();
  listing_ = false;
  for (const WatchEvent& event : std::exchange(missed_, {})) on_event(event);
  handlers_.on_listed();
}

}  // namespace pawl::job
