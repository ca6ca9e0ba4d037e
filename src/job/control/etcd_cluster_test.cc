// Three real etcd members, of which some are killed or stopped, while pawl's client writes, watches and holds leases.
//
// Nobody else writes here, and each write makes one revision. So a watch of all keys must tell every revision.
// Not here: a slow disk (that needs a delaying device, or a tracer that holds etcd's fsyncs), and a member that wakes and carries out
// a put that another member has overtaken: that undoes the later one, and is not mended (docs/failure-model.md).
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>

#include "job/control/control_backend.h"
#include "job/control/control_channel.h"

namespace pawl::job {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Steady = std::chrono::steady_clock;

constexpr std::size_t kNobody = 99;

class EtcdCluster : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (find_program("etcd")) cluster_ = std::make_unique<EtcdBackend>(3);
  }
  static void TearDownTestSuite() { cluster_.reset(); }

  void SetUp() override {
    if (!has_etcd()) {
      if (HasFailure()) return;
      GTEST_SKIP() << "no etcd here; install etcd-server";
    }
    cluster_->start();
    wait_all_follow();
    root_ = text("/", testing::UnitTest::GetInstance()->current_test_info()->name(), "/");
    control_ = connect(cluster_->address());
  }
  void TearDown() override {  // as it was: the next test needs three that run
    if (cluster_ == nullptr) return;
    for (std::size_t member = 0; member < cluster_->count(); ++member)
      if (cluster_->process(member).runs()) cluster_->process(member).send(SIGCONT);
  }

  static std::unique_ptr<Control> connect(const std::string& endpoints, milliseconds deadline = seconds(10)) {
    auto control = connect_control(endpoints, {.deadline = deadline});
    EXPECT_TRUE(control);
    return std::move(*control);
  }
  // All members, this one first.
  static std::string beginning_with(std::size_t member) {
    std::string out = cluster_->address_of(member);
    for (std::size_t other = 0; other < cluster_->count(); ++other)
      if (other != member) out += "," + cluster_->address_of(other);
    return out;
  }
  static std::string all_but(std::size_t member) {
    const std::string all = beginning_with(member);
    return all.substr(all.find(',') + 1);
  }
  [[nodiscard]] std::string key(std::string_view name) const { return root_ + std::string(name); }

  // The leader by this member's word; kNobody: it knows none or does not answer.
  static std::size_t leader_by(std::size_t member) {
    const auto asked = [](std::size_t whom, etcdserverpb::StatusResponse* response) {
      const auto stub = etcdserverpb::Maintenance::NewStub(
          grpc::CreateChannel(cluster_->address_of(whom), grpc::InsecureChannelCredentials()));
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + seconds(2));
      return stub->Status(&context, {}, response).ok();
    };
    etcdserverpb::StatusResponse said;
    if (!asked(member, &said) || said.leader() == 0) return kNobody;
    for (std::size_t other = 0; other < cluster_->count(); ++other) {
      etcdserverpb::StatusResponse response;
      if (asked(other, &response) && response.header().member_id() == said.leader()) return other;
    }
    return kNobody;
  }
  static void wait_all_follow() {
    const auto until = Steady::now() + seconds(20);
    for (std::size_t member = 0; member < cluster_->count(); ++member)
      while (leader_by(member) == kNobody) {
        ASSERT_LT(Steady::now(), until) << "member " << member << " follows no leader";
        std::this_thread::sleep_for(milliseconds(50));
      }
  }
  static std::size_t leader() { return leader_by(0); }
  static std::size_t follower() { return (leader() + 1) % cluster_->count(); }

  template <class Work>
  static milliseconds took(Work work) {
    const auto began = Steady::now();
    work();
    return std::chrono::duration_cast<milliseconds>(Steady::now() - began);
  }

  static inline std::unique_ptr<EtcdBackend> cluster_;
  std::string root_;
  std::unique_ptr<Control> control_;
};

// What two rivals and a writer do while the leader dies, and what they were told.
struct Work {
  std::set<std::string> acknowledged;                // puts
  std::map<std::string, std::vector<int>> said_won;  // by rival
  std::map<std::string, std::set<int>> perhaps;      // uncertain: by rival
  std::mutex mutex;
};

