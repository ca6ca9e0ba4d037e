#include "checkpoint/reshape/peer_writes.h"

#include <utility>

#include "base/memory_kernel.h"
#include "base/text.h"

namespace pawl::checkpoint {
namespace {

constexpr std::uint64_t kDenseMax = 4 << 20;
constexpr std::size_t kRangesMax = 16 << 10;
constexpr std::uint64_t kRunMin = 512;  // bytes: copying shorter ones together costs less than naming each

// Of a box: the bytes that lie together at both ends, and the dimensions before those.
struct Runs {
  std::uint64_t bytes = 0;
  std::uint32_t outer = 0;
};

Runs runs_of(const BoxCopy& copy) {
  Runs runs{size_bits(copy.to_type) / 8, copy.dimensions};
  for (; runs.outer > 0; --runs.outer) {
    const std::uint32_t d = runs.outer - 1;
    if (copy.size[d] != 1 && (copy.from_stride[d] != runs.bytes || copy.to_stride[d] != runs.bytes)) break;
    runs.bytes *= copy.size[d];
  }
  return runs;
}

bool is_plain(const BoxCopy& copy) {
  return copy.from_type == copy.to_type && copy.by_type == copy.to_type && !copy.swapped;
}

// body(from, to) for each run.
template <class Body>
void for_each_run(const BoxCopy& copy, std::uint32_t outer, Body body) {
  PerDimension at{};
  for (;;) {
    std::uint64_t from = 0, to = 0;
    for (std::uint32_t d = 0; d < outer; ++d) {
      from += at[d] * copy.from_stride[d];
      to += at[d] * copy.to_stride[d];
    }
    body(copy.from + from, copy.to + to);
    std::uint32_t d = outer;
    for (; d > 0 && ++at[d - 1] == copy.size[d - 1]; --d) at[d - 1] = 0;
    if (d == 0) return;
  }
}

}  // namespace

Result<std::uint64_t> PeerWrites::add(std::uint32_t peer, const BoxCopy& given) {
  if (peers_ == nullptr) return Error{Code::invalid, text("memory of peer ", peer, ", and no peers")};
  BoxCopy copy = given;
  std::uint64_t overflows = 0;
  Runs runs = runs_of(copy);
  if (!is_plain(copy) || runs.bytes < kRunMin) {
    const std::uint64_t unit = size_bits(copy.to_type) / 8;
    std::uint64_t bytes = unit;
    PerDimension stride{};
    for (std::uint32_t d = copy.dimensions; d-- > 0; bytes *= copy.size[d]) stride[d] = bytes;
    dense_.push_back(std::make_unique_for_overwrite<std::byte[]>(bytes));
    dense_bytes_ += bytes;
    copy.to = dense_.back().get();
    copy.to_stride = stride;
    overflows = copy_box(copy);
    copy = given;
    copy.from = dense_.back().get();
    copy.from_stride = stride;
    runs = runs_of(copy);
  }
  Writes& writes = writes_[peer];
  for_each_run(copy, runs.outer, [&](const std::byte* from, std::byte* to) {
    writes.from.push_back({const_cast<std::byte*>(from), runs.bytes});
    writes.to.push_back({to, runs.bytes});
    ++ranges_;
  });
  if (dense_bytes_ > kDenseMax || ranges_ > kRangesMax) PAWL_TRY(flush());
  return overflows;
}

Status PeerWrites::flush() {
  if (ranges_ == 0) return {};
  memory_fence();
  Status status;
  for (auto& [peer, writes] : writes_) {
    if (status && !writes.from.empty()) status = peers_->write(peer, writes.from, writes.to);
    writes.from.clear();
    writes.to.clear();
  }
  dense_.clear();
  dense_bytes_ = 0;
  ranges_ = 0;
  return status;
}

}  // namespace pawl::checkpoint
