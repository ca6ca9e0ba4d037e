// A job of four seats on a mesh of 2 x 2, with a state whose bytes tell what they are. For tests only.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
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

inline constexpr std::string_view kTestValues = R"({"values":{"step":7},"aliases":{"tied":"equal everywhere"}})";

// A stable element's bytes follow from its tensor and its place in that; others from the seat as well.
inline void fill(TestSeat& seat, const LayoutEntry& entry, std::uint32_t number, std::uint64_t seed) {
  if (entry.payload_offset == kNotCaptured) return;
  std::byte* at = seat.payload.data() + entry.payload_offset;
  if (entry.mesh == kNoMesh) {
    const std::string text = entry.name == kValuesBlob ? std::string(kTestValues) : "blob of " + std::to_string(number);
    const std::uint64_t size = text.size();
    std::memcpy(at, &size, sizeof size);
    std::memcpy(at + sizeof size, text.data(), text.size());
    return;
  }
  std::vector<std::uint32_t> order = entry.order;
  for (std::uint32_t d = 0; entry.order.empty() && d < entry.box.dimensions; ++d) order.push_back(d);
  const PerDimension in_tensor = dense_stride(whole_box(entry.shape));
  const std::uint64_t unit = size_bits(entry.dtype) / 8;
  for (std::uint64_t i = 0; i < volume(entry.box); ++i) {  // in the order of the memory
    std::uint64_t rest = i, place = 0;
    for (std::size_t k = order.size(); k-- > 0; rest /= entry.box.size[order[k]])
      place += (entry.box.begin[order[k]] + rest % entry.box.size[order[k]]) * in_tensor[order[k]];
    std::uint64_t word = (digest_of(entry.name) ^ (place + seed) * 0x9E3779B97F4A7C15u);
    if (entry.lifetime == Lifetime::volatile_) word += number;
    const std::uint64_t value = word >> 17;
    std::memcpy(at + i * unit, &value, std::min<std::uint64_t>(unit, sizeof value));
  }
}

struct TestJob {
  static constexpr std::uint32_t world = 4;

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
    for (const LayoutEntry& entry : made.layout.entries) fill(made, entry, seat, seed_);
    return made;
  }

  std::uint64_t seed_;
};

// Of one to three axes, with tensors of all sorts: cut or not, alike along any of the axes, said to be so or not.
struct RandomJob {
  // `large`: some are worth to be cut among those that write them.
  RandomJob(std::uint64_t seed, bool large) : large_(large), random_(seed) {
    for (std::uint64_t i = 0, count = 1 + random_() % 3; i < count; ++i)
      mesh.axes.push_back({"axis" + std::to_string(i), 1 + random_() % 3});
    world = 1;
    for (const Mesh::Axis& axis : mesh.axes) world *= static_cast<std::uint32_t>(axis.size);
    for (std::uint64_t i = 0, count = 1 + random_() % 12; i < count; ++i) drawn_.push_back(draw(i));
    for (std::uint32_t seat = 0; seat < world; ++seat) seats.push_back(seat_of(seat, seed));
  }

  Mesh mesh{"grid", {}};
  std::uint32_t world;
  std::vector<TestSeat> seats;

 private:
  struct Drawn {
    LayoutEntry entry;
    std::uint32_t axis = ~0u;  // along which it is cut
    std::uint32_t dimension = 0;
  };

  Drawn draw(std::uint64_t number) {
    constexpr std::array<ElementType, 4> kTypes{ElementType::float32, ElementType::uint8, ElementType::bfloat16,
                                                ElementType::int64};
    Drawn drawn;
    LayoutEntry& entry = drawn.entry;
    entry.name = "tensor" + std::to_string(number);
    entry.role = random_() % 3 == 0 ? "exp_avg" : "weight";
    entry.dtype = kTypes[random_() % kTypes.size()];
    entry.mesh = 0;
    for (std::uint64_t d = 0, count = random_() % 4; d < count; ++d) entry.shape.push_back(random_() % 6);
    if (large_ && !entry.shape.empty() && random_() % 2 == 0) {
      entry.dtype = ElementType::int64;
      entry.shape = {random_() % 2 + 2, (1u << 17) + random_() % 9};
    }
    entry.equal_axes = random_() % (1u << mesh.axes.size());
    if (entry.shape.size() > 1 && random_() % 4 == 0) {
      for (auto d = static_cast<std::uint32_t>(entry.shape.size()); d-- > 0;) entry.order.push_back(d);
    }
    if (random_() % 6 == 0) {
      entry.lifetime = Lifetime::volatile_;
      entry.equal_axes = 0;
    }
    if (entry.shape.empty() || random_() % 2 == 0) return drawn;
    entry.placement = TensorPlacement::unique;
    drawn.axis = static_cast<std::uint32_t>(random_() % mesh.axes.size());
    drawn.dimension = static_cast<std::uint32_t>(random_() % entry.shape.size());
    entry.equal_axes &= ~(std::uint64_t{1} << drawn.axis);
    return drawn;
  }

  TestSeat seat_of(std::uint32_t seat, std::uint64_t seed) const {
    LayoutBuilder builder(world);
    EXPECT_TRUE(builder.add_mesh(mesh));
    const std::vector<std::uint64_t> coordinates = coordinates_of(mesh, seat);
    for (Drawn drawn : drawn_) {
      Box box = whole_box(drawn.entry.shape);
      if (drawn.entry.placement == TensorPlacement::unique) {  // parts need not be equally large, and may be of nothing
        const std::uint64_t size = drawn.entry.shape[drawn.dimension], parts = mesh.axes[drawn.axis].size;
        box.begin[drawn.dimension] = size * coordinates[drawn.axis] / parts;
        box.size[drawn.dimension] = size * (coordinates[drawn.axis] + 1) / parts - box.begin[drawn.dimension];
      }
      drawn.entry.box = box;
      const auto added = builder.add(drawn.entry);
      EXPECT_TRUE(added) << added.error().what;
    }
    EXPECT_TRUE(builder.add_blob("random numbers", 40));
    TestSeat made;
    Result<SeatLayout> layout = builder.build();
    EXPECT_TRUE(layout) << layout.error().what;
    made.layout = *layout;
    made.text = text_of(made.layout);
    made.payload.resize(made.layout.payload_bytes);
    for (const LayoutEntry& entry : made.layout.entries) fill(made, entry, seat, seed);
    return made;
  }

  bool large_;
  std::mt19937_64 random_;
  std::vector<Drawn> drawn_;
};

}  // namespace pawl::job