TEST_F(EtcdCluster, TheLeaderIsKilledAndNothingAcknowledgedIsLost) {
  const auto lease = control_->lease_grant(seconds(5));
  ASSERT_TRUE(lease);
  ASSERT_TRUE(control_->put(key("leased"), "1", *lease));
  const Revision before = control_->list("/")->revision;
  Heard heard;
  const auto watch = control_->watch("", {.from_revision = before + 1}, heard.ear());

  Work work;
  std::atomic<bool> done = false;
  std::atomic<int> round = 0, renewals = 0, lease_gone = 0;
  std::vector<std::thread> threads;
  threads.emplace_back([&, control = connect(cluster_->address(), seconds(2))] {
    for (int i = 0; !done; ++i) {
      const std::string name = key(text("put", i));
      if (!control->put(name, std::to_string(i))) continue;
      std::lock_guard lock(work.mutex);
      work.acknowledged.insert(name);
      round = i;
    }
  });
  for (int rival : {1, 2})
    threads.emplace_back([&, rival, control = connect(beginning_with(rival), milliseconds(700))] {
      for (int i = 0; !done; ++i) {
        const std::string name = key(text("swap", i));
        const auto swap = control->compare_and_swap(name, 0, std::to_string(rival));
        std::lock_guard lock(work.mutex);
        if (!swap) work.perhaps[name].insert(rival);
        if (swap && swap->won) work.said_won[name].push_back(rival);
      }
    });
  threads.emplace_back([&, control = connect(cluster_->address(), seconds(2))] {
    for (; !done; std::this_thread::sleep_for(milliseconds(300))) {
      const auto left = control->lease_keep_alive_once(*lease);
      if (left) ++renewals;
      if (!left && left.error().code == Code::not_found) ++lease_gone;
    }
  });

  for (int kill = 0; kill < 2; ++kill) {
    std::this_thread::sleep_for(milliseconds(500));
    const std::size_t victim = leader_by(kill);
    ASSERT_NE(victim, kNobody);
    const int puts = round;
    cluster_->process(victim).kill();
    for (int i = 0; i < 200 && round < puts + 20; ++i) std::this_thread::sleep_for(milliseconds(50));
    EXPECT_GE(round, puts + 20) << "the two that are left do not go on";
    cluster_->start_member(victim);
    wait_all_follow();
  }
  done = true;
  for (auto& thread : threads) thread.join();

  EXPECT_EQ(lease_gone, 0);
  EXPECT_GT(renewals, 3);
  EXPECT_TRUE(control_->get(key("leased")));
  const auto listing = control_->list("");
  ASSERT_TRUE(listing);
  std::map<std::string, std::string> now;
  for (const auto& kv : listing->kvs) now[kv.key] = kv.value;
  for (const auto& name : work.acknowledged) EXPECT_TRUE(now.contains(name)) << name;
  for (const auto& [name, winners] : work.said_won) {
    ASSERT_EQ(winners.size(), 1u) << name << " was won twice";
    EXPECT_EQ(now[name], std::to_string(winners[0])) << name;
  }
  for (const auto& [name, value] : now) {
    if (!name.starts_with(key("swap")) || work.said_won.contains(name)) continue;
    EXPECT_TRUE(work.perhaps[name].contains(std::stoi(value))) << name << ": he won, and was told that he did not";
  }

  ASSERT_TRUE(heard.wait_for_revision(listing->revision));
  std::map<std::string, std::string> told;
  Revision last = before;
  for (const auto& event : heard.events()) {
    ASSERT_EQ(event.kind, WatchEvent::Kind::put);
    ASSERT_EQ(event.revision, last + 1) << "the watch left something out, or said it twice";
    last = event.revision;
    told[event.kv.key] = event.kv.value;
  }
  EXPECT_EQ(last, listing->revision);
  for (const auto& [name, value] : told) EXPECT_EQ(now[name], value) << name;
}

