#include "checkpoint/containers/pickle.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "checkpoint/containers/zip.h"
#include "checkpoint/formats/fixtures.h"

namespace pawl::checkpoint {
namespace {

using namespace std::string_literals;

Result<Pickle> parse(const std::string& bytes) {
  return parse_pickle(bytes);
}

std::string why(const std::string& bytes) {
  Result<Pickle> pickle = parse(bytes);
  return pickle ? "read" : pickle.error().what;
}

TEST(Pickle, ReadsPlainValues) {
  // {'a': [1, -2, 2**40, 2.5, None, True], 'b': (b'xy', 'z')} in protocol 2, by hand
  Result<Pickle> pickle = parse(
      "\x80\x02}q\0(X\1\0\0\0aq\1]q\2(K\1J\xfe\xff\xff\xff\x8a\6\0\0\0\0\0\1G\x40\x04\0\0\0\0\0\0N\x88"
      "eX\1\0\0\0bC\2xyX\1\0\0\0z\x86u."s);
  ASSERT_TRUE(pickle.has_value()) << pickle.error().what;
  const Pickle::Value list = pickle->find(pickle->root(), "a");
  const auto items = pickle->items(list);
  ASSERT_EQ(items.size(), 6u);
  EXPECT_EQ(pickle->integer(items[0]), 1);
  EXPECT_EQ(pickle->integer(items[1]), -2);
  EXPECT_EQ(pickle->integer(items[2]), std::int64_t{1} << 40);
  EXPECT_EQ(pickle->real(items[3]), 2.5);
  EXPECT_TRUE(pickle->is(items[4], PickleKind::none));
  EXPECT_TRUE(pickle->boolean(items[5]));
  const auto pair = pickle->items(pickle->find(pickle->root(), "b"));
  ASSERT_EQ(pair.size(), 2u);
  EXPECT_EQ(pickle->text(pair[0]), "xy");
  EXPECT_EQ(pickle->text(pair[1]), "z");
  EXPECT_EQ(pickle->find(pickle->root(), "c"), Pickle::kNothing);
}

TEST(Pickle, LongIntegersKeepEveryBit) {
  Result<Pickle> small = parse("\x80\2\x8a\x09\0\0\0\0\0\0\0\x80\0."s);  // 2^63
  ASSERT_TRUE(small.has_value());
  EXPECT_TRUE(small->is(small->root(), PickleKind::long_integer));
  EXPECT_FALSE(small->integer(small->root()).has_value());
  Result<Pickle> least = parse("\x80\2\x8a\x09\0\0\0\0\0\0\0\x80\xff."s);  // -2^63
  ASSERT_TRUE(least.has_value());
  EXPECT_EQ(least->integer(least->root()), std::numeric_limits<std::int64_t>::min());
  Result<Pickle> padded = parse("\x80\2\x8a\x0c\1\0\0\0\0\0\0\0\0\0\0\0."s);
  ASSERT_TRUE(padded.has_value());
  EXPECT_EQ(padded->integer(padded->root()), 1);
  Result<Pickle> zero = parse("\x80\2\x8a\0."s);
  ASSERT_TRUE(zero.has_value());
  EXPECT_EQ(zero->integer(zero->root()), 0);
}

TEST(Pickle, ACallIsRememberedAndNotMade) {
  Result<Pickle> pickle = parse("\x80\2c__builtin__\neval\nX\3\0\0\0boo\x85R}X\1\0\0\0aK\5sb."s);
  ASSERT_TRUE(pickle.has_value()) << pickle.error().what;
  EXPECT_TRUE(pickle->class_of(pickle->root()).is("builtins", "eval"));
  EXPECT_EQ(pickle->text(pickle->items(pickle->object(pickle->root()).arguments)[0]), "boo");
  EXPECT_EQ(pickle->integer(pickle->find(pickle->object(pickle->root()).state, "a")), 5);
  EXPECT_EQ(pickle->describe(pickle->root()), "a call of builtins.eval");
}

TEST(Pickle, AnOrderedDictHoldsPairs) {
  Result<Pickle> pickle = parse("\x80\2ccollections\nOrderedDict\n)R(X\1\0\0\0aK\1X\1\0\0\0bK\2u."s);
  ASSERT_TRUE(pickle.has_value()) << pickle.error().what;
  EXPECT_EQ(pickle->integer(pickle->find(pickle->root(), "b")), 2);
}

TEST(Pickle, ErrorsNameOffsetAndReason) {
  EXPECT_EQ(why(""), "offset 0: the pickle ends in the middle");
  EXPECT_EQ(why("\x80\2K"s), "offset 2: the pickle ends in the middle");
  EXPECT_EQ(why("\x80\x63N."s), "offset 0: protocol 99 is not known");
  EXPECT_EQ(why("h\5."s), "offset 0: memo index 5 was never written");
  EXPECT_EQ(why("N(."s), "offset 2: the end, with 1 values and 1 marks left");
  EXPECT_EQ(why("]]K\1s."s), "offset 4: a list of 0 takes no keys");
  EXPECT_EQ(why("t."s), "offset 0: there is no mark");
  EXPECT_EQ(why("(N0a."s), "offset 3: the stack is too short");
  EXPECT_EQ(why("}]Ns."s), "offset 3: a list of 0 can't be a key");
  EXPECT_EQ(why("X\1\0\0\0\xff."s), "offset 0: a string is not UTF-8");
  EXPECT_EQ(why("K\1)R."s), "offset 3: a call of the integer 1");
  EXPECT_EQ(why("Nr\xff\xff\xff\xff."s), "offset 1: memo index 4294967295 in a pickle of 7 bytes");
  EXPECT_EQ(why("B\xff\xff\xff\xff."s), "offset 0: the pickle ends in the middle");
  EXPECT_EQ(why("\x8e\xff\xff\xff\xff\xff\xff\xff\xff."s), "offset 0: the pickle ends in the middle");
  EXPECT_EQ(why("ios\nsystem\n."s), "offset 0: opcode 105 is none that checkpoints use");
}

TEST(Pickle, DepthHasALimit) {
  std::string deep(20'000, ']');
  deep.append(19'999, 'a');
  deep.push_back('.');
  Result<Pickle> pickle = parse(deep);
  ASSERT_FALSE(pickle.has_value());
  EXPECT_EQ(pickle.error().code, Code::full);
  std::string tuples = "N" + std::string(20'000, '\x85') + ".";
  EXPECT_FALSE(parse(tuples).has_value());
}

TEST(Pickle, MemoryHasALimit) {
  std::string wide = "(";
  for (int i = 0; i < 100'000; ++i) wide += "M\1\2";  // small numbers would be one value
  wide += "l.";
  PickleLimits limits;
  ASSERT_TRUE(parse_pickle(wide, limits).has_value());
  limits.memory_bytes = 1 << 20;
  Result<Pickle> pickle = parse_pickle(wide, limits);
  ASSERT_FALSE(pickle.has_value());
  EXPECT_EQ(pickle.error().code, Code::full);
}

TEST(Pickle, ACycleIsAGraph) {
  Result<Pickle> pickle = parse("\x80\2]q\0h\0a."s);
  ASSERT_TRUE(pickle.has_value()) << pickle.error().what;
  EXPECT_EQ(pickle->items(pickle->root())[0], pickle->root());
}

TEST(Pickle, SaysWhereItEnds) {
  Result<Pickle> pickle = parse("\x80\2N.and more"s);
  ASSERT_TRUE(pickle.has_value());
  EXPECT_EQ(pickle->source_bytes(), 4u);
}

// Opcodes drawn at random, from those there are: refused or read, always within the time and memory of their length.
TEST(Pickle, RandomOpcodesDoNoHarm) {
  const std::uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const std::string opcodes =
      "(.012FIJKLMNQRSTUVXabcdeghjlpqrstu}])GBC\x80\x81\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x92\x93\x94\x95\x96"s;
  int read = 0;
  for (int i = 0; i < 100'000; ++i) {
    std::string bytes(1 + random() % 40, '\0');
    for (char& byte : bytes)
      byte = random() % 4 == 0 ? static_cast<char>(random() % 8) : opcodes[random() % opcodes.size()];
    bytes.push_back('.');
    read += parse_pickle(bytes).has_value() ? 1 : 0;
  }
  EXPECT_GT(read, 0);
}

// The metadata of a real checkpoint, cut at every byte.
TEST(Pickle, EveryTruncationIsRefused) {
  const std::string bytes = fixtures::content(fixtures::small_set() + "/torch/G8k_no_collectives/ckpt/__0.metadata");
  ASSERT_TRUE(parse(bytes).has_value()) << parse(bytes).error().what;
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    bool ended_early = false;
    ASSERT_FALSE(parse_pickle(std::string_view(bytes).substr(0, length), {}, &ended_early).has_value()) << length;
    EXPECT_TRUE(ended_early) << length;
  }
}

}  // namespace
}  // namespace pawl::checkpoint
