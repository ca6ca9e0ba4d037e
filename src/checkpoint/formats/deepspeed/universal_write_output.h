// UniversalOutput: a universal folder while it is planned: its files so far, and the view that they are filled from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/containers/torch_writer.h"
#include "checkpoint/output/output_plan.h"
#include "checkpoint/view/checkpoint_view.h"

namespace pawl::checkpoint {

// In a model_states file: of which file it is the twin.
inline constexpr const char* kTwinKey = "pawl_twin_of";

struct UniversalOutput {
  OutputPlan plan;
  CheckpointView view;  // what the plan's indices mean: the given one and, as bytes, the files that are carried over
};

namespace deepspeed {

inline constexpr const char* kUniversalWriterVersion = "0.19.8";  // of DeepSpeed, whose form the files have

// Record `record` of a file becomes tensor `tensor` of the view.
struct RecordTensor {
  std::size_t record = 0;
  std::uint32_t tensor = 0;
  std::string key;  // for people
  ElementType type = ElementType::float32;
};

// What was written becomes the plan's next file. Records that `tensors` doesn't name have their content already.
// Fails: as TorchWriter::finish.
[[nodiscard]] Status add_torch_file(const std::string& name, TorchWriter writer,
                                    const std::vector<RecordTensor>& tensors, UniversalOutput& out);

}  // namespace deepspeed
}  // namespace pawl::checkpoint
