// Declared: the state that the trainer told us of, where it lies, and the staging copy of what is volatile.
//
// Tensors are the trainer's memory, of the host or of one GPU, read by the copy threads between window_open and fence,
// written by restore.
// Volatile tensors and blobs are copied by the training thread into the staging buffer; capture and restore go by way
// of that. Not thread-safe: the training thread's, except that copy threads read bases() between start and end of a
// capture.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "job/layout/seat_layout.h"
#include "job/trainer/copy_plan.h"
#include "job/trainer/gpu.h"
#include "pawl/pawl.h"

namespace pawl::job {

struct BlobCallbacks {
  pawl_blob_save save = nullptr;
  pawl_blob_load load = nullptr;
  void* context = nullptr;
};

class Declared {
 public:
  explicit Declared(std::uint32_t world) : builder_(world) {}

  // Before seal. Each returns the index. Fails: `invalid` with the reason; `io` if a GPU refuses.
  [[nodiscard]] Result<std::uint32_t> add_mesh(Mesh mesh);
  [[nodiscard]] Result<std::uint32_t> add_tensor(LayoutEntry entry, void* data);
  [[nodiscard]] Result<std::uint32_t> add_blob(std::string name, std::uint64_t capacity, BlobCallbacks callbacks);
  // Fails: `invalid` when no such tensor, or it lies on another GPU than others. Not while a capture runs.
  [[nodiscard]] Status rebind(std::uint32_t index, void* data);

  // In which the trainer writes what lies on the GPU (Gpu::use_stream); also before any tensor is known to lie there.
  void use_stream(CudaStream stream);

  // Lays it out; no more declarations. Fails: `invalid`.
  [[nodiscard]] Status seal(std::uint32_t bucket_bytes);
  [[nodiscard]] bool sealed() const { return layout_.has_value(); }
  // A sealed one becomes `held`, the layout of a snapshot: its blobs get other capacities, and other entries may be equal on
  // other seats. Not while a capture runs. Fails: `broken` if the two differ in anything else.
  [[nodiscard]] Status take_layout(SeatLayout held, std::uint32_t bucket_bytes);
  // Of a sealed one.
  [[nodiscard]] const SeatLayout& layout() const { return *layout_; }
  [[nodiscard]] const std::string& layout_text() const { return text_; }
  [[nodiscard]] const CopyPlan& plan() const { return plan_; }
  // Where each captured entry's bytes are taken from, and put to by a restore.
  [[nodiscard]] EntryBases bases() const { return bases_; }
  // Which of them lie on a GPU; nullptr: none ever did.
  [[nodiscard]] Gpu* gpu() const { return gpu_.get(); }

  // Volatile state as it is now, into the staging buffer. Waits for the GPU, if some of it lies there. Fails: `invalid`
  // where a blob's save declines; `io` where the GPU fails.
  [[nodiscard]] Status stage();
  // From the staging buffer, which a restore has filled, to where it lives. Fails: `invalid` where a blob's load
  // declines.
  [[nodiscard]] Status unstage();

 private:
  struct Place {
    std::byte* data = nullptr;  // the trainer's; nullptr: a blob's
    BlobCallbacks blob;
    bool on_gpu = false;
  };
  void lay_out(SeatLayout layout, std::uint32_t bucket_bytes);
  [[nodiscard]] Result<bool> find_gpu(const void* data);
  [[nodiscard]] std::vector<Gpu::Copy> volatile_on_gpu() const;
  [[nodiscard]] bool is_staged(std::uint32_t index) const;
  [[nodiscard]] Status save_blob(std::uint32_t index, std::byte* to) const;
  [[nodiscard]] Status load_blob(std::uint32_t index, const std::byte* from) const;

  LayoutBuilder builder_;
  std::vector<Place> places_;  // by index of the entry
  std::optional<SeatLayout> layout_;
  std::string text_;
  CopyPlan plan_;
  std::vector<std::byte> staging_;  // the payload from stable_bytes on
  std::vector<std::byte*> bases_;
  std::optional<CudaStream> stream_;
  std::unique_ptr<Gpu> gpu_;
};

}  // namespace pawl::job
