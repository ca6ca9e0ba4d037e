// A job of four seats on a mesh of 2 x 2, with a state whose bytes tell what they are. For tests only.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "job/layout/seat_layout.h"

namespace pawl::job {

struct TestSeat {
  SeatLayout layout;
  std::string text;
  std::vector<std::byte> payload;
};

struct TestJob {
  static constexpr std::uint32_t world = 4;
  static constexpr std::string_view kValues = R"({"values":{"step":7},"aliases":{"tied":"equal everywhere"}})";

  // `rows`: of the largest tensor, four bytes each.
  explicit TestJob(std::uint64_t seed, std::uint64_t rows = 6) : seed_(seed) {
    for (std::uint32_t seat = 0; seat < world; ++seat) seats.push_back(seat_of(seat, rows));
  }
  [[nodiscard]] std::size_t stored_tensors() const { return 8; }

  std::vector<TestSeat> seats;

 private:
  TestSeat seat_of(std::uint32_t seat, std::uint64_t rows) const {
    std::mt19937_64 random(seed_);  // shapes are the same on all
    const std::uint32_t dp = seat / 2, tp = seat % 2;
    LayoutBuilder builder(world);
    EXPECT_TRUE(builder.add_mesh({"grid", {{"dp", 2}, {"tp", 2}}}));
    const auto size = [&random] { return 1 + random() % 5; };
    const auto add = [&](std::string name, std::string role, Shape shape, Box box, std::uint64_t equal,
                         TensorPlacement placement, Lifetime lifetime = Lifetime::stable,
                         std::vector<std::uint32_t> order = {}) {
      LayoutEntry entry;
      entry.name = std::move(name);
      entry.role = std::move(role);
      entry.shape = std::move(shape);
      entry.box = box;
      entry.mesh = 0;
      entry.placement = placement;
      entry.lifetime = lifetime;
      entry.equal_axes = equal;
      entry.order = std::move(order);
      const auto added = builder.add(entry);
      EXPECT_TRUE(added) << added.error().what;
    };
    const Shape all{rows, 1}, three{size(), size(), 2 * size()}, wide{size(), 2 * size()};
    add("equal everywhere", "weight", all, whole_box(all), 3, TensorPlacement::replicate);
    add("equal, permuted", "weight", three, whole_box(three), 3, TensorPlacement::replicate, Lifetime::stable,
        {2, 0, 1});
    Box shard = whole_box(wide);
    shard.size[1] /= 2;
    shard.begin[1] = tp * shard.size[1];
    add("cut by tp", "weight", wide, shard, 1, TensorPlacement::unique);
    Box own = whole_box({world, 3});
    own.size[0] = 1;
    own.begin[0] = seat;
    add("each its own", "exp_avg", {world, 3}, own, 0, TensorPlacement::unique);
    add("not declared equal", "step", {}, whole_box({}), 0, TensorPlacement::replicate);
    add("of none", "weight", {0, 4}, whole_box({0, 4}), 3, TensorPlacement::replicate);
    Box half = whole_box({2, 5});
    half.size[0] = 1;
    half.begin[0] = dp;
    add("cut by dp", "exp_avg", {2, 5}, half, 2, TensorPlacement::unique);
    add("running_mean", "buffer", {3}, whole_box({3}), 0, TensorPlacement::unique, Lifetime::volatile_);
    add("cache", "nonpersistent_buffer", {2}, whole_box({2}), 0, TensorPlacement::unique, Lifetime::volatile_);
    add("cast", "derived", {2}, whole_box({2}), 0, TensorPlacement::replicate, Lifetime::derived);
    EXPECT_TRUE(builder.add_blob("random numbers", 40));
    if (seat == 0) {
      EXPECT_TRUE(builder.add_blob(std::string(kValuesBlob), 100));
    }
    TestSeat made;
    Result<SeatLayout> layout = builder.build();
    EXPECT_TRUE(layout) << layout.error().what;
    made.layout = *layout;
    made.text = text_of(made.layout);
    made.payload.resize(made.layout.payload_bytes);
    for (const LayoutEntry& entry : made.layout.entries) fill(made, entry, seat);
    return made;
  }

  // A stable element's bytes follow from its tensor and its place in that; others from the seat as well.
  void fill(TestSeat& seat, const LayoutEntry& entry, std::uint32_t number) const {
    if (entry.payload_offset == kNotCaptured) return;
    std::byte* at = seat.payload.data() + entry.payload_offset;
    if (entry.mesh == kNoMesh) {
      const std::string text = entry.name == kValuesBlob ? std::string(kValues) : "blob of " + std::to_string(number);
      const std::uint64_t size = text.size();
      std::memcpy(at, &size, sizeof size);
      std::memcpy(at + sizeof size, text.data(), text.size());
      return;
    }
    std::vector<std::uint32_t> order = entry.order;
    for (std::uint32_t d = 0; entry.order.empty() && d < entry.box.dimensions; ++d) order.push_back(d);
    const PerDimension in_tensor = dense_stride(whole_box(entry.shape));
    for (std::uint64_t i = 0; i < volume(entry.box); ++i) {  // in the order of the memory
      std::uint64_t rest = i, place = 0;
      for (std::size_t k = order.size(); k-- > 0; rest /= entry.box.size[order[k]])
        place += (entry.box.begin[order[k]] + rest % entry.box.size[order[k]]) * in_tensor[order[k]];
      std::uint64_t word = (digest_of(entry.name) ^ (place + seed_) * 0x9E3779B97F4A7C15u);
      if (entry.lifetime == Lifetime::volatile_) word += number;
      const auto value = static_cast<std::uint32_t>(word >> 17);
      std::memcpy(at + i * sizeof value, &value, sizeof value);
    }
  }

  std::uint64_t seed_;
};

}  // namespace pawl::job
