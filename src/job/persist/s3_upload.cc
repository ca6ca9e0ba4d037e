#include "job/persist/s3_upload.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/crc32c.h"
#include "tensor/element_type.h"

namespace pawl::job {
namespace {

using checkpoint::MemorySums;
using checkpoint::PartPlan;
using checkpoint::PieceSums;
using checkpoint::StorePiece;
using checkpoint::SummedRange;

constexpr std::uint64_t kPartsMax = 10000;  // of one object
constexpr std::uint64_t kMib = 1 << 20;

// What is summed at once.
struct Summed {
  std::size_t piece = 0;
  std::uint64_t at = 0;  // in the piece
  SummedRange range;     // without memory: a gathered one
};

// Bytes [at, at + size) of a piece as it is in the file, out of memory in which it has strides.
void gather(const StorePiece& piece, std::uint64_t at, std::uint64_t size, std::byte* to) {
  std::uint64_t run = size_bits(piece.type) / 8;
  std::uint32_t outer = piece.box.dimensions;  // dimensions of which neighbours don't lie together
  while (outer > 0 && (piece.box.size[outer - 1] == 1 || piece.stride_bytes[outer - 1] == run))
    run *= piece.box.size[--outer];
  while (size > 0) {
    const std::byte* from = piece.memory + at % run;
    std::uint64_t rest = at / run;
    for (std::uint32_t d = outer; d-- > 0;) {
      from += rest % piece.box.size[d] * piece.stride_bytes[d];
      rest /= piece.box.size[d];
    }
    const std::uint64_t count = std::min(size, run - at % run);
    std::memcpy(to, from, count);
    at += count;
    to += count;
    size -= count;
  }
}

class Upload {
 public:
  Upload(s3::S3Bucket& bucket, const std::string& key, const PartPlan& plan, const MemorySums* proof,
         PartProgress& progress, S3UploadOptions options)
      : bucket_(bucket), key_(key), plan_(plan), proof_(proof), progress_(progress), threads_(options.threads) {
    const std::uint64_t least = (plan.layout.file_bytes + kPartsMax - 1) / kPartsMax;
    chunk_bytes_ = std::max(options.chunk_bytes, (least + kMib - 1) / kMib * kMib);
    chunk_count_ = std::max<std::uint64_t>(1, (plan.layout.file_bytes + chunk_bytes_ - 1) / chunk_bytes_);
    call_.cancel = &progress.cancel;
  }

  Result<PieceSums> run() {
    if (chunk_count_ == 1) {
      std::vector<std::byte> buffer(plan_.layout.file_bytes);
      const std::uint64_t data = fill(0, buffer);
      PAWL_TRY(prove_all());
      if (progress_.pace) progress_.pace(buffer.size());
      PAWL_TRY(bucket_.put(key_, buffer, {}, call_));
      progress_.bytes += data;
      return joined();
    }
    PAWL_ASSIGN(upload_, bucket_.begin_upload(key_, call_));
    Status sent = send_all();
    if (sent) {
      const Result<std::string> completed = bucket_.complete_upload(upload_, parts_, call_);
      if (!completed) sent = completed.error();
    }
    if (sent) return joined();
    (void)bucket_.abort_upload(upload_, {});  // the error that counts is the first
    return std::move(sent).error();
  }

 private:
  Status send_all() {
    std::vector<std::thread> others;
    for (std::uint64_t i = 1; i < std::min<std::uint64_t>(threads_, chunk_count_); ++i)
      others.emplace_back([this] { send_chunks(); });
    send_chunks();
    for (std::thread& thread : others) thread.join();
    PAWL_TRY(std::move(failed_));
    return prove_all();
  }

  void send_chunks() {
    std::vector<std::byte> buffer(chunk_bytes_);
    for (std::uint64_t number = next_++; number < chunk_count_; number = next_++) {
      const std::uint64_t size = std::min(chunk_bytes_, plan_.layout.file_bytes - number * chunk_bytes_);
      const std::span<std::byte> bytes = std::span(buffer).first(size);
      const std::uint64_t data = fill(number * chunk_bytes_, bytes);
      if (progress_.pace) progress_.pace(size);
      Result<s3::UploadedPart> part =
          bucket_.upload_part(upload_, static_cast<std::uint32_t>(number + 1), bytes, call_);
      const std::lock_guard lock(mutex_);
      if (!part) {
        if (failed_) failed_ = std::move(part).error();
        next_ = chunk_count_;
        return;
      }
      parts_.push_back(std::move(*part));
      progress_.bytes += data;
    }
  }

