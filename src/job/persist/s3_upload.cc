#include "job/persist/s3_upload.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "checkpoint/store/part_chunks.h"

namespace pawl::job {
namespace {

using checkpoint::DensePiece;
using checkpoint::MemorySums;
using checkpoint::PartPlan;
using checkpoint::PieceSums;
using checkpoint::StorePiece;
using checkpoint::SummedPiece;
using checkpoint::WrittenPieces;

constexpr std::uint64_t kPartsMax = 10000;  // of one object
constexpr std::uint64_t kMib = 1 << 20;

class Upload {
 public:
  Upload(s3::S3Bucket& bucket, const std::string& key, const PartPlan& plan, const MemorySums* proof,
         PartProgress& progress, S3UploadOptions options)
      : bucket_(bucket), key_(key), plan_(plan), proof_(proof), progress_(progress), threads_(options.threads) {
    const std::uint64_t least = (plan.layout.file_bytes + kPartsMax - 1) / kPartsMax;
    chunk_bytes_ = std::max(options.chunk_bytes, (least + kMib - 1) / kMib * kMib);
    chunk_count_ = std::max<std::uint64_t>(1, (plan.layout.file_bytes + chunk_bytes_ - 1) / chunk_bytes_);
    call_.cancel = &progress.cancel;
    for (const std::uint32_t i : plan.order) {
      const StorePiece& piece = *plan.pieces[i];
      pieces_.push_back({piece.memory, plan.layout.offset_bytes[i], plan.layout.size_bytes[i],
                         checkpoint::is_dense(piece) ? nullptr : &piece});
    }
  }

  Result<PieceSums> run() {
    if (chunk_count_ == 1) {
      std::vector<std::byte> buffer(plan_.layout.file_bytes);
      const std::uint64_t data = fill(0, buffer);
      PAWL_TRY(settle_sums());
      if (progress_.pace) progress_.pace(buffer.size());
      PAWL_TRY(bucket_.put(key_, buffer, {}, call_));
      progress_.bytes += data;
      return std::move(sums_);
    }
    PAWL_ASSIGN(upload_, bucket_.begin_upload(key_, call_));
    Status sent = send_all();
    if (sent) {
      const Result<std::string> completed = bucket_.complete_upload(upload_, parts_, call_);
      if (!completed) sent = completed.error();
    }
    if (sent) return std::move(sums_);
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
    return settle_sums();
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
    std::vector<SummedPiece> summed;
    const std::uint64_t data = fill_chunk({plan_.layout.header, pieces_, proof_}, begin, to, summed).value_or(0);
    const std::lock_guard lock(mutex_);
    summed_.insert(summed_.end(), summed.begin(), summed.end());
    return data;
  }

  // The sums of the plan's pieces, once all is read, and proven.
  Status settle_sums() {
    WrittenPieces written = joined_pieces(std::move(summed_), pieces_.size());
    sums_.resize(pieces_.size());
    for (std::size_t k = 0; k < pieces_.size(); ++k) sums_[plan_.order[k]] = written.crc32c[k];
    return proof_ == nullptr ? Status() : prove(*proof_, std::move(written.ranges));
  }

  s3::S3Bucket& bucket_;
  const std::string& key_;
  const PartPlan& plan_;
  std::vector<DensePiece> pieces_;  // of the plan, in order of the file
  const MemorySums* const proof_;
  PartProgress& progress_;
  const std::uint32_t threads_;
  PieceSums sums_;  // of plan_.pieces
  std::uint64_t chunk_bytes_ = 0;
  std::uint64_t chunk_count_ = 0;
  s3::S3Call call_;
  s3::MultipartUpload upload_;
  std::atomic<std::uint64_t> next_{0};
  std::mutex mutex_;  // of what follows, while parts are sent
  Status failed_;
  std::vector<s3::UploadedPart> parts_;
  std::vector<SummedPiece> summed_;
};

}  // namespace

Result<PieceSums> upload_part_file(s3::S3Bucket& bucket, const std::string& key, const PartPlan& plan,
                                   const MemorySums* proof, PartProgress& progress, S3UploadOptions options) {
  return Upload(bucket, key, plan, proof, progress, options).run();
}

}  // namespace pawl::job
