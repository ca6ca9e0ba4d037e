// The rendezvous against a plain map, with requests repeated and reordered as restarted daemons do it.
#include "job/rendezvous/rendezvous_store.h"

#include <gtest/gtest.h>

#include <random>

namespace pawl::job {
namespace {

RendezvousRequest request(RendezvousOp op, std::string key, std::string value = {}) {
  RendezvousRequest made;
  made.op = op;
  made.key = std::move(key);
  made.value = std::move(value);
  return made;
}

class Client {
 public:
  Client(RendezvousStore& store, std::uint64_t id) : store_(store), id_(id) {}
  RendezvousAnswer ask(RendezvousRequest request) {
    request.client = id_;
    request.number = ++number_;
    last_ = request;
    return *store_.apply(request);
  }
  std::optional<RendezvousAnswer> repeat() { return store_.apply(last_); }
  RendezvousAnswer add(std::string key, std::int64_t amount) {
    RendezvousRequest made = request(RendezvousOp::add, std::move(key));
    made.amount = amount;
    return ask(made);
  }
  RendezvousAnswer compare_set(std::string key, std::string expected, std::string desired) {
    RendezvousRequest made = request(RendezvousOp::compare_set, std::move(key), std::move(desired));
    made.expected = std::move(expected);
    return ask(made);
  }
  const RendezvousRequest& last() const { return last_; }

