// S3Upload: the data file of a seat's part as an object, in one pass over the memory that holds it.
//
// Each byte of the memory is loaded once: summed while it is copied to the buffer that is sent. So sums are those of what the server
// got, which proves it by sums of its own, also if somebody writes the memory meanwhile. A large file is sent in several
// parts at once, each from a buffer; a small one by one request. What is not complete is aborted.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "checkpoint/store/store_part.h"
#include "env/s3/s3_bucket.h"
#include "job/persist/checkpoint_store.h"

namespace pawl::job {

struct S3UploadOptions {
  std::uint64_t chunk_bytes = std::uint64_t{16} << 20;  // of one request, 5 MiB or more; larger files have larger ones
  std::uint32_t threads = 4;                            // requests at once, each with a buffer of that size
};

// `proof` may be null; where it fails (`corrupt`) there is no object. Fails also as S3Bucket.
[[nodiscard]] Result<checkpoint::PieceSums> upload_part_file(s3::S3Bucket& bucket, const std::string& key,
                                                             const checkpoint::PartPlan& plan,
                                                             const checkpoint::MemorySums* proof,
                                                             PartProgress& progress, S3UploadOptions options = {});

}  // namespace pawl::job
