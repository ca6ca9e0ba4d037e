// What Control promises, kept alike by pawl's embedded server and by etcd.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "job/control/control_backend.h"

namespace pawl::job {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::string told(const WatchEvent& event) {
  if (event.kind == WatchEvent::Kind::resync) return "resync";
  return (event.kind == WatchEvent::Kind::put ? "put " : "erased ") + event.kv.key.substr(event.kv.key.rfind('/') + 1);
}

class ControlRestart : public ControlConformance {};

TEST_P(ControlConformance, EveryWriteIsOneRevision) {
  const auto first = control_->put(key("a"), "1");
  ASSERT_TRUE(first) << first.error().what;
  EXPECT_EQ(*control_->put(key("a"), "2"), *first + 1);
  const auto got = control_->get(key("a"));
  ASSERT_TRUE(got);
  EXPECT_EQ(got->value, "2");
  EXPECT_EQ(got->create_revision, *first);
  EXPECT_EQ(got->mod_revision, *first + 1);
  EXPECT_EQ(got->lease, 0);

  EXPECT_EQ(*control_->erase(key("a")), 1);
  EXPECT_EQ(*control_->erase(key("a")), 0);
  EXPECT_EQ(control_->get(key("a")).error().code, Code::not_found);
  EXPECT_EQ(control_->list(root_)->revision, *first + 2) << "erasing nothing makes no revision";
  EXPECT_EQ(control_->put("", "x").error().code, Code::invalid);
}

TEST_P(ControlConformance, ListsAPrefixInOrder) {
  for (const char* name : {"b", "a", "c/d", "a\xff\xff"}) ASSERT_TRUE(control_->put(key(name), name));
  ASSERT_TRUE(control_->put(root_.substr(0, root_.size() - 1) + "0", "the neighbour behind the prefix"));
  ASSERT_TRUE(control_->put(key(std::string_view("z\0y", 3)), std::string("\0\xff", 2)));
  const auto listing = control_->list(root_);
  ASSERT_TRUE(listing);
  std::vector<std::string> names;
  for (const auto& kv : listing->kvs) names.push_back(kv.key.substr(root_.size()));
  EXPECT_EQ(names, (std::vector<std::string>{"a", "a\xff\xff", "b", "c/d", std::string("z\0y", 3)}));
  EXPECT_EQ(listing->kvs.back().value, std::string("\0\xff", 2));
  EXPECT_EQ(control_->list(key("a\xff"))->kvs.size(), 1u);
  EXPECT_EQ(control_->list_many(key("a\xff"))->kvs.size(), 1u);
  EXPECT_TRUE(control_->list(key("none"))->kvs.empty());
  EXPECT_GE(control_->list("")->kvs.size(), 6u);
  EXPECT_EQ(*control_->erase_prefix(root_), 5);
  EXPECT_TRUE(control_->list(root_)->kvs.empty());
}

TEST_P(ControlConformance, TellsHowManyAPrefixHasAndWhichIsNewest) {
  const auto expect_tally = [this](std::uint64_t count, Revision newest) {
    const auto tally = control_->tally(root_);
    ASSERT_TRUE(tally);
    EXPECT_EQ(tally->count, count);
    EXPECT_EQ(tally->newest, newest);
    EXPECT_EQ(tally->revision, control_->list(root_)->revision);
  };
  expect_tally(0, 0);
  for (const char* name : {"a", "c", "b"}) ASSERT_TRUE(control_->put(key(name), name));
  const Revision newest = *control_->put(key("a"), "again");
  expect_tally(3, newest);
  EXPECT_EQ(control_->tally(key("c"))->count, 1u);
  ASSERT_TRUE(control_->erase(key("c")));
  expect_tally(2, newest);
  EXPECT_EQ(*control_->erase_prefix(root_), 2);
  expect_tally(0, 0);
}

TEST_P(ControlConformance, CompareAndSwapHasOneWinner) {
  const auto made = control_->compare_and_swap(key("state"), 0, "one");
  ASSERT_TRUE(made) << made.error().what;
  EXPECT_TRUE(made->won);
  EXPECT_FALSE(made->current);

  const auto again = control_->compare_and_swap(key("state"), 0, "mine");
  ASSERT_TRUE(again);
  EXPECT_FALSE(again->won);
  ASSERT_TRUE(again->current);
  EXPECT_EQ(again->current->value, "one");
  EXPECT_EQ(again->current->mod_revision, made->revision);
  EXPECT_EQ(again->revision, made->revision) << "losing makes no revision";

  const auto moved = control_->compare_and_swap(key("state"), made->revision, "two");
  ASSERT_TRUE(moved && moved->won);
  EXPECT_EQ(moved->revision, made->revision + 1);
  EXPECT_FALSE(control_->compare_and_swap(key("state"), made->revision, "late")->won);
  EXPECT_EQ(control_->get(key("state"))->value, "two");

  ASSERT_TRUE(control_->erase(key("state")));
  const auto gone = control_->compare_and_swap(key("state"), moved->revision, "three");
  ASSERT_TRUE(gone);
  EXPECT_FALSE(gone->won);
  EXPECT_FALSE(gone->current) << "nothing is there";
  EXPECT_TRUE(control_->compare_and_swap(key("state"), 0, "four")->won);
}

TEST_P(ControlConformance, ATransactionIsAllOrNothing) {
  const Revision first = *control_->put(key("a"), "1");
  ASSERT_TRUE(control_->put(key("old/x"), "1"));
  using Kind = KeyChange::Kind;
  const std::vector<KeyChange> changes = {{Kind::put, key("b"), "2", 0},
                                          {Kind::put, key("c"), "3", 0},
                                          {Kind::erase, key("a"), "", 0},
                                          {Kind::erase_prefix, key("old/"), "", 0}};
  using Field = KeyCompare::Field;
  using Is = KeyCompare::Is;
  const auto lost = control_->transact({{key("a"), Field::mod_revision, Is::greater, first}, {key("b")}}, changes);
  ASSERT_TRUE(lost) << lost.error().what;
  EXPECT_FALSE(lost->won);
  ASSERT_EQ(lost->current.size(), 2u);
  EXPECT_EQ(lost->current[0]->value, "1");
  EXPECT_FALSE(lost->current[1]);
  EXPECT_EQ(control_->list(root_)->kvs.size(), 2u);

  const auto won = control_->transact({{key("a"), Field::create_revision, Is::equal, first},
                                       {key("a"), Field::mod_revision, Is::less, first + 1},
                                       {key("b"), Field::create_revision, Is::not_equal, first}},
                                      changes);
  ASSERT_TRUE(won && won->won);
  const auto listing = control_->list(root_);
  ASSERT_EQ(listing->kvs.size(), 2u);
  EXPECT_EQ(listing->revision, lost->revision + 1);
  for (const auto& kv : listing->kvs) EXPECT_EQ(kv.mod_revision, won->revision);

  const auto twice = control_->transact({}, {{Kind::put, key("d"), "1", 0}, {Kind::put, key("d"), "2", 0}});
  EXPECT_EQ(twice.error().code, Code::invalid);
  const auto put_and_erased =
      control_->transact({}, {{Kind::put, key("d"), "1", 0}, {Kind::erase_prefix, root_, "", 0}});
  EXPECT_EQ(put_and_erased.error().code, Code::invalid);
  EXPECT_EQ(control_->transact({}, {{Kind::put, key("d"), "1", 424242}}).error().code, Code::not_found);
  EXPECT_EQ(control_->list(root_)->revision, listing->revision);
}

TEST_P(ControlConformance, ConcurrentIncrementsAreCountedExactly) {
  constexpr int kThreads = 8, kEach = 20;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&] {
      for (int done = 0; done < kEach;) {
        const auto seen = control_->get(key("count"));
        const int count = seen ? std::stoi(seen->value) : 0;
        const auto swap =
            control_->compare_and_swap(key("count"), seen ? seen->mod_revision : 0, std::to_string(count + 1));
        ASSERT_TRUE(swap) << swap.error().what;
        if (swap->won) ++done;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(control_->get(key("count"))->value, std::to_string(kThreads * kEach));
}

TEST_P(ControlConformance, ALeaseEndsAndTakesItsKeysAlong) {
  constexpr auto kLease = seconds(2);
  const auto now = [] { return std::chrono::steady_clock::now(); };
  auto renewed = now();
  const auto lease = control_->lease_grant(kLease);
  ASSERT_TRUE(lease) << lease.error().what;
  for (const char* name : {"a", "b"}) ASSERT_TRUE(control_->put(key(name), "1", *lease));
  ASSERT_TRUE(control_->put(key("free"), "1", *lease));
  ASSERT_TRUE(control_->put(key("free"), "2"));  // without the lease now
  EXPECT_EQ(control_->get(key("a"))->lease, *lease);

  const Revision with_all = control_->list(root_)->revision;
  for (int i = 0; i < 5; ++i) {  // renewed for longer than it was granted
    std::this_thread::sleep_for(milliseconds(500));
    const auto before = now();
    const auto kept = control_->lease_keep_alive_once(*lease);
    if (now() - renewed >= kLease) break;  // this machine was too slow to renew it in time
    ASSERT_TRUE(kept) << kept.error().what;
    ASSERT_EQ(*kept, kLease);
    renewed = before;
  }
  Heard heard;
  const auto watch = control_->watch(root_, {.from_revision = with_all + 1}, heard.ear());
  const auto events = heard.wait_for(2);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(told(events[0]), "erased a");
  EXPECT_EQ(told(events[1]), "erased b");
  EXPECT_EQ(events[0].revision, events[1].revision);
  EXPECT_EQ(control_->list(root_)->kvs.size(), 1u);
  EXPECT_EQ(control_->lease_keep_alive_once(*lease).error().code, Code::not_found);
  EXPECT_EQ(control_->put(key("a"), "1", *lease).error().code, Code::not_found);
  EXPECT_EQ(control_->lease_revoke(*lease).error().code, Code::not_found);
}

TEST_P(ControlConformance, ARevokedLeaseEndsAtOnce) {
  const auto lease = control_->lease_grant(seconds(60));
  ASSERT_TRUE(lease);
  ASSERT_TRUE(control_->compare_and_swap(key("node"), 0, "1", *lease)->won);
  ASSERT_TRUE(control_->lease_revoke(*lease));
  EXPECT_TRUE(control_->list(root_)->kvs.empty());
}

TEST_P(ControlConformance, AWatchTellsEverythingInOrder) {
  const Revision before = control_->list(root_)->revision;
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(control_->put(key(std::to_string(i)), "past"));
  ASSERT_TRUE(control_->put("/elsewhere", "not seen"));
  Heard from_past, from_now;
  std::mutex mutex;
  std::condition_variable connected;
  bool stands = false;
  WatchOptions now;
  now.on_connection = [&](bool is) {
    std::lock_guard lock(mutex);
    stands = is;
    connected.notify_all();
  };
  const auto past_watch = control_->watch(root_, {.from_revision = before + 1}, from_past.ear());
  const auto now_watch = control_->watch(root_, now, from_now.ear());
  {
    std::unique_lock lock(mutex);
    ASSERT_TRUE(connected.wait_for(lock, seconds(10), [&] { return stands; }));
  }
  for (int i = 50; i < 100; ++i) ASSERT_TRUE(control_->put(key(std::to_string(i)), "live"));
  using Kind = KeyChange::Kind;
  ASSERT_TRUE(control_->transact({}, {{Kind::put, key("x"), "1", 0}, {Kind::erase, key("0"), "", 0}}));

  const auto all = from_past.wait_for(102);
  ASSERT_EQ(all.size(), 102u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(told(all[i]), text("put ", i));
  for (int i = 1; i < 100; ++i) EXPECT_LT(all[i - 1].revision, all[i].revision);
  EXPECT_EQ(told(all[100]), "put x");
  EXPECT_EQ(told(all[101]), "erased 0");
  EXPECT_EQ(all[100].revision, all[101].revision);
  EXPECT_EQ(all[101].kv.mod_revision, all[101].revision);
  const auto live = from_now.wait_for(52);
  ASSERT_EQ(live.size(), 52u);
  EXPECT_EQ(told(live[0]), "put 50");
}

TEST_P(ControlConformance, ManyWatchesAtOnce) {
  constexpr int kWatches = 60;
  std::vector<std::unique_ptr<Heard>> heard;
  std::vector<std::unique_ptr<Watch>> watches;
  const Revision before = control_->list(root_)->revision;
  for (int i = 0; i < kWatches; ++i) {
    heard.push_back(std::make_unique<Heard>());
    watches.push_back(control_->watch(key(text(i, "/")), {.from_revision = before + 1}, heard[i]->ear()));
  }
  for (int i = 0; i < kWatches; ++i) ASSERT_TRUE(control_->put(key(text(i, "/own")), "1"));
  for (int i = 0; i < kWatches; ++i) {
    const auto events = heard[i]->wait_for(1);
    ASSERT_EQ(events.size(), 1u);
    EXPECT_EQ(events[0].kv.key, key(text(i, "/own")));
  }
}

TEST_P(ControlRestart, NothingIsLostOverAKillAndRestart) {
  constexpr int kWrites = 60;
  const auto lease = control_->lease_grant(seconds(60));
  ASSERT_TRUE(lease);
  ASSERT_TRUE(control_->put(key("leased"), "1", *lease));
  const Listing before = *control_->list(root_);
  Heard heard;
  std::atomic<int> lost = 0, regained = 0;
  WatchOptions options{.from_revision = before.revision + 1,
                       .on_connection = [&](bool is) { is ? ++regained : ++lost; }};
  auto watch = control_->watch(root_, options, heard.ear());
  // One writer goes on through the restarts. Creation by compare-and-swap: no write can happen twice unseen.
  std::atomic<int> written = 0;
  std::thread writer([&] {
    for (int i = 0; i < kWrites; ++i) {
      const std::string name = key(text("w", i));
      for (int attempt = 0;; ++attempt) {
        const auto swap = control_->compare_and_swap(name, 0, "1");
        if (swap && (swap->won || attempt > 0)) break;
        ASSERT_FALSE(swap) << "lost without a rival";
      }
      ++written;
      std::this_thread::sleep_for(milliseconds(10));
    }
  });
  for (int stop : {15, 35}) {
    while (written < stop) std::this_thread::sleep_for(milliseconds(1));
    backend_->kill();
    std::this_thread::sleep_for(milliseconds(150));
    backend_->start();
  }
  writer.join();
  const auto events = heard.wait_for(kWrites);
  ASSERT_EQ(events.size(), static_cast<std::size_t>(kWrites));
  for (int i = 0; i < kWrites; ++i) {
    EXPECT_EQ(told(events[i]), text("put w", i));
    EXPECT_EQ(events[i].revision, before.revision + 1 + i) << "revisions go on where they were";
  }
  EXPECT_GE(lost, 2);
  EXPECT_GE(regained, 3);

  const Listing last = *control_->list(root_);
  backend_->kill();
  backend_->start();
  const Listing after = *control_->list(root_);
  EXPECT_EQ(after.revision, last.revision);
  ASSERT_EQ(after.kvs.size(), last.kvs.size());
  for (std::size_t i = 0; i < after.kvs.size(); ++i) {
    EXPECT_EQ(after.kvs[i].key, last.kvs[i].key);
    EXPECT_EQ(after.kvs[i].value, last.kvs[i].value);
    EXPECT_EQ(after.kvs[i].mod_revision, last.kvs[i].mod_revision);
    EXPECT_EQ(after.kvs[i].create_revision, last.kvs[i].create_revision);
    EXPECT_EQ(after.kvs[i].lease, last.kvs[i].lease);
  }
  // The lease lives on, and still owns its key.
  EXPECT_EQ(*control_->lease_keep_alive_once(*lease), seconds(60));
  ASSERT_TRUE(control_->lease_revoke(*lease));
  EXPECT_EQ(control_->get(key("leased")).error().code, Code::not_found);
}

TEST_P(ControlRestart, AnAbsentServerIsUnreachableAndFoundAgain) {
  ASSERT_TRUE(control_->put(key("a"), "1"));
  const auto hasty = connect({.deadline = milliseconds(300)});
  ASSERT_TRUE(hasty->get(key("a")));
  backend_->kill();
  EXPECT_EQ(hasty->get(key("a")).error().code, Code::unreachable);
  EXPECT_EQ(hasty->put(key("a"), "2").error().code, Code::unreachable);
  EXPECT_EQ(hasty->lease_grant(seconds(5)).error().code, Code::unreachable);
  EXPECT_EQ(hasty->lease_keep_alive_once(1).error().code, Code::unreachable);
  {
    const auto watch = hasty->watch(root_, {}, [](const WatchEvent&) {});
  }  // ends although nobody is there
  Result<KeyValue> got = Error{};
  std::thread reader([&] { got = control_->get(key("a")); });  // rides it out inside its deadline
  std::this_thread::sleep_for(milliseconds(200));
  backend_->start();  // here, on the main thread: a child ends with the thread that started it
  reader.join();
  ASSERT_TRUE(got) << got.error().what;
  EXPECT_EQ(got->value, "1");
}

TEST_P(ControlConformance, TheNextEndpointIsTried) {
  const std::string endpoints = text("127.0.0.1:", free_port(), ",", backend_->address());
  const auto control = connect_control(endpoints);
  ASSERT_TRUE(control);
  Heard heard;
  const Revision before = control_->list(root_)->revision;
  const auto watch = (*control)->watch(root_, {.from_revision = before + 1}, heard.ear());
  const auto put = (*control)->put(key("a"), "1");
  ASSERT_TRUE(put) << put.error().what;
  EXPECT_EQ(heard.wait_for(1).size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(Control, ControlConformance, testing::Values("embedded", "etcd", "etcd_cluster"),
                         backend_name);
INSTANTIATE_TEST_SUITE_P(Control, ControlRestart,
                         testing::Values("embedded", "embedded_process", "etcd", "etcd_cluster"), backend_name);

TEST(ConnectControl, RefusesWhatIsNoAddress) {
  for (const char* address : {"", "nowhere", "host:", ":1", "host:0", "host:65536", "unix:", "a:1,,b:2", "a:1,"})
    EXPECT_EQ(connect_control(address).error().code, Code::invalid) << address;
}

}  // namespace
}  // namespace pawl::job
