// A session over a control in memory that refuses, forgets leases and goes away on demand.
#include "job/daemon/control_session.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "job/daemon/key_watch.h"
#include "job/daemon/test_control.h"
#include "job/daemon/test_wire.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

// What the next calls about the lease or the listing meet; thread-safe.
struct Trouble {
  std::atomic<int> lists_away{0};       // so many listings find nobody
  std::atomic<int> renewals_away{0};    // so many renewals find nobody
  std::atomic<bool> lease_gone{false};  // the next renewal learns that the lease has ended
  std::atomic<bool> put_finds_no_lease{false};
  std::atomic<LeaseId> granted{0};
  std::atomic<LeaseId> put_with{0};
  std::atomic<LeaseId> revoked{0};
  std::atomic<int> renewals{0};
};

class TroubledControl final : public Control {
 public:
  TroubledControl(std::unique_ptr<Control> sound, Trouble& trouble) : sound_(std::move(sound)), trouble_(trouble) {}
  Result<KeyValue> get(std::string_view key) override { return sound_->get(key); }
  Result<Listing> list(std::string_view prefix) override {
    auto listing = sound_->list(prefix);
    if (trouble_.lists_away-- > 0) return Error{Code::unreachable, "away"};
    return listing;
  }
  Result<KeyTally> tally(std::string_view prefix) override { return sound_->tally(prefix); }
  Result<Revision> put(std::string_view key, std::string_view value, LeaseId lease) override {
    if (trouble_.put_finds_no_lease.exchange(false)) return Error{Code::not_found, "no such lease"};
    trouble_.put_with = lease;
    return sound_->put(key, value, lease);
  }
  Result<std::int64_t> erase(std::string_view key) override { return sound_->erase(key); }
  Result<std::int64_t> erase_prefix(std::string_view prefix) override { return sound_->erase_prefix(prefix); }
  Result<Swapped> compare_and_swap(std::string_view key, Revision expected, std::string_view value,
                                   LeaseId lease) override {
    return sound_->compare_and_swap(key, expected, value, lease);
  }
  Result<Transacted> transact(const std::vector<KeyCompare>& compares, const std::vector<KeyChange>& changes) override {
    return sound_->transact(compares, changes);
  }
  Result<LeaseId> lease_grant(std::chrono::seconds) override { return ++trouble_.granted; }
  Result<std::chrono::seconds> lease_keep_alive_once(LeaseId lease) override {
    ++trouble_.renewals;
    if (trouble_.renewals_away-- > 0) return Error{Code::unreachable, "away"};
    if (trouble_.lease_gone.exchange(false)) return Error{Code::not_found, "no such lease"};
    return sound_->lease_keep_alive_once(lease);
  }
  Status lease_revoke(LeaseId lease) override {
    trouble_.revoked = lease;
    return {};
  }
  std::unique_ptr<Watch> watch(std::string_view prefix, WatchOptions options,
                               std::function<void(const WatchEvent&)> on_event) override {
    return sound_->watch(prefix, options, std::move(on_event));
  }

 private:
  const std::unique_ptr<Control> sound_;
  Trouble& trouble_;
};

class Session : public testing::Test {
 protected:
  Session() {
    trouble.lists_away = 0;
    loop.run([this] {
      session =
          std::make_unique<ControlSession>(loop.loop(), std::make_unique<TroubledControl>(control.connect(), trouble),
                                           [this](Duration, bool answered) { ++(answered ? answers : silences); });
    });
  }
  ~Session() override {
    loop.run([this] { session.reset(); });
  }
  void keep_registered() {
    session->keep_registered(
        "node", 80ms, [this] { return "life " + std::to_string(life.load()); }, [this](Duration) { ++renewals; });
  }

  Trouble trouble;
  MemoryControl control;
  TestWorld world;
  std::atomic<int> answers{0}, silences{0}, renewals{0}, life{1};
  RunningLoop loop{world.environment};
  std::unique_ptr<ControlSession> session;
};

TEST_F(Session, CallsRunInOrderAndTellWhetherTheControlAnswered) {
  std::vector<int> order;  // of the loop's thread
  trouble.lists_away = 1;
  loop.run([&] {
    session->call<Listing>([](Control& all) { return all.list(""); },
                           [&](const Result<Listing>& listing) { order.push_back(listing ? -1 : 1); });
    session->tell([&](Control& all) { (void)all.put("a", "1", 0); });
    session->call<KeyValue>([](Control& all) { return all.get("a"); },
                            [&](const Result<KeyValue>& got) { order.push_back(got ? 2 : -2); });
    session->call<KeyValue>([](Control& all) { return all.get("b"); },
                            [&](const Result<KeyValue>& got) { order.push_back(got ? -3 : 3); });
  });
  EXPECT_TRUE(loop.eventually([&] { return order.size() == 3; }));
  EXPECT_EQ(order, (std::vector{1, 2, 3}));
  EXPECT_EQ(silences, 1);
  EXPECT_EQ(answers, 2) << "that there is no such key is an answer";
}

