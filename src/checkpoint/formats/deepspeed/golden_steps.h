// For tests: the steps that a view of a job of DeepSpeed's has, against golden.json.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "checkpoint/formats/golden_check.h"

namespace pawl::checkpoint::fixtures {

// Each parameter that is trained has its step, and it is the job's.
inline void expect_golden_steps(const CheckpointView& view, const json& golden) {
  Contents contents(view);
  std::size_t masters = 0, steps = 0;
  for (const StoredTensor& tensor : view.tensors) {
    masters += tensor.role == "master" ? 1 : 0;
    if (tensor.role != "step") continue;
    ++steps;
    EXPECT_EQ(tensor.type, ElementType::float32);
    float step = 0;
    const std::string bytes = whole_of(tensor, contents);
    ASSERT_EQ(bytes.size(), sizeof step);
    std::memcpy(&step, bytes.data(), sizeof step);
    EXPECT_EQ(step, golden["global_steps"].get<float>() - golden["skipped_steps"].get<float>()) << tensor.name;
  }
  EXPECT_EQ(steps, masters);
}

}  // namespace pawl::checkpoint::fixtures
