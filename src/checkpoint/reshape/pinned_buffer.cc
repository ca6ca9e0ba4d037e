#include "checkpoint/reshape/pinned_buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <memory>
#include <utility>

#include "base/text.h"

namespace pawl::checkpoint {
namespace {

constexpr std::uint64_t kHugePage = 2 << 20;  // a request whose buffer lies in one is one segment to the disk

}  // namespace

PinnedBuffer::~PinnedBuffer() {
  if (mapped_ != nullptr) ::munmap(mapped_, mapped_bytes_);
}

Status PinnedBuffer::map(std::uint64_t size_bytes) {
  if (mapped_ != nullptr) ::munmap(std::exchange(mapped_, nullptr), mapped_bytes_);
  // Not every kernel aligns it to a huge page by itself.
  mapped_bytes_ = size_bytes < kHugePage ? size_bytes : size_bytes + kHugePage;
  void* data =
      ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    Error error = system_error(text("reshape: ", size_bytes, " bytes of buffers"), errno);
    error.code = Code::full;
    return error;
  }
  mapped_ = data;
  std::size_t room = mapped_bytes_;
  if (size_bytes >= kHugePage) (void)std::align(kHugePage, size_bytes, data, room);
  (void)::madvise(data, size_bytes, MADV_HUGEPAGE);  // advice: without it, it's only slower
  data_ = static_cast<std::byte*>(data);
  return {};
}

}  // namespace pawl::checkpoint