 private:
  RendezvousStore& store_;
  std::uint64_t id_, number_ = 0;
  RendezvousRequest last_;
};

TEST(RendezvousStore, SetsGetsAndErases) {
  RendezvousStore store;
  Client client(store, 1);
  EXPECT_FALSE(store.apply(request(RendezvousOp::get, "k")));  // to be asked again
  EXPECT_EQ(store.apply(request(RendezvousOp::try_get, "k")), (RendezvousAnswer{false, {}, {}}));
  EXPECT_TRUE(client.ask(request(RendezvousOp::set, "k", std::string("\0v", 2))).found);
  EXPECT_EQ(store.apply(request(RendezvousOp::get, "k"))->value, std::string("\0v", 2));
  EXPECT_EQ(store.apply(request(RendezvousOp::try_get, "k"))->value, std::string("\0v", 2));
  EXPECT_TRUE(client.ask(request(RendezvousOp::erase, "k")).found);
  EXPECT_FALSE(client.ask(request(RendezvousOp::erase, "k")).found);
}

std::vector<std::string> values_in(const std::optional<RendezvousAnswer>& answer) {
  std::vector<std::string> values;
  EXPECT_TRUE(answer && unpack(answer->value, values));
  return values;
}

TEST(RendezvousStore, ReadsManyKeysOnceAllAreThere) {
  RendezvousStore store;
  Client client(store, 1);
  const RendezvousRequest all = request(RendezvousOp::get_all, "a", pack(std::vector<std::string>{"a", "b", "a"}));
  (void)client.ask(request(RendezvousOp::set, "a", "1"));
  EXPECT_FALSE(store.is_new_change(all));
  EXPECT_FALSE(store.apply(all));
  (void)client.ask(request(RendezvousOp::set, "b", std::string("\0", 1)));
  EXPECT_EQ(values_in(store.apply(all)), (std::vector<std::string>{"1", std::string("\0", 1), "1"}));
  EXPECT_FALSE(store.apply(request(RendezvousOp::get_all, "a", "no keys"))->refused.empty());
}

TEST(RendezvousStore, OfManyLargeValuesTheFirstOnesAreRead) {
  RendezvousStore store;
  Client client(store, 1);
  const std::string large(kValuesBytesMax / 2, 'v');
  for (const char* key : {"a", "b", "c"}) (void)client.ask(request(RendezvousOp::set, key, large));
  const auto ask = [&](std::vector<std::string> keys) {
    return values_in(store.apply(request(RendezvousOp::get_all, keys[0], pack(keys))));
  };
  EXPECT_EQ(ask({"a", "b", "c"}).size(), 2u);
  (void)client.ask(request(RendezvousOp::set, "a", large + large + large));
  EXPECT_EQ(ask({"a", "b", "c"}).size(), 1u);
}

TEST(RendezvousStore, AddsDecimalTextAndRefusesWhatIsNone) {
  RendezvousStore store;
  Client client(store, 1);
  EXPECT_EQ(client.add("n", 5).value, "5");
  EXPECT_EQ(client.add("n", -7).value, "-2");
  client.ask(request(RendezvousOp::set, "word", "seven"));
  EXPECT_NE(client.add("word", 1).refused.find("seven"), std::string::npos);
  EXPECT_EQ(store.apply(request(RendezvousOp::get, "word"))->value, "seven");
  client.add("n", INT64_MAX);
  EXPECT_FALSE(client.add("n", INT64_MAX).refused.empty());
}

TEST(RendezvousStore, ComparesAsC10dDoes) {
  RendezvousStore store;
  Client client(store, 1);
  EXPECT_EQ(client.compare_set("k", "old", "new"), (RendezvousAnswer{false, "old", {}}));  // not there: nothing is set
  EXPECT_FALSE(store.apply(request(RendezvousOp::get, "k")));
  EXPECT_EQ(client.compare_set("k", "", "first").value, "first");
  EXPECT_EQ(client.compare_set("k", "", "second").value, "first");
  EXPECT_EQ(client.compare_set("k", "first", "second").value, "second");
}

TEST(RendezvousStore, ARepeatedChangeIsDoneOnce) {
  RendezvousStore store;
  Client one(store, 1), other(store, 2);
  one.add("n", 1);
  const RendezvousRequest old = one.last();
  EXPECT_EQ(one.repeat()->value, "1");
  other.add("n", 1);
  EXPECT_EQ(one.repeat()->value, "1") << "what it was told, not what is there now";
  one.add("n", 1);
  EXPECT_FALSE(store.apply(old)) << "its client has gone on: nobody waits for this";
  EXPECT_EQ(store.apply(request(RendezvousOp::get, "n"))->value, "3");
}

TEST(RendezvousStore, TravelsAndRefusesDamage) {
  RendezvousRequest sent = request(RendezvousOp::compare_set, "key", "value");
  sent.client = 9;
  sent.number = 3;
  sent.expected = "expected";
  sent.amount = -4;
  sent.wait_ms = 77;
  const std::string bytes = encode(sent);
  RendezvousRequest received;
  ASSERT_TRUE(decode(bytes, received));
  EXPECT_EQ(received, sent);
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(decode(std::string_view(bytes).substr(0, size), received));
  RendezvousStore store;
  EXPECT_FALSE(store.replay(""));
  EXPECT_FALSE(store.replay(std::string("\7nothing", 8)));
}

// A store that is lost at any moment and made anew from its records answers as one that never was.
TEST(RendezvousStore, ComesBackFromItsRecords) {
  for (std::uint32_t seed = 1; seed <= 30; ++seed) {
    std::mt19937 random(seed);
    RendezvousStore kept;
    auto lost = std::make_unique<RendezvousStore>();
    std::vector<std::string> log;
    std::uint64_t numbers[3] = {};
    RendezvousRequest last[3];
    for (int i = 0; i < 300; ++i) {
      const std::uint32_t who = random() % 3;
      RendezvousRequest made = last[who];
      if (made.client == 0 || random() % 4 != 0) {  // else it repeats what it asked
        made = request(static_cast<RendezvousOp>(1 + random() % 6),
                       std::string(1, static_cast<char>('a' + random() % 4)), std::to_string(random() % 3));
        made.client = who + 1;
        made.number = ++numbers[who];
        made.amount = static_cast<int>(random() % 5) - 2;
        made.expected = random() % 2 == 0 ? "" : std::to_string(random() % 3);
        if (changes_something(made.op)) last[who] = made;
      }
      if (lost->is_new_change(made)) log.push_back(RendezvousStore::record_of(made));
      EXPECT_EQ(kept.apply(made), lost->apply(made)) << "seed " << seed;
      if (random() % 20 != 0) continue;
      if (random() % 2 == 0) log = lost->records();
      lost = std::make_unique<RendezvousStore>();
      for (const std::string& record : log) EXPECT_TRUE(lost->replay(record));
    }
  }
}

}  // namespace
}  // namespace pawl::job
