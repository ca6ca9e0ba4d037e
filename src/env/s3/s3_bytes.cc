#include "env/s3/s3_bytes.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/text.h"

namespace pawl::s3 {
namespace {

class S3Bytes final : public ByteSource {
 public:
  S3Bytes(S3Bucket& bucket, std::string key, ObjectHead head, S3BytesOptions options)
      : bucket_(bucket), key_(std::move(key)), head_(std::move(head)), options_(options) {}

  [[nodiscard]] std::uint64_t size_bytes() const override { return head_.size_bytes; }

  [[nodiscard]] Status read(std::uint64_t offset_bytes, std::span<std::byte> buffer) override {
    if (offset_bytes > head_.size_bytes || buffer.size() > head_.size_bytes - offset_bytes)
      return Error{Code::corrupt,
                   text(key_, ": bytes ", offset_bytes, " + ", buffer.size(), " pass the end at ", head_.size_bytes)};
    if (buffer.size() >= options_.window_bytes)
      return bucket_.get(key_, offset_bytes, buffer, head_.etag, options_.call);
    if (buffer.empty()) return {};
    const bool within = offset_bytes >= begin_ && offset_bytes - begin_ + buffer.size() <= window_.size();
    if (!within) PAWL_TRY(fetch(offset_bytes));
    std::memcpy(buffer.data(), window_.data() + (offset_bytes - begin_), buffer.size());
    return {};
  }

 private:
  Status fetch(std::uint64_t offset_bytes) {
    window_.resize(std::min(options_.window_bytes, head_.size_bytes - offset_bytes));
    begin_ = offset_bytes;
    Status got = bucket_.get(key_, begin_, window_, head_.etag, options_.call);
    if (!got) window_.clear();
    return got;
  }

  S3Bucket& bucket_;
  const std::string key_;
  const ObjectHead head_;
  const S3BytesOptions options_;
  std::vector<std::byte> window_;  // of the object, from begin_ on
  std::uint64_t begin_ = 0;
};

}  // namespace

Result<std::unique_ptr<ByteSource>> open_s3_bytes(S3Bucket& bucket, const std::string& key, S3BytesOptions options) {
  PAWL_ASSIGN(ObjectHead head, bucket.head(key, options.call));
  return std::unique_ptr<ByteSource>(std::make_unique<S3Bytes>(bucket, key, std::move(head), options));
}

}  // namespace pawl::s3