TEST_F(Session, NothingIsToldOnceItHasEnded) {
  std::atomic<bool> asked{false};
  bool told = false;
  loop.run([&] {
    session->call<Listing>(
        [&](Control& all) {
          asked = true;
          return all.list("");
        },
        [&](const Result<Listing>&) { told = true; });
    while (!asked) std::this_thread::yield();
    session.reset();  // waits for the call, whose answer the loop finds afterwards
  });
  loop.run([] {});
  EXPECT_FALSE(told);
  EXPECT_EQ(answers + silences, 0);
}

TEST_F(Session, ARegistrationIsRenewedAndEndsWithTheSession) {
  keep_registered();
  EXPECT_TRUE(eventually([&] { return renewals >= 3; }));
  EXPECT_EQ(control.value("node"), "life 1");
  EXPECT_EQ(control.writes(), 1) << "a renewal writes nothing";
  EXPECT_EQ(trouble.granted, 1);
  loop.run([this] { session.reset(); });
  EXPECT_EQ(trouble.revoked, 1);
}

TEST_F(Session, AChangedValueIsRegisteredAtOnceUnderTheSameLease) {
  keep_registered();
  ASSERT_TRUE(eventually([&] { return control.value("node") == "life 1"; }));
  life = 2;
  session->register_again();
  EXPECT_TRUE(eventually([&] { return control.value("node") == "life 2"; }));
  EXPECT_EQ(trouble.granted, 1);
}

TEST_F(Session, ALeaseThatEndedIsReplacedAndTheNodeRegisteredUnderTheNewOne) {
  keep_registered();
  ASSERT_TRUE(eventually([&] { return control.value("node") == "life 1"; }));
  EXPECT_EQ(trouble.put_with, 1);
  control.erase("node");  // as the control does when a lease ends
  trouble.lease_gone = true;
  EXPECT_TRUE(eventually([&] { return control.value("node") == "life 1"; }));
  EXPECT_EQ(trouble.put_with, 2);
}

TEST_F(Session, ALeaseThatEndsBeforeTheRegistrationIsReplaced) {
  trouble.put_finds_no_lease = true;
  keep_registered();
  EXPECT_TRUE(eventually([&] { return control.value("node") == "life 1"; }));
  EXPECT_EQ(trouble.put_with, 2);
}

TEST_F(Session, WhileTheControlIsAwayTheLeaseIsKept) {
  keep_registered();
  ASSERT_TRUE(eventually([&] { return renewals >= 1; }));
  trouble.renewals_away = 2;
  EXPECT_TRUE(eventually([&] { return silences == 2; }));
  const int before = renewals;
  EXPECT_TRUE(eventually([&] { return renewals > before; }));
  EXPECT_EQ(trouble.granted, 1) << "a renewal that nobody answered does not end a lease";
  EXPECT_EQ(control.writes(), 1);
}

// What a watch of all keys tells, in order.
class Keys : public Session {
 protected:
  void watch(Revision known) {
    const Listing listing{{{"job/a", "1", known}}, known};
    loop.run([&] {
      keys = std::make_unique<KeyWatch>(
          loop.loop(), *session, "job/", listing,
          KeyWatch::Handlers{
              .on_listing = [this](const Listing& listing) { told.push_back(text("list ", listing.kvs.size())); },
              .on_event = [this](const WatchEvent& event) { told.push_back(text("event ", event.kv.value)); },
              .on_listed = [this] { told.emplace_back("listed"); }});
    });
  }
  ~Keys() override {
    loop.run([this] { keys.reset(); });
  }
  void confirm(Duration patience) {
    loop.run([&] { keys->confirm(patience, [this](Duration) { told.emplace_back("confirmed"); }); });
  }
  // All that was asked before: answers come in order.
  bool answered() {
    std::atomic<bool> came = false;
    loop.run([&] {
      session->call<KeyValue>([](Control& line) { return line.get("job/a"); }, [&](const auto&) { came = true; });
    });
    return loop.eventually([&] { return came.load(); });
  }
  bool tells(const std::vector<std::string>& expected) {
    return loop.eventually([&] { return told.size() >= expected.size(); }) &&
           loop.run([&] { return told == expected; });
  }

  std::unique_ptr<KeyWatch> keys;
  std::vector<std::string> told;  // of the loop's thread
};

TEST_F(Keys, WhatIsKnownIsNotToldAgain) {
  const Revision known = control.put("job/a", "1");
  watch(known);
  control.put("job/a", "2");
  EXPECT_TRUE(tells({"event 2"}));
}