  // What the file has from `begin` on. The answer: how much of it is pieces'.
  std::uint64_t fill(std::uint64_t begin, std::span<std::byte> to) {
    const checkpoint::SafetensorsLayout& layout = plan_.layout;
    const std::uint64_t end = begin + to.size();
    std::memset(to.data(), 0, to.size());
    if (begin < layout.header.size())
      std::memcpy(to.data(), layout.header.data() + begin, std::min<std::uint64_t>(end, layout.header.size()) - begin);
    std::vector<Summed> summed;
    std::uint64_t data = 0;
    auto next = std::ranges::partition_point(
        plan_.order, [&](std::uint32_t i) { return layout.offset_bytes[i] + layout.size_bytes[i] <= begin; });
    for (; next != plan_.order.end() && layout.offset_bytes[*next] < end; ++next) {
      const std::uint64_t first = std::max(begin, layout.offset_bytes[*next]);
      const std::uint64_t last = std::min(end, layout.offset_bytes[*next] + layout.size_bytes[*next]);
      copy(*next, first - layout.offset_bytes[*next], last - first, to.data() + (first - begin), summed);
      data += last - first;
    }
    const std::lock_guard lock(mutex_);
    summed_.insert(summed_.end(), summed.begin(), summed.end());
    return data;
  }

  void copy(std::size_t number, std::uint64_t at, std::uint64_t size, std::byte* to, std::vector<Summed>& summed) {
    const StorePiece& piece = *plan_.pieces[number];
    if (!checkpoint::is_dense(piece)) {
      gather(piece, at, size, to);
      summed.push_back({number, at, {nullptr, size, crc32c(std::span(to, size))}});
      return;
    }
    while (size > 0) {  // cut where the proof has its sums
      const std::byte* const from = piece.memory + at;
      std::uint64_t count = size;
      if (proof_ != nullptr)
        count = std::min<std::uint64_t>(count, reinterpret_cast<std::uintptr_t>(bucket_end(*proof_, from)) -
                                                   reinterpret_cast<std::uintptr_t>(from));
      summed.push_back({number, at, {from, count, copy_crc32c(to, from, count)}});
      at += count;
      to += count;
      size -= count;
    }
  }

  [[nodiscard]] Status prove_all() const {
    if (proof_ == nullptr) return {};
    std::vector<SummedRange> ranges;
    for (const Summed& one : summed_)
      if (one.range.memory != nullptr) ranges.push_back(one.range);
    return prove(*proof_, std::move(ranges));
  }

  PieceSums joined() {
    std::ranges::sort(summed_, {}, [](const Summed& one) { return std::pair(one.piece, one.at); });
    PieceSums sums(plan_.pieces.size());
    for (const Summed& one : summed_)
      sums[one.piece] =
          one.at == 0 ? one.range.crc32c : crc32c_combine(sums[one.piece], one.range.crc32c, one.range.size_bytes);
    return sums;
  }

  s3::S3Bucket& bucket_;
  const std::string& key_;
  const PartPlan& plan_;
  const MemorySums* const proof_;
  PartProgress& progress_;
  const std::uint32_t threads_;
  std::uint64_t chunk_bytes_ = 0;
  std::uint64_t chunk_count_ = 0;
  s3::S3Call call_;
  s3::MultipartUpload upload_;
  std::atomic<std::uint64_t> next_{0};
  std::mutex mutex_;  // of what follows, while parts are sent
  Status failed_;
  std::vector<s3::UploadedPart> parts_;
  std::vector<Summed> summed_;
};

}  // namespace

Result<PieceSums> upload_part_file(s3::S3Bucket& bucket, const std::string& key, const PartPlan& plan,
                                   const MemorySums* proof, PartProgress& progress, S3UploadOptions options) {
  return Upload(bucket, key, plan, proof, progress, options).run();
}

}  // namespace pawl::job
