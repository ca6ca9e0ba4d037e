#include "job/layout/seat_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "pawl/pawl.h"

namespace pawl::job {
namespace {

TEST(SeatLayout, HasTheNumbersOfTheCInterface) {
  EXPECT_EQ(static_cast<int>(Lifetime::stable), PAWL_STABLE);
  EXPECT_EQ(static_cast<int>(Lifetime::volatile_), PAWL_VOLATILE);
  EXPECT_EQ(static_cast<int>(Lifetime::derived), PAWL_DERIVED);
  EXPECT_EQ(static_cast<int>(TensorPlacement::replicate), PAWL_REPLICATE);
  EXPECT_EQ(static_cast<int>(TensorPlacement::unique), PAWL_UNIQUE);
}

LayoutEntry entry_of(std::string name, std::string role, Shape shape, Lifetime lifetime = Lifetime::stable) {
  LayoutEntry entry;
  entry.name = std::move(name);
  entry.role = std::move(role);
  entry.box = whole_box(shape);
  entry.shape = std::move(shape);
  entry.mesh = 0;
  entry.lifetime = lifetime;
  return entry;
}

LayoutEntry shard_of(std::string name, std::string role, Shape shape, const Shape& begin, const Shape& size) {
  LayoutEntry entry = entry_of(std::move(name), std::move(role), std::move(shape));
  entry.box = whole_box(size);
  std::ranges::copy(begin, entry.box.begin.begin());
  entry.placement = TensorPlacement::unique;
  return entry;
}

LayoutBuilder builder_of_four() {
  LayoutBuilder builder(4);
  EXPECT_TRUE(builder.add_mesh({"dense", {{"dp", 2}, {"tp", 2}}}));
  return builder;
}

SeatLayout example() {
  LayoutBuilder builder = builder_of_four();
  EXPECT_EQ(*builder.add(entry_of("wte", "weight", {5, 3})), 0u);
  EXPECT_EQ(*builder.add(entry_of("rng state", "buffer", {7}, Lifetime::volatile_)), 1u);
  EXPECT_EQ(*builder.add_blob("sampler", 100), 2u);
  EXPECT_EQ(*builder.add(entry_of("wte", "weight_bf16", {5, 3}, Lifetime::derived)), 3u);
  EXPECT_EQ(*builder.add(shard_of("wte", "exp_avg", {5, 3}, {2, 0}, {2, 3})), 4u);
  EXPECT_EQ(*builder.add(entry_of("loss \xC3\xA9", "step", {})), 5u);
  Result<SeatLayout> layout = builder.build();
  EXPECT_TRUE(layout) << layout.error().what;
  return *layout;
}

TEST(Layout, StableFirstThenVolatileEachAligned) {
  const SeatLayout layout = example();
  const auto offset = [&](std::size_t i) { return layout.entries[i].payload_offset; };
  EXPECT_EQ(offset(0), 0u);
  EXPECT_EQ(offset(4), 64u);
  EXPECT_EQ(offset(5), 128u);
  EXPECT_EQ(layout.stable_bytes, 192u);
  EXPECT_EQ(offset(1), 192u);
  EXPECT_EQ(offset(2), 256u);
  EXPECT_EQ(layout.entries[2].bytes, 108u);
  EXPECT_EQ(layout.payload_bytes, 256u + 128u);
  EXPECT_EQ(offset(3), kNotCaptured);
  EXPECT_EQ(layout.entries[4].bytes, 24u);
}

TEST(Layout, TextGoesAndComesBack) {
  const SeatLayout layout = example();
  const std::string text = text_of(layout);
  EXPECT_EQ(text,
            "pawl-layout\t1\t4\n"
            "mesh\tdense\tdp\t2\ttp\t2\n"
            "tensor\twte\tweight\tfloat32\t[5,3]\t[0,0]\t[5,3]\t0\treplicate\tstable\t0\t60\n"
            "tensor\trng state\tbuffer\tfloat32\t[7]\t[0]\t[7]\t0\treplicate\tvolatile\t192\t28\n"
            "tensor\tsampler\tblob\tuint8\t[108]\t[0]\t[108]\t-\tunique\tvolatile\t256\t108\n"
            "tensor\twte\tweight_bf16\tfloat32\t[5,3]\t[0,0]\t[5,3]\t0\treplicate\tderived\t-\t60\n"
            "tensor\twte\texp_avg\tfloat32\t[5,3]\t[2,0]\t[2,3]\t0\tunique\tstable\t64\t24\n"
            "tensor\tloss \xC3\xA9\tstep\tfloat32\t[]\t[]\t[]\t0\treplicate\tstable\t128\t4\n");
  const Result<SeatLayout> parsed = parse_layout(text);
  ASSERT_TRUE(parsed) << parsed.error().what;
  EXPECT_EQ(*parsed, layout);
  EXPECT_EQ(digest_of("a"), 0xAF63DC4C8601EC8Cu);  // FNV-1a's published value
  EXPECT_EQ(digest_of(text_of(*parsed)), digest_of(text));
}

// What is declared equal on other seats is a hint: it moves no byte, and may depend on the moment of the declaration.
TEST(Layout, WhatIsEqualElsewhereIsNoPartOfTheState) {
  const auto built = [](std::uint64_t axes) {
    LayoutBuilder builder = builder_of_four();
    LayoutEntry entry = entry_of("w", "weight", {5, 3});
    entry.equal_axes = axes;
    EXPECT_TRUE(builder.add(entry));
    return *builder.build();
  };
  EXPECT_NE(text_of(built(1)), text_of(built(0)));
  EXPECT_TRUE(have_same_state(built(1), built(0)));
  EXPECT_TRUE(have_same_state(built(0), built(1)));
  EXPECT_EQ(shared_text(built(1)), shared_text(built(0)));
}

LayoutEntry ordered(Shape shape, std::vector<std::uint32_t> order) {
  LayoutEntry entry = entry_of("w", "weight", std::move(shape));
  entry.order = std::move(order);
  return entry;
}

SeatLayout layout_of(LayoutEntry entry) {
  LayoutBuilder builder = builder_of_four();
  EXPECT_TRUE(builder.add(std::move(entry)));
  return *builder.build();
}

TEST(Layout, SaysInWhichOrderDimensionsLieInMemory) {
  LayoutEntry entry = ordered({2, 3, 4, 5}, {0, 2, 3, 1});
  entry.equal_axes = 1;
  const SeatLayout layout = layout_of(entry);
  const std::string text = text_of(layout);
  EXPECT_NE(text.find("\t0\t480\tequal 1\torder 0,2,3,1\n"), std::string::npos) << text;
  const auto parsed = parse_layout(text);
  ASSERT_TRUE(parsed) << parsed.error().what;
  EXPECT_EQ(*parsed, layout);
  EXPECT_EQ(parsed->entries[0].order, (std::vector<std::uint32_t>{0, 2, 3, 1}));
  for (const char* const odd :
       {"order 0,2,3", "order 0,2,3,3", "order 0,2,3,4", "order 0,1,2,3", "order 0,2,3,1,", "order ", "order 00,2,3,1",
        "order 0,2,3,1,4,5,6,7,8", "order 0,2,3,1\torder 0,2,3,1", "row 1"}) {
    std::string changed = text;
    changed.replace(changed.find("order 0,2,3,1"), 13, odd);
    const auto refused = parse_layout(changed);
    ASSERT_FALSE(refused) << odd;
    EXPECT_EQ(refused.error().code, Code::corrupt);
  }
  std::string swapped = text;
  swapped.replace(swapped.find("equal 1\torder 0,2,3,1"), 21, "order 0,2,3,1\tequal 1");
  EXPECT_FALSE(parse_layout(swapped));
}

TEST(Layout, OneMemoryHasOneOrder) {
  const auto order_of = [](Shape shape, std::vector<std::uint32_t> order) {
    return layout_of(ordered(std::move(shape), std::move(order))).entries[0].order;
  };
  using Order = std::vector<std::uint32_t>;
  EXPECT_EQ(order_of({2, 3}, {0, 1}), Order{});
  EXPECT_EQ(order_of({2, 3}, {1, 0}), (Order{1, 0}));
  EXPECT_EQ(order_of({1, 3}, {1, 0}), Order{}) << "a row is a column";
  EXPECT_EQ(order_of({2, 3, 1, 1}, {0, 2, 3, 1}), Order{});
  EXPECT_EQ(order_of({1, 3, 4, 5}, {2, 0, 3, 1}), order_of({1, 3, 4, 5}, {0, 2, 3, 1}));
  EXPECT_EQ(order_of({2, 1, 4, 5}, {2, 3, 0, 1}), (Order{1, 2, 3, 0}));
  EXPECT_EQ(canonical_order({1, 0}, whole_box({0, 3})), Order{}) << "nothing lies anywhere";
  LayoutEntry shard = shard_of("w", "exp_avg", {4, 6}, {2, 0}, {1, 6});  // the box decides, not the tensor
  shard.order = {1, 0};
  EXPECT_EQ(layout_of(shard).entries[0].order, Order{});
}

TEST(Layout, OrderIsAPartOfTheState) {
  const SeatLayout rows = layout_of(ordered({2, 3}, {})), columns = layout_of(ordered({2, 3}, {1, 0}));
  EXPECT_FALSE(have_same_state(rows, columns));
  EXPECT_TRUE(have_same_state(columns, columns));
  EXPECT_EQ(first_differences(shared_text(rows), shared_text(columns)),
            std::vector<std::string>{
                "tensor w (weight): [2,3] float32 stable mesh 0 here, [2,3] float32 stable mesh 0 order 1,0 "
                "there"});
  LayoutBuilder builder = builder_of_four();
  EXPECT_FALSE(builder.add(ordered({2, 3}, {0})));
  EXPECT_FALSE(builder.add(ordered({2, 3}, {0, 0})));
  EXPECT_FALSE(builder.add(ordered({2, 3}, {0, 2})));
  EXPECT_FALSE(builder.add(ordered({}, {0})));
}

TEST(Layout, CapacityOfBlobsMayDiffer) {
  const auto built = [](std::uint64_t capacity, const char* blob = "sampler", const char* role = "weight") {
    LayoutBuilder builder = builder_of_four();
    EXPECT_TRUE(builder.add(entry_of("w", role, {5, 3})));
    EXPECT_TRUE(builder.add_blob(blob, capacity));
    EXPECT_TRUE(builder.add(entry_of("rng", "buffer", {7}, Lifetime::volatile_)));
    return *builder.build();
  };
  const SeatLayout layout = built(100);
  EXPECT_TRUE(have_same_state(layout, layout));
  EXPECT_TRUE(have_same_state(layout, built(5000)));
  EXPECT_TRUE(have_same_state(built(5000), layout));
  EXPECT_FALSE(have_same_state(layout, built(100, "scaler")));
  EXPECT_FALSE(have_same_state(layout, built(100, "sampler", "master")));
  SeatLayout other = layout;
  other.entries[2].shape = {8};
  EXPECT_FALSE(have_same_state(layout, other));
  other = layout;
  other.world = 5;
  EXPECT_FALSE(have_same_state(layout, other));
  other = layout;
  other.meshes[0].name = "wide";
  EXPECT_FALSE(have_same_state(layout, other));
  other = layout;
  other.entries.pop_back();
  EXPECT_FALSE(have_same_state(layout, other));
}

TEST(Layout, RefusesWhatIsWrong) {
  LayoutBuilder builder = builder_of_four();
  const auto refused = [&](LayoutEntry entry) {
    const auto index = builder.add(std::move(entry));
    return !index && index.error().code == Code::invalid;
  };
  ASSERT_TRUE(builder.add(entry_of("w", "weight", {4})));
  EXPECT_TRUE(refused(entry_of("w", "weight", {5})));
  EXPECT_TRUE(refused(entry_of("", "weight", {4})));
  EXPECT_TRUE(refused(entry_of("a\nb", "weight", {4})));
  EXPECT_TRUE(refused(entry_of("a\tb", "weight", {4})));
  EXPECT_TRUE(refused(entry_of(std::string(513, 'x'), "weight", {4})));
  EXPECT_FALSE(refused(entry_of(std::string(512, 'x'), "weight", {4})));
  EXPECT_TRUE(refused(entry_of("big", "weight", {std::uint64_t{1} << 45})));  // 2^47 bytes
  EXPECT_TRUE(refused(entry_of("big", "weight", {std::uint64_t{1} << 62, 8})));
  EXPECT_TRUE(refused(shard_of("v", "weight", {4}, {3}, {2})));
  LayoutEntry part = shard_of("v", "weight", {4}, {2}, {2});
  part.placement = TensorPlacement::replicate;
  EXPECT_TRUE(refused(part));
  LayoutEntry elsewhere = entry_of("u", "weight", {4});
  elsewhere.mesh = 1;
  EXPECT_TRUE(refused(elsewhere));
  elsewhere.mesh = kNoMesh;
  EXPECT_TRUE(refused(elsewhere));
  EXPECT_FALSE(builder.add_mesh({"dense", {{"x", 4}}}));
  EXPECT_FALSE(builder.add_mesh({"other", {{"x", 3}}}));
  EXPECT_FALSE(builder.add_blob("huge", ~std::uint64_t{0}));
  EXPECT_TRUE(builder.add_blob("empty", 0));
  EXPECT_TRUE(builder.build());

  LayoutBuilder nothing(1);
  EXPECT_EQ(nothing.build().error().code, Code::invalid);
  LayoutBuilder too_much = builder_of_four();
  for (int i = 0; i < 2; ++i)
    ASSERT_TRUE(too_much.add(entry_of(std::to_string(i), "weight", {std::uint64_t{1} << 44})));
  EXPECT_EQ(too_much.build().error().code, Code::invalid);
}

TEST(Layout, HostileTextIsCorruptAndHarmless) {
  const std::string sound = text_of(example());
  const auto corrupt = [](const std::string& text) {
    const auto layout = parse_layout(text);
    return !layout && layout.error().code == Code::corrupt;
  };
  EXPECT_TRUE(corrupt(""));
  EXPECT_TRUE(corrupt("\n"));
  EXPECT_TRUE(corrupt("pawl-layout\t2\t4\n"));
  EXPECT_TRUE(corrupt("pawl-layout\t1\t4\n"));  // no state
  EXPECT_TRUE(corrupt(sound + "x"));
  EXPECT_TRUE(corrupt(sound + "\n"));
  EXPECT_TRUE(corrupt(sound + sound));
  for (std::size_t end = 0; end < sound.size(); ++end) {
    // Whole lines less are a smaller sound layout, unless offsets no longer agree; anything else is corrupt.
    const auto layout = parse_layout(sound.substr(0, end));
    if (layout)
      ASSERT_EQ(text_of(*layout), sound.substr(0, end));
    else
      ASSERT_EQ(layout.error().code, Code::corrupt) << end;
  }
  std::mt19937_64 random(1);
  const std::string alphabet = "\t\n[],-019amx\xFF";
  for (int round = 0; round < 30'000; ++round) {
    std::string text = sound;
    for (std::uint64_t changes = 1 + random() % 3; changes > 0; --changes) {
      const std::size_t at = random() % text.size();
      const char c = random() % 4 == 0 ? static_cast<char>(random()) : alphabet[random() % alphabet.size()];
      if (random() % 3 == 0)
        text.insert(at, 1, c);
      else if (random() % 3 == 0)
        text.erase(at, 1 + random() % 20);
      else
        text[at] = c;
    }
    const auto layout = parse_layout(text);
    if (layout)
      ASSERT_EQ(text_of(*layout), text);
    else
      ASSERT_EQ(layout.error().code, Code::corrupt) << layout.error().what;
    (void)first_differences(text, sound);
  }
}

TEST(Layout, SharedTextLeavesOutWhatSeatsMayDifferIn) {
  LayoutBuilder other = builder_of_four();
  ASSERT_TRUE(other.add(entry_of("wte", "weight", {5, 3})));
  ASSERT_TRUE(other.add(entry_of("rng state", "buffer", {7}, Lifetime::volatile_)));
  ASSERT_TRUE(other.add(entry_of("wte", "weight_bf16", {5, 3}, Lifetime::derived)));
  ASSERT_TRUE(other.add(shard_of("wte", "exp_avg", {5, 3}, {0, 0}, {1, 3})));
  ASSERT_TRUE(other.add(entry_of("loss \xC3\xA9", "step", {})));
  ASSERT_TRUE(other.add_blob("sampler", 999));
  const SeatLayout a = example(), b = *other.build();
  EXPECT_NE(text_of(a), text_of(b));
  EXPECT_EQ(shared_text(a), shared_text(b));
  EXPECT_TRUE(first_differences(shared_text(a), shared_text(b)).empty());
}

TEST(Layout, DifferencesNameTensorsWithBothShapes) {
  LayoutBuilder one = builder_of_four(), two(4);
  ASSERT_TRUE(two.add_mesh({"dense", {{"dp", 4}}}));
  ASSERT_TRUE(one.add(entry_of("wte", "weight", {50304, 768})));
  ASSERT_TRUE(two.add(entry_of("wte", "weight", {50257, 768})));
  ASSERT_TRUE(one.add(entry_of("head", "weight", {2})));
  ASSERT_TRUE(two.add(entry_of("bias", "weight", {2}, Lifetime::volatile_)));
  const std::string a = shared_text(*one.build()), b = shared_text(*two.build());
  const auto differences = first_differences(a, b);
  ASSERT_EQ(differences.size(), 4u);
  EXPECT_EQ(differences[0], "mesh dense: dp 2 tp 2 here, dp 4 there");
  EXPECT_EQ(differences[1],
            "tensor wte (weight): [50304,768] float32 stable mesh 0 here, [50257,768] float32 stable mesh 0 there");
  EXPECT_EQ(differences[2], "tensor head (weight): [2] float32 stable mesh 0 here, missing there");
  EXPECT_EQ(differences[3], "tensor bias (weight): missing here, [2] float32 volatile mesh 0 there");
  EXPECT_EQ(first_differences(a, b, 2).size(), 2u);

  LayoutBuilder forward = builder_of_four(), backward = builder_of_four();
  for (const char* name : {"x", "y"}) ASSERT_TRUE(forward.add(entry_of(name, "weight", {2})));
  for (const char* name : {"y", "x"}) ASSERT_TRUE(backward.add(entry_of(name, "weight", {2})));
  EXPECT_EQ(first_differences(shared_text(*forward.build()), shared_text(*backward.build())),
            std::vector<std::string>{"the order of declaration differs"});
}

}  // namespace
}  // namespace pawl::job
