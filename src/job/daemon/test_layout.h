// For unit tests of the daemon: what a trainer's script declares.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "base/digest.h"
#include "job/layout/seat_layout.h"
#include "job/transport/messages.h"

namespace pawl::job {

// One tensor, which all ranks have, and a blob if it has a capacity.
inline SeatLayout test_layout(std::uint64_t rows, std::uint64_t capacity = 0, std::uint32_t world = 2) {
  LayoutBuilder builder(world);
  EXPECT_TRUE(builder.add_mesh({"dense", {{"dp", world}}}));
  LayoutEntry entry;
  entry.name = "wte";
  entry.role = "weight";
  entry.shape = {rows, 3};
  entry.box = whole_box(entry.shape);
  entry.mesh = 0;
  EXPECT_TRUE(builder.add(entry));
  if (capacity > 0) {
    EXPECT_TRUE(builder.add_blob("sampler", capacity));
  }
  return *builder.build();
}

inline LayoutMessage declaration_of(const SeatLayout& layout) {
  LayoutMessage message;
  message.payload_bytes = layout.payload_bytes;
  message.stable_bytes = layout.stable_bytes;
  message.bucket_bytes = 4096;
  message.layout = text_of(layout);
  message.layout_digest = digest_of(message.layout);
  return message;
}

}  // namespace pawl::job
