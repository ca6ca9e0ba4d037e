#include "job/trainer/declared.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/text.h"

namespace pawl::job {
namespace {

Error too_late() {
  return Error{Code::invalid, "the layout is sealed: declarations come before pawl_layout_seal"};
}

}  // namespace

Result<std::uint32_t> Declared::add_mesh(Mesh mesh) {
  if (sealed()) return too_late();
  return builder_.add_mesh(std::move(mesh));
}

Result<std::uint32_t> Declared::add_tensor(LayoutEntry entry, void* data) {
  if (sealed()) return too_late();
  const Lifetime lifetime = entry.lifetime;
  if (data == nullptr && lifetime != Lifetime::derived && volume(entry.box) != 0) {
    return Error{Code::invalid, text("tensor ", entry.name, " (", entry.role, "): data is NULL")};
  }
  const std::string name = text(entry.name, " (", entry.role, ")");
  Result<bool> on_gpu = find_gpu(data);
  if (!on_gpu) return std::move(on_gpu).error().within(text("tensor ", name));
  Result<std::uint32_t> index = builder_.add(std::move(entry));
  if (index) places_.push_back({static_cast<std::byte*>(data), {}, *on_gpu});
  return index;
}

// Whether it lies on the GPU. The first tensor on one says which it is.
Result<bool> Declared::find_gpu(const void* data) {
  const std::optional<int> number = Gpu::number_at(data);
  if (!number) return false;
  if (gpu_ == nullptr && sealed())
    return Error{Code::invalid, text("it lies on GPU ", *number, ", and no tensor did when the layout was sealed")};
  const bool some = std::any_of(places_.begin(), places_.end(), [](const Place& each) { return each.on_gpu; });
  if (gpu_ == nullptr || (!some && !sealed() && gpu_->number() != *number)) {
    PAWL_ASSIGN(gpu_, Gpu::open(*number));
    if (stream_) gpu_->use_stream(*stream_);
  }
  if (gpu_->number() == *number && !gpu_->is_of_its_context(data))
    return Error{Code::invalid, text("it lies in another CUDA context than the primary one of GPU ", *number,
                                     ", which can't be captured: use cuDevicePrimaryCtxRetain, as the runtime does")};
  if (gpu_->number() == *number) return true;
  return Error{Code::invalid, text("it lies on GPU ", *number, ", and others on GPU ", gpu_->number(),
                                   ": a trainer's state lies on one GPU")};
}

Result<std::uint32_t> Declared::add_blob(std::string name, std::uint64_t capacity, BlobCallbacks callbacks) {
  if (sealed()) return too_late();
  PAWL_ASSIGN(const std::uint32_t index, builder_.add_blob(std::move(name), capacity));
  places_.push_back({nullptr, callbacks, false});
  return index;
}

Status Declared::rebind(std::uint32_t index, void* data) {
  if (index >= places_.size() || places_[index].blob.save != nullptr) {
    return Error{Code::invalid, text("no tensor has the id ", index)};
  }
  if (data == nullptr && places_[index].data != nullptr) return Error{Code::invalid, "data is NULL"};
  PAWL_ASSIGN(const bool on_gpu, find_gpu(data));
  places_[index].data = static_cast<std::byte*>(data);
  places_[index].on_gpu = on_gpu;
  if (sealed() && !is_staged(index)) {
    bases_[index] = places_[index].data;
    if (gpu_ != nullptr) gpu_->set_holds(index, on_gpu);
  }
  return {};
}

bool Declared::is_staged(std::uint32_t index) const {
  return layout_->entries[index].lifetime == Lifetime::volatile_;
}

void Declared::use_stream(CudaStream stream) {
  stream_ = stream;
  if (gpu_ != nullptr) gpu_->use_stream(stream);
}

Status Declared::seal(std::uint32_t bucket_bytes) {
  if (sealed()) return too_late();
  PAWL_ASSIGN(SeatLayout layout, builder_.build());
  lay_out(std::move(layout), bucket_bytes);
  return {};
}

Status Declared::take_layout(SeatLayout held, std::uint32_t bucket_bytes) {
  PAWL_ENSURE(sealed() && have_same_state(held, *layout_), "the arena is of another layout");
  lay_out(std::move(held), bucket_bytes);
  return {};
}

void Declared::lay_out(SeatLayout layout, std::uint32_t bucket_bytes) {
  layout_ = std::move(layout);
  text_ = text_of(*layout_);
  plan_ = CopyPlan(*layout_, bucket_bytes);
  staging_.assign(layout_->payload_bytes - layout_->stable_bytes, std::byte{0});
  bases_.assign(places_.size(), nullptr);
  for (std::uint32_t i = 0; i < places_.size(); ++i) {
    const LayoutEntry& entry = layout_->entries[i];
    if (entry.lifetime == Lifetime::stable) bases_[i] = places_[i].data;
    if (is_staged(i)) bases_[i] = staging_.data() + (entry.payload_offset - layout_->stable_bytes);
    if (gpu_ != nullptr) gpu_->set_holds(i, places_[i].on_gpu && entry.lifetime == Lifetime::stable);
  }
  if (gpu_ != nullptr) gpu_->set_bucket_bytes(bucket_bytes);
}

std::vector<Gpu::Copy> Declared::volatile_on_gpu() const {
  std::vector<Gpu::Copy> copies;
  for (std::uint32_t i = 0; i < places_.size(); ++i) {
    if (is_staged(i) && places_[i].on_gpu) copies.push_back({places_[i].data, bases_[i], layout_->entries[i].bytes});
  }
  return copies;
}

Status Declared::stage() {
  Status first_failure;
  if (gpu_ != nullptr) first_failure = gpu_->copy_out(volatile_on_gpu());
  for (std::uint32_t i = 0; i < places_.size(); ++i) {
    if (!is_staged(i)) continue;
    if (places_[i].blob.save != nullptr) {
      if (Status saved = save_blob(i, bases_[i]); !saved && first_failure) first_failure = std::move(saved);
    } else if (layout_->entries[i].bytes > 0 && !places_[i].on_gpu) {
      std::memcpy(bases_[i], places_[i].data, layout_->entries[i].bytes);
    }
  }
  return first_failure;
}

Status Declared::unstage() {
  if (gpu_ != nullptr) PAWL_TRY(gpu_->copy_in(volatile_on_gpu()));
  for (std::uint32_t i = 0; i < places_.size(); ++i) {
    if (!is_staged(i)) continue;
    if (places_[i].blob.save != nullptr) {
      PAWL_TRY(load_blob(i, bases_[i]));
    } else if (layout_->entries[i].bytes > 0 && !places_[i].on_gpu) {
      std::memcpy(places_[i].data, bases_[i], layout_->entries[i].bytes);
    }
  }
  return {};
}

Status Declared::save_blob(std::uint32_t index, std::byte* to) const {
  const LayoutEntry& entry = layout_->entries[index];
  const BlobCallbacks& blob = places_[index].blob;
  const std::uint64_t capacity = entry.bytes - kBlobHeaderBytes;
  std::size_t size = 0;
  const int failed = blob.save(blob.context, to + kBlobHeaderBytes, capacity, &size);
  if (failed != 0) return Error{Code::invalid, text("blob ", entry.name, ": save answered ", failed)};
  if (size > capacity) return Error{Code::invalid, text("blob ", entry.name, ": ", size, " bytes of ", capacity)};
  std::memset(to + kBlobHeaderBytes + size, 0, capacity - size);
  const std::uint64_t counted = size;
  std::memcpy(to, &counted, sizeof counted);
  return {};
}

Status Declared::load_blob(std::uint32_t index, const std::byte* from) const {
  const LayoutEntry& entry = layout_->entries[index];
  const BlobCallbacks& blob = places_[index].blob;
  std::uint64_t size = 0;
  std::memcpy(&size, from, sizeof size);
  if (size > entry.bytes - kBlobHeaderBytes)
    return Error{Code::corrupt, text("blob ", entry.name, ": ", size, " bytes")};
  const int failed = blob.load(blob.context, from + kBlobHeaderBytes, size);
  if (failed != 0)
    return Error{Code::invalid, text("blob ", entry.name, ": load answered ", failed, " to ", size, " bytes")};
  return {};
}

}  // namespace pawl::job