TEST_F(EtcdCluster, CallsGoOnBesideAMemberThatIsStopped) {
  for (const std::size_t victim : {follower(), leader()}) {
    SCOPED_TRACE(victim == leader() ? "the leader" : "a follower");
    const auto control = connect(beginning_with(victim), seconds(6));
    ASSERT_TRUE(control->put(key("a"), "before"));
    const bool leads = victim == leader();
    cluster_->process(victim).send(SIGSTOP);
    Result<Revision> put = Error{};
    const milliseconds first = took([&] { put = control->put(key("a"), "1"); });
    EXPECT_TRUE(put) << put.error().what;
    const milliseconds second = took([&] { put = control->put(key("a"), "2"); });
    EXPECT_TRUE(put) << put.error().what;
    RecordProperty(leads ? "leader_first_ms" : "follower_first_ms", static_cast<int>(first.count()));
    printf("a member is stopped (%s): first call %d ms, second %d ms\n", leads ? "leader" : "follower",
           static_cast<int>(first.count()), static_cast<int>(second.count()));
    EXPECT_LE(first, milliseconds(4500)) << "its share of the deadline, and an election";
    EXPECT_LE(second, milliseconds(1800)) << "the silent one is asked again";

    // Who comes while it is stopped: the kernel accepts its connection.
    const auto late = connect(beginning_with(victim), seconds(6));
    EXPECT_LE(took([&] { EXPECT_TRUE(late->get(key("a"))); }), milliseconds(4500));
    cluster_->process(victim).send(SIGCONT);
    wait_all_follow();
  }
}
TEST_F(EtcdCluster, AWatchLeavesAMemberThatSaysNothing) {
  const std::size_t victim = follower();
  const auto control = connect(beginning_with(victim));
  const Revision before = *control_->put(key("a"), "0");
  Heard heard;
  const auto watch = control->watch(root_, {.from_revision = before}, heard.ear());
  ASSERT_TRUE(heard.wait_for_revision(before));
  cluster_->process(victim).send(SIGSTOP);
  const auto writer = connect(all_but(victim));
  const auto put = writer->put(key("a"), "1");
  ASSERT_TRUE(put) << put.error().what;
  const milliseconds deaf = took([&] { EXPECT_TRUE(heard.wait_for_revision(*put)); });
  printf("the member behind a watch is stopped: deaf for %d ms\n", static_cast<int>(deaf.count()));
  EXPECT_LE(deaf, milliseconds(3000)) << "a node that learns of a recovery later than this is evicted";
  cluster_->process(victim).send(SIGCONT);
  ASSERT_TRUE(heard.wait_for_revision(*writer->put(key("a"), "2")));
  std::vector<std::string> values;
  for (const auto& event : heard.events()) values.push_back(event.kv.value);
  EXPECT_EQ(values, (std::vector<std::string>{"0", "1", "2"}));
}

TEST_F(EtcdCluster, WithoutAMajorityCallsFailInTimeAndWorkAgain) {
  const auto lease = control_->lease_grant(seconds(60));
  ASSERT_TRUE(lease);
  const Revision before = *control_->put(key("a"), "1", *lease);
  Heard heard;
  const auto watch = control_->watch(root_, {.from_revision = before + 1}, heard.ear());
  const auto hasty = connect(beginning_with(0), milliseconds(1500));
  ASSERT_TRUE(hasty->get(key("a")));
  cluster_->process(1).kill();
  cluster_->process(2).kill();
  const auto check = [&](const char* what, const Error& error, milliseconds after) {
    SCOPED_TRACE(text(what, ": ", error.what));
    EXPECT_TRUE(error.code == Code::unreachable || error.code == Code::timeout);
    EXPECT_LE(after, milliseconds(2500));
    for (std::size_t member = 0; member < 3; ++member)
      EXPECT_NE(error.what.find(cluster_->address_of(member)), std::string::npos) << "does not name member " << member;
  };
  for (int turn = 0; turn < 2; ++turn) {
    Error error;
    milliseconds after = took([&] { error = hasty->get(key("a")).error(); });
    check("get", error, after);
    after = took([&] { error = hasty->put(key("a"), "2").error(); });
    check("put", error, after);
    after = took([&] { error = hasty->compare_and_swap(key("b"), 0, "2").error(); });
    check("compare_and_swap", error, after);
    after = took([&] { error = hasty->lease_keep_alive_once(*lease).error(); });
    check("renewal", error, after);
    printf("without a majority: %s\n", error.what.c_str());
  }
  cluster_->start_member(1);
  const auto again = control_->put(key("c"), "3");
  ASSERT_TRUE(again) << again.error().what;
  cluster_->start_member(2);
  EXPECT_EQ(*control_->lease_keep_alive_once(*lease), seconds(60));
  ASSERT_TRUE(heard.wait_for_revision(*again));
  const auto b = control_->get(key("b"));  // it failed, but nobody said that it did not happen
  EXPECT_TRUE(b || b.error().code == Code::not_found);
}

