// Requests: what a caller of pawl/checkpoint.h wants, as pieces of a plan and places of an execution.
//
// What always holds: every request was checked against the view before anything is planned: its box lies inside its
// tensor, its elements inside its memory. The target's holder is 0, its buffers are the requests' numbers; requests of
// one tensor come together in the plan, tensors in the view's order, so that a byte that several want is read once.
// Pure. Reads the view and the requests only during the calls, but their memory is written by whoever executes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/reshape/execute.h"
#include "checkpoint/reshape/plan.h"
#include "checkpoint/view/checkpoint_view.h"

namespace pawl::checkpoint {

struct ReadRequest {
  std::uint32_t tensor = 0;  // index in the view
  ElementType type = ElementType::float32;
  Box box;
  PerDimension stride{};  // in elements
  std::byte* memory = nullptr;
  std::uint64_t memory_bytes = 0;
  std::uint32_t peer = BufferPlace::kThisProcess;  // whose memory it is
};

// What is wanted, in the order of the plan; requests without elements are left out.
// Fails: `invalid`, naming up to five tensors, where a request leaves its tensor or its memory, has no memory, or may
// write an element twice.
[[nodiscard]] Result<std::vector<WantedPieces>> wanted_of(const CheckpointView& view,
                                                          std::span<const ReadRequest> requests);
[[nodiscard]] CopyTarget target_of(std::span<const ReadRequest> requests, PeerMemory* peers);

}  // namespace pawl::checkpoint
