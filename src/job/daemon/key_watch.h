// KeyWatch: all keys of the job as they change: watched, and read anew where some of the changes may be lost. On the loop's
// thread.
//
// What is told is never older than what was told before, as far as one control goes.
#pragma once

#include <functional>
#include <memory>
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
  // May be destroyed on the loop, but in no handler of its own. `known`: what the keys below `root` were read as before; they are watched from then on.
  KeyWatch(Loop& loop, ControlSession& session, std::string root, Revision known, Handlers handlers);

  // Reads them anew after `patience`, unless `is_needed` is false by then. One such wait at a time: else nothing.
  void list_later(Duration patience, std::function<bool()> is_needed);

 private:
  void on_event(const WatchEvent& event);
  void list();
  void on_answer(const Result<Listing>& listing);

  Loop& loop_;
  ControlSession& session_;
  const std::string root_;
  const Handlers handlers_;
  Revision known_;
  bool listing_ = false;
  bool list_once_more_ = false;
  bool list_planned_ = false;
  std::vector<WatchEvent> missed_;  // that came during a listing
  std::unique_ptr<Watch> watch_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // what comes later finds nobody
};

}  // namespace pawl::job
