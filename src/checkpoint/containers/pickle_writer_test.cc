#include "checkpoint/containers/pickle_writer.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <limits>

#include "checkpoint/containers/pickle.h"
#include "checkpoint/containers/python_says.h"

namespace pawl::checkpoint {
namespace {

using namespace std::string_literals;

// What Python's own unpickler makes of these bytes, as its repr().
std::string in_python(const std::string& pickle) {
  return python_says(pickle, "import pickle, sys; print(repr(pickle.load(open(sys.argv[1], \"rb\"))))");
}

void write_all_kinds(PickleWriter& w) {
  w.empty_dict();
  w.mark();
  w.string("numbers");
  w.empty_list();
  w.mark();
  for (const std::int64_t value :
       {std::int64_t{0}, std::int64_t{255}, std::int64_t{256}, std::int64_t{65536}, std::int64_t{-1},
        std::int64_t{1} << 31, -(std::int64_t{1} << 31) - 1, std::int64_t{1} << 39, -(std::int64_t{1} << 39),
        std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()})
    w.integer(value);
  w.unsigned_(std::uint64_t{1} << 63);
  w.real(-2.5);
  w.real(1e-300);
  w.append_items();
  w.string("rest");
  w.none();
  w.boolean(true);
  w.boolean(false);
  w.tuple(3);
  w.string("bytes");
  w.bytes("a\x80\xff\0'"s);
  w.string("no bytes");
  w.bytes("");
  w.string("é");
  const std::uint32_t memo = w.memoize();
  w.recall(memo);
  w.string("tuples");
  w.empty_tuple();
  w.integer(1);
  w.tuple(1);
  w.mark();
  for (int i = 0; i < 4; ++i) w.integer(i);
  w.tuple();
  w.tuple(3);
  w.string("called");
  w.global("builtins", "frozenset");
  w.empty_list();
  w.integer(7);
  w.append_item();
  w.tuple(1);
  w.reduce();
  w.string("again");
  w.global("builtins", "frozenset");
  w.empty_tuple();
  w.reduce();
  w.string("built");
  w.global("collections", "OrderedDict");
  w.empty_tuple();
  w.newobj();
  w.string("k");
  w.integer(1);
  w.set_item();
  w.set_items();
}

TEST(PickleWriter, PythonReadsEveryKindOfValue) {
  const std::string expected =
      "{'numbers': [0, 255, 256, 65536, -1, 2147483648, -2147483649, 549755813888, -549755813888, "
      "-9223372036854775808, 9223372036854775807, 9223372036854775808, -2.5, 1e-300], 'rest': (None, True, False), "
      "'bytes': b\"a\\x80\\xff\\x00'\", 'no bytes': b'', 'é': 'é', 'tuples': ((), (1,), (0, 1, 2, 3)), "
      "'called': frozenset({7}), 'again': frozenset(), 'built': OrderedDict(";
  for (const std::uint8_t protocol : {2, 3, 4, 5}) {
    PickleWriter writer(protocol);
    write_all_kinds(writer);
    const std::string bytes = writer.finish();
    EXPECT_EQ(in_python(bytes).substr(0, expected.size()), expected) << "protocol " << int(protocol);
  }
}

TEST(PickleWriter, OurReaderReadsEveryKindOfValue) {
  for (const std::uint8_t protocol : {2, 4}) {
    PickleWriter writer(protocol);
    write_all_kinds(writer);
    const std::string bytes = writer.finish();
    const Result<Pickle> pickle = parse_pickle(bytes);
    ASSERT_TRUE(pickle) << pickle.error().what;
    EXPECT_EQ(pickle->source_bytes(), bytes.size());
    const auto numbers = pickle->items(pickle->find(pickle->root(), "numbers"));
    ASSERT_EQ(numbers.size(), 14u);
    EXPECT_EQ(pickle->integer(numbers[6]), -2147483649);
    EXPECT_EQ(pickle->integer(numbers[9]), std::numeric_limits<std::int64_t>::min());
    EXPECT_EQ(pickle->real(numbers[12]), -2.5);
    EXPECT_EQ(pickle->text(pickle->find(pickle->root(), "é")), "é");
    const Pickle::Value called = pickle->find(pickle->root(), "called");
    EXPECT_TRUE(pickle->class_of(called).is("builtins", "frozenset"));
    const Pickle::Value built = pickle->find(pickle->root(), "built");
    EXPECT_EQ(pickle->object(built).call, Pickle::Call::newobj);
    EXPECT_EQ(pickle->integer(pickle->find(built, "k")), 1);
    if (protocol == 4) {
      EXPECT_EQ(pickle->text(pickle->find(pickle->root(), "bytes")), "a\x80\xff\0'"s);
    }
  }
}

// Byte for byte what Python 3's C pickler writes, but for its memo of containers and strings.
TEST(PickleWriter, WritesTheOpcodesThatPythonWould) {
  PickleWriter writer;
  writer.empty_dict();
  writer.string("a");
  writer.integer(-3);
  writer.set_item();
  EXPECT_EQ(writer.finish(), "\x80\x02}X\1\0\0\0aJ\xfd\xff\xff\xffs."s);
  PickleWriter longs;
  longs.integer(std::int64_t{1} << 39);  // needs a sixth byte for its sign
  EXPECT_EQ(longs.finish(), "\x80\x02\x8a\x06\0\0\0\0\x80\0."s);
  PickleWriter negative;
  negative.integer(-(std::int64_t{1} << 39));
  EXPECT_EQ(negative.finish(), "\x80\x02\x8a\x05\0\0\0\0\x80."s);
}

TEST(PickleWriter, RemembersMoreThanAByteCounts) {
  PickleWriter writer;
  writer.empty_list();
  writer.mark();
  for (int i = 0; i < 300; ++i) {
    writer.integer(i);
    EXPECT_EQ(writer.memoize(), static_cast<std::uint32_t>(i));
  }
  writer.recall(299);
  writer.append_items();
  const Result<Pickle> pickle = parse_pickle(writer.finish());
  ASSERT_TRUE(pickle) << pickle.error().what;
  ASSERT_EQ(pickle->items(pickle->root()).size(), 301u);
  EXPECT_EQ(pickle->integer(pickle->items(pickle->root())[300]), 299);
}

TEST(PickleWriter, PersistentIdsAndStatesAreReadBack) {
  PickleWriter writer;
  writer.global("torch._utils", "_rebuild_tensor_v2");
  writer.mark();
  writer.string("storage");
  writer.global("torch", "FloatStorage");
  writer.string("0");
  writer.string("cpu");
  writer.integer(4);
  writer.tuple();
  writer.persistent_id();
  writer.tuple(1);
  writer.reduce();
  writer.empty_dict();
  writer.build();
  const Result<Pickle> pickle = parse_pickle(writer.finish());
  ASSERT_TRUE(pickle) << pickle.error().what;
  const Pickle::Object call = pickle->object(pickle->root());
  EXPECT_TRUE(pickle->is(call.state, PickleKind::dict));
  const Pickle::Value storage = pickle->items(call.arguments)[0];
  ASSERT_TRUE(pickle->is(storage, PickleKind::persistent));
  EXPECT_EQ(pickle->text(pickle->items(pickle->object(storage).arguments)[2]), "0");
}

}  // namespace
}  // namespace pawl::checkpoint
