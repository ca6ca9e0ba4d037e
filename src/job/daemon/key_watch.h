// KeyWatch: all keys of the job as they change: watched, and read anew where some of the changes may be lost. On the loop's
// thread.
//
// What is told is never older than what was told before, as far as one control goes.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "job/daemon/control_session.h"

namespace pawl::job {

class KeyWatch {
 public:
  struct Handlers {
    std::function<void(const Listing&)> on_listing;   // what is not in it is not there
    std::function<void(const WatchEvent&)> on_event;  // put or erased
    std::function<void()> on_listed;                  // after a listing and what came meanwhile
    std::function<void()> on_listing_begun = {};
  };
  // May be destroyed on the loop, but in no handler of its own. `known`: what the keys below `root` were read as before;
  // they are watched from then on.
  KeyWatch(Loop& loop, ControlSession& session, std::string root, const Listing& known, Handlers handlers);

  enum class Reason { others_generation, later_state, unread_state, reports };
  // Reads them anew after `patience`, unless `is_needed` is false by then. One such wait for each reason: else nothing.
  void list_later(Reason reason, Duration patience, std::function<bool()> is_needed);
  // Whether what was told is all that stands in the control: asks it for a few bytes, however many keys there are, and waits
  // for what is on its way here. Then `then(when this began)`; or lists, if it does not come within `patience`. One at a
  // time: else nothing. Nothing comes of it while the control is away.
  void confirm(Duration patience, std::function<void(Duration begun)> then);

 private:
  void on_event(const WatchEvent& event);
  void list();
  void on_answer(const Result<Listing>& listing);
  void tell(const WatchEvent& event);
  void on_tally(const KeyTally& tally, Duration patience);
  void consider_confirmed();
  Loop& loop_;
  ControlSession& session_;
  const std::string root_;
  const Handlers handlers_;
  Revision known_;  // of the last listing
  Revision told_;   // the newest that was told, by it or by an event since
  bool listing_ = false;
  bool list_once_more_ = false;
  std::set<Reason> planned_;               // listings
  std::vector<WatchEvent> missed_;         // that came during a listing
  std::map<std::string, Revision> there_;  // as told: each key, when it was last put
  struct Confirmation {
    Duration begun{};
    Revision told = 0;              // by then
    std::optional<KeyTally> tally;  // of what stood in the control; none: it has not answered yet
    std::function<void(Duration)> then;
  };
  [[nodiscard]] bool has_all_of(const Confirmation& asked) const;
  std::optional<Confirmation> confirmation_;
  std::unique_ptr<Watch> watch_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // what comes later finds nobody
};

}  // namespace pawl::job
