// Portions: the tensors of a view in memory, a part at a time: what diff compares and verify looks through.
//
// Small tensors come several at once, large ones cut along their longest dimension; each part is dense, row-major and
// little-endian, whatever the files hold: means are taken, encoded files decoded (checkpoint/reshape/execute.h). Bounded memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "checkpoint/reshape/execute.h"
#include "checkpoint/reshape/file_source.h"
#include "checkpoint/view/checkpoint_view.h"
#include "tensor/placement.h"

namespace pawl::checkpoint {

struct PortionTensor {
  ElementType type = ElementType::float32;  // the wider one, where two checkpoints are read alike
  Shape shape;
};

// What is in memory at once: some tensors whole (parts empty), or a part of one.
struct Portion {
  std::vector<std::uint32_t> tensors;  // indices in what plan_portions was given
  std::uint32_t dimension = 0;         // of the one that is cut
  std::vector<std::uint64_t> parts;    // its spans along it; the same for all portions of the tensor
  std::uint32_t part = 0;              // which of them
};

// Pure. No portion has more than `bytes_max`, but where a single index along the longest dimension, or a packed tensor,
// is larger. Tensors without elements are in none.
[[nodiscard]] std::vector<Portion> plan_portions(std::span<const PortionTensor> tensors, std::uint64_t bytes_max);

// The elements of a tensor that are in the portion: all, or a part. In the tensor's own index space.
[[nodiscard]] Box box_of(const Portion& portion, const Shape& shape);
// The row-major index in the tensor of element `i` of that box, which is row-major itself.
[[nodiscard]] std::uint64_t element_of(const Box& box, const Shape& shape, std::uint64_t i);

class PortionReader {
 public:
  // The view outlives this.
  explicit PortionReader(const CheckpointView& view, FileSourceOptions options = {});

  // Into buffers[i]: the portion's i-th tensor, which is tensor view_index[portion.tensors[i]] of the view.
  // Fails as planning and execute() do: `not_found` where no piece holds a region; `corrupt`; `cancelled`; `io`.
  [[nodiscard]] Status read(const Portion& portion, std::span<const std::uint32_t> view_index,
                            std::vector<std::vector<std::byte>>& buffers, const ExecuteOptions& options) const;

 private:
  const CheckpointView& view_;
  ReshapeSource source_;
  CopySource places_;
};

}  // namespace pawl::checkpoint
