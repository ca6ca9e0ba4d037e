// S3Bytes: an object of S3 as a ByteSource, read by ranges.
//
// What is read is one version of the object: that of when it was opened, by its ETag. Small reads are served from a window that is
// fetched at once; a large one is one request, straight into the caller's memory. One thread at a time, as any ByteSource;
// as many sources as one likes at once.
#pragma once

#include <memory>
#include <string>

#include "env/byte_source.h"
#include "env/s3/s3_bucket.h"

namespace pawl::s3 {

struct S3BytesOptions {
  std::uint64_t window_bytes = std::uint64_t{1}
                               << 20;  // what a smaller read fetches; more: fewer requests, more bytes for nothing
  S3Call call;                         // of each request; what it refers to outlives the source
};

// The bucket outlives it. Fails as S3Bucket::head; its reads as S3Bucket::get, and with `stale` where the object was replaced.
[[nodiscard]] Result<std::unique_ptr<ByteSource>> open_s3_bytes(S3Bucket& bucket, const std::string& key,
                                                                S3BytesOptions options);

}  // namespace pawl::s3
