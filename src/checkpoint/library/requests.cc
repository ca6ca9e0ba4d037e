#include "checkpoint/library/requests.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "base/first_few.h"
#include "base/text.h"

namespace pawl::checkpoint {
namespace {

// Bytes from the box's first element to its last, both included; nothing where that passes 2^63.
std::optional<std::uint64_t> span_of(const ReadRequest& request) {
  if (size_bits(request.type) % 8 != 0) return size_bytes(request.type, volume(request.box));
  constexpr std::uint64_t kMax = std::numeric_limits<std::int64_t>::max();
  std::uint64_t last = 0;
  for (std::uint32_t d = 0; d < request.box.dimensions; ++d) {
    std::uint64_t step = 0;
    if (__builtin_mul_overflow(request.box.size[d] - 1, request.stride[d], &step)) return std::nullopt;
    if (__builtin_add_overflow(last, step, &last)) return std::nullopt;
  }
  if (last >= kMax / 16) return std::nullopt;
  return size_bytes(request.type, last + 1);
}

// By the strides alone: each dimension's step is beyond all that smaller ones reach.
bool may_write_twice(const ReadRequest& request) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> steps;  // stride, extent
  for (std::uint32_t d = 0; d < request.box.dimensions; ++d)
    if (request.box.size[d] > 1) steps.emplace_back(request.stride[d], request.box.size[d]);
  std::ranges::sort(steps);
  std::uint64_t reach = 0;
  for (const auto& [stride, extent] : steps) {
    if (stride <= reach) return true;
    reach += stride * (extent - 1);
  }
  return false;
}

std::string fault_of(const CheckpointView& view, const ReadRequest& request) {
  const StoredTensor& tensor = view.tensors[request.tensor];
  if (request.box.dimensions != tensor.shape.size())
    return text(text_of(tensor.shape), " held, a box of ", request.box.dimensions, " dimensions wanted");
  if (const Status inside = check_inside(request.box, tensor.shape); !inside) return inside.error().what;
  if (volume(request.box) == 0) return {};
  if (request.memory == nullptr) return "no memory to read it into";
  const std::optional<std::uint64_t> span = span_of(request);
  if (!span || *span > request.memory_bytes)
    return text("the box reaches ", span ? text(*span, " bytes") : "further than memory can", ", there are ",
                request.memory_bytes);
  if (may_write_twice(request)) return "its strides put two elements at one place";
  return {};
}

}  // namespace

Result<std::vector<WantedPieces>> wanted_of(const CheckpointView& view, std::span<const ReadRequest> requests) {
  FirstFew faults;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (requests[i].tensor >= view.tensors.size())
      return Error{Code::invalid,
                   text("request ", i, ": tensor ", requests[i].tensor, ", but there are ", view.tensors.size())};
    const StoredTensor& tensor = view.tensors[requests[i].tensor];
    if (const std::string why = fault_of(view, requests[i]); !why.empty())
      faults.add(text(label_of(tensor.name, tensor.role), ": ", why));
  }
  if (faults.any()) return Error{Code::invalid, faults.sentence()};
  std::vector<std::uint32_t> order(requests.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::stable_sort(order, {}, [&](std::uint32_t i) { return std::pair(requests[i].tensor, requests[i].type); });
  std::vector<WantedPieces> wanted;
  for (const std::uint32_t i : order) {
    const ReadRequest& request = requests[i];
    if (volume(request.box) == 0) continue;
    if (wanted.empty() || wanted.back().source_tensor != request.tensor || wanted.back().dtype != request.type)
      wanted.push_back({request.tensor, request.type, {}});
    wanted.back().pieces.push_back({request.tensor, 0, i, 0, 0, request.box, 0, request.stride});
  }
  return wanted;
}

CopyTarget target_of(std::span<const ReadRequest> requests, PeerMemory* peers) {
  CopyTarget target;
  target.peers = peers;
  target.place = [requests](std::uint32_t, std::uint32_t buffer) -> BufferPlace {
    const ReadRequest& request = requests[buffer];
    return {.memory = request.memory, .size_bytes = request.memory_bytes, .peer = request.peer};
  };
  return target;
}

}  // namespace pawl::checkpoint
