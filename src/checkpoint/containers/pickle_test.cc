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
  EXPECT_EQ(why("ios\nsystem\n."s), "offset 0: there is no mark");
  EXPECT_EQ(why("\x82\1."s), "offset 0: opcode 130 is none that checkpoints use");  // EXT1
}

// What Python 2.7 writes for {'a': [1, 2L, u'\xe9'], "it's\n": ('\xff', True)}.
TEST(Pickle, Python2sStringsAreTextWhereTheyCanBe) {
  const std::string protocols[] = {
      "(dp0\nS'a'\np1\n(lp2\nI1\naL2L\naV\xe9\np3\nasS\"it's\\n\"\np4\n(S'\\xff'\np5\nI01\ntp6\ns."s,
      "}q\0(U\1aq\1]q\2(K\1L2L\nX\2\0\0\0\xc3\xa9q\3eU\5it's\nq\4(U\1\xffq\5I01\ntq\6u."s,
      "\x80\2}q\0(U\1aq\1]q\2(K\1\x8a\1\2X\2\0\0\0\xc3\xa9q\3eT\5\0\0\0it's\nq\4U\1\xffq\5\x88\x86q\6u."s};
  for (const std::string& bytes : protocols) {
    Result<Pickle> pickle = parse(bytes);
    ASSERT_TRUE(pickle.has_value()) << pickle.error().what;
    const auto list = pickle->items(pickle->find(pickle->root(), "a"));
    ASSERT_EQ(list.size(), 3u);
    EXPECT_EQ(pickle->integer(list[1]), 2);
    EXPECT_EQ(pickle->text(list[2]), "\xc3\xa9");
    const auto pair = pickle->items(pickle->find(pickle->root(), "it's\n"));
    ASSERT_EQ(pair.size(), 2u);
    EXPECT_TRUE(pickle->is(pair[0], PickleKind::bytes));
    EXPECT_EQ(pickle->text(pair[0]), "\xff");
    EXPECT_TRUE(pickle->boolean(pair[1]));
  }
}

TEST(Pickle, Python2sEscapesAreUndone) {
  const auto text = [](const std::string& quoted) {
    Result<Pickle> pickle = parse("S" + quoted + "\n.");
    return pickle ? std::string(pickle->text(pickle->root())) : pickle.error().what;
  };
  EXPECT_EQ(text(R"('a\\b\'\"\n\r\t\x1b\033\0q\q')"), "a\\b'\"\n\r\t\x1b\x1b\0q\\q"s);
  EXPECT_EQ(text(R"('\x1')"), "offset 0: a bad \\ in a string");
  EXPECT_EQ(text(R"('\xg0')"), "offset 0: a bad \\ in a string");
  EXPECT_EQ(text("'a\\'"), "offset 0: a bad \\ in a string");
  EXPECT_EQ(text("'a"), "offset 0: a string without its quotes");
}

// OrderedDict([['a', 1], ['b', 2]]), which Python 2 calls with its items.
TEST(Pickle, AnOrderedDictOfPython2HoldsPairs) {
  Result<Pickle> pickle = parse("\x80\2ccollections\nOrderedDict\n](](U\1aK\1e](U\1bK\2ee\x85R."s);
  ASSERT_TRUE(pickle.has_value()) << pickle.error().what;
  EXPECT_TRUE(pickle->object(pickle->root()).holds_pairs);
  EXPECT_EQ(pickle->integer(pickle->find(pickle->root(), "b")), 2);
  EXPECT_EQ(why("\x80\2ccollections\nOrderedDict\n]K\1a\x85R."s), "offset 32: an OrderedDict's item is the integer 1");
}

// A list of pairs costs its length once, whoever names it again.
TEST(Pickle, OneListOfPairsIsNotGivenAMillionTimes) {
  std::string bytes = "\x80\2(](";
  for (int i = 0; i < 1000; ++i) bytes += "U\1aK\1\x86";
  bytes += "e\x85q\1ccollections\nOrderedDict\nq\2";
  for (int i = 0; i < 1000; ++i) bytes += "h\2h\1R";
  Result<Pickle> pickle = parse(bytes + "l.");
  ASSERT_FALSE(pickle.has_value());
  EXPECT_EQ(pickle.error().code, Code::full) << pickle.error().what;
}

TEST(Pickle, DecimalsMayBeLong) {
  Result<Pickle> magic = parse("L119547037146038801333356L\n.");  // begins torch's streams
  ASSERT_TRUE(magic.has_value()) << magic.error().what;
  EXPECT_EQ(magic->text(magic->root()), "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"s);
  const auto bytes_of = [](const std::string& decimal) {
    Result<Pickle> pickle = parse("L" + decimal + "L\n.");
    return pickle ? std::string(pickle->text(pickle->root())) : pickle.error().what;
  };
  EXPECT_EQ(bytes_of("9223372036854775808"), "\0\0\0\0\0\0\0\x80\0"s);
  EXPECT_EQ(bytes_of("-9223372036854775809"), "\xff\xff\xff\xff\xff\xff\xff\x7f\xff"s);
  EXPECT_EQ(bytes_of("-36893488147419103232"), "\0\0\0\0\0\0\0\0\xfe"s);
  EXPECT_EQ(bytes_of("12x"), "offset 0: a decimal that is not an integer");
  EXPECT_EQ(bytes_of("-"), "offset 0: a decimal that is not an integer");
  EXPECT_EQ(bytes_of(std::string(2000, '9')), "offset 0: a decimal of 2000 digits");
}

// Instances of Python 2's old classes, whose class stands before or behind the arguments.
TEST(Pickle, InstancesOfOldClassesAreCallsThatAreNotMade) {
  for (const std::string& bytes : {"(K\1ios\nsystem\n}U\1aK\5sb."s, "(cos\nsystem\nK\1o}U\1aK\5sb."s}) {
    Result<Pickle> pickle = parse(bytes);
    ASSERT_TRUE(pickle.has_value()) << pickle.error().what;
    EXPECT_TRUE(pickle->class_of(pickle->root()).is("os", "system"));
    const auto arguments = pickle->items(pickle->object(pickle->root()).arguments);
    ASSERT_EQ(arguments.size(), 1u);
    EXPECT_EQ(pickle->integer(arguments[0]), 1);
    EXPECT_EQ(pickle->integer(pickle->find(pickle->object(pickle->root()).state, "a")), 5);
  }
  EXPECT_EQ(why("(o."s), "offset 1: an instance without its class");
}

TEST(Pickle, APersistentIdMayBeText) {
  Result<Pickle> pickle = parse("P('storage', 0)\n.");
  ASSERT_TRUE(pickle.has_value()) << pickle.error().what;
  ASSERT_TRUE(pickle->is(pickle->root(), PickleKind::persistent));
  EXPECT_EQ(pickle->text(pickle->object(pickle->root()).arguments), "('storage', 0)");
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
      "(.012FIJKLMNPQRSTUVXabcdeghijlopqrstu}])GBC\x80\x81\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x92\x93\x94\x95\x96"s;
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