TEST_F(EtcdCluster, AWatchBeneathWhichItIsCompactedMissesNothingUnsaid) {
  const std::size_t member = follower();
  const auto alone = connect(cluster_->address_of(member));
  const Revision before = *control_->put(key("a"), "0");
  Heard heard;
  const auto watch = alone->watch(root_, {.from_revision = before}, heard.ear());
  ASSERT_TRUE(heard.wait_for_revision(before));
  cluster_->process(member).kill();
  const auto writer = connect(all_but(member));
  Revision last = 0;
  for (int i = 1; i <= 20; ++i) {
    const auto put = writer->put(key("a"), std::to_string(i));
    ASSERT_TRUE(put) << put.error().what;
    last = *put;
  }
  {
    const auto kv = etcdserverpb::KV::NewStub(grpc::CreateChannel(
        cluster_->address_of((member + 1) % cluster_->count()), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    etcdserverpb::CompactionRequest request;
    etcdserverpb::CompactionResponse response;
    request.set_revision(last);
    request.set_physical(true);
    ASSERT_TRUE(kv->Compact(&context, request, &response).ok());
  }
  cluster_->start_member(member);
  ASSERT_TRUE(heard.wait_for_revision(last));
  ASSERT_TRUE(heard.wait_for_revision(*writer->put(key("a"), "end")));
  // The member plays its log again; a watch that is there early sees all of it, a late one is told that it can't.
  Revision expected = before;
  bool resynced = false;
  for (const auto& event : heard.events()) {
    const bool resync = event.kind == WatchEvent::Kind::resync;
    if (resync) resynced = true;
    EXPECT_TRUE(resync ? event.revision >= expected - 1 : event.revision == expected) << event.revision;
    expected = event.revision + 1;
  }
  printf("compacted beneath a watch: %s\n", resynced ? "resync" : "all events");
}

TEST_F(EtcdCluster, ALeaseDoesNotEndEarlyWhenTheLeaderChanges) {
  const seconds granted(3);
  const auto lease = control_->lease_grant(granted);
  ASSERT_TRUE(lease);
  ASSERT_TRUE(control_->put(key("node"), "1", *lease));
  std::this_thread::sleep_for(milliseconds(500));
  const auto renewed = Steady::now();
  ASSERT_TRUE(control_->lease_keep_alive_once(*lease));
  const std::size_t victim = leader();
  ASSERT_NE(victim, kNobody);
  cluster_->process(victim).kill();
  Steady::time_point seen = renewed;  // there, by the word of a majority
  for (;;) {
    const auto asked = Steady::now();
    const auto got = control_->get(key("node"));
    if (!got && got.error().code == Code::not_found) break;
    if (got) seen = asked;
    ASSERT_LT(Steady::now() - renewed, seconds(20)) << "it never ends";
    std::this_thread::sleep_for(milliseconds(50));
  }
  const auto lived = std::chrono::duration_cast<milliseconds>(seen - renewed);
  printf("a lease of 3000 ms over a change of the leader: %d ms\n", static_cast<int>(lived.count()));
  EXPECT_GE(lived, granted - milliseconds(100));
}

}  // namespace
}  // namespace pawl::job