TEST_F(Keys, WhereChangesAreLostAllIsListedAgainAlsoAfterAControlThatWasAway) {
  watch(control.put("job/a", "1"));
  trouble.lists_away = 2;
  control.resync();
  control.put("job/b", "2");
  EXPECT_TRUE(tells({"list 2", "listed"})) << "what came before the listing is in it";
  control.put("job/b", "3");
  EXPECT_TRUE(tells({"list 2", "listed", "event 3"}));
}

TEST_F(Keys, AListingIsReadLaterOnlyIfItIsStillNeededAndOnce) {
  watch(control.put("job/a", "1"));
  int asked = 0;
  loop.run([&] {
    keys->list_later(KeyWatch::Reason::later_state, 1ms, [&] { return ++asked > 1; });
    keys->list_later(KeyWatch::Reason::later_state, 1ms,
                     [&] { return ADD_FAILURE() << "one such wait at a time", true; });
  });
  EXPECT_TRUE(loop.eventually([&] { return asked == 1; }));
  EXPECT_EQ(control.lists(), 0);
  loop.run([&] { keys->list_later(KeyWatch::Reason::later_state, 1ms, [&] { return ++asked > 1; }); });
  EXPECT_TRUE(tells({"list 1", "listed"}));
}

TEST_F(Keys, AReasonToListIsNotForgottenForAnotherThatEnds) {
  watch(control.put("job/a", "1"));
  loop.run([&] {
    keys->list_later(KeyWatch::Reason::others_generation, 1ms, [] { return false; });
    keys->list_later(KeyWatch::Reason::unread_state, 1ms, [] { return true; });
  });
  EXPECT_TRUE(tells({"list 1", "listed"}));
}

TEST_F(Keys, WhatIsToldIsConfirmedWithoutAListing) {
  watch(control.put("job/a", "1"));
  control.put("job/b", "2");
  control.put("job/b", "3");
  control.erase("job/a");
  ASSERT_TRUE(tells({"event 2", "event 3", "event "}));
  confirm(20s);
  EXPECT_TRUE(tells({"event 2", "event 3", "event ", "confirmed"}));
  EXPECT_EQ(control.lists(), 0);
}

TEST_F(Keys, WhatAWatchDoesNotTellIsListed) {
  watch(control.put("job/a", "1"));
  control.hold_watches();
  control.put("job/a", "2");  // as many keys as before
  confirm(1ms);
  EXPECT_TRUE(tells({"list 1", "listed"}));
  confirm(20s);
  EXPECT_TRUE(tells({"list 1", "listed", "confirmed"}));
  control.erase("job/a");  // nothing is newer than before
  confirm(1ms);
  EXPECT_TRUE(tells({"list 1", "listed", "confirmed", "list 0", "listed"}));
}

// Whoever planned a listing may not need it any more when it is due.
TEST_F(Keys, WhatAWatchDoesNotTellIsListedWhateverElseWasPlanned) {
  watch(control.put("job/a", "1"));
  loop.run([&] { keys->list_later(KeyWatch::Reason::later_state, 1h, [] { return false; }); });
  control.hold_watches();
  control.put("job/a", "2");
  confirm(1ms);
  EXPECT_TRUE(tells({"list 1", "listed"}));
}

TEST_F(Keys, WhatWasToldLaterThanTheAnswerConfirmsIt) {
  watch(control.put("job/a", "1"));
  control.hold_watches();
  const Revision second = control.put("job/b", "2");
  confirm(20s);
  ASSERT_TRUE(answered());
  control.tell_held({WatchEvent::Kind::put, {"job/c", "3", second + 1}, second + 1});
  EXPECT_TRUE(tells({"event 3", "confirmed"}));
}

TEST_F(Keys, WhereTheControlHasLostWhatWasToldTheKeysAreListed) {
  const Revision known = control.put("job/a", "1");
  watch(known);
  control.tell_held({WatchEvent::Kind::put, {"job/b", "2", known + 7}, known + 7});
  ASSERT_TRUE(tells({"event 2"}));
  confirm(20s);
  EXPECT_TRUE(tells({"event 2", "list 1", "listed"}));
}

// The answer overtakes the events of what it counts; and more comes later.
TEST_F(Keys, WhatIsOnItsWayIsAwaitedAndNotListed) {
  const Revision known = control.put("job/a", "1");
  watch(known);
  control.hold_watches();
  const Revision second = control.put("job/b", "2");
  confirm(20s);
  ASSERT_TRUE(answered());
  control.tell_held({WatchEvent::Kind::put, {"job/b", "2", second}, second});
  control.tell_held({WatchEvent::Kind::put, {"job/c", "3", second + 1}, second + 1});
  EXPECT_TRUE(tells({"event 2", "confirmed", "event 3"}));
  EXPECT_EQ(control.lists(), 0);
}

}  // namespace
}  // namespace pawl::job
