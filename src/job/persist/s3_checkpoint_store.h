// S3CheckpointStore: a job's checkpoints in object storage, s3://BUCKET/PREFIX/step-N/.
//
// What always holds:
//  * a checkpoint is there if its marker ("committed") is. The marker names its manifest, and is put when all that this names is
//    there. One put replaces the marker of a checkpoint that stood there: a reader sees the old or the new one, never half, never none;
//  * the name of every object but the marker holds the attempt that wrote it. So who is late overwrites nothing, and what an attempt
//    leaves that ends, whenever it does, is seen by no reader;
//  * removal takes the marker first.
// What is left over: objects of attempts that were killed, until the job begins its next checkpoint; uploads that were not completed,
// which no list of objects shows: a lifecycle rule of the bucket ends these. Two that publish one step at once are kept apart by
// the job's control, not by storage.
#pragma once

#include <memory>
#include <string>

#include "env/s3/s3_bucket.h"
#include "job/persist/checkpoint_store.h"
#include "job/persist/s3_upload.h"

namespace pawl::job {

// Of that bucket only. `transport` is the bucket's, kept as long as the store; null: the caller keeps it.
[[nodiscard]] std::unique_ptr<CheckpointStore> s3_checkpoint_store(s3::S3Bucket bucket, std::string bucket_name,
                                                                   S3UploadOptions options = {},
                                                                   std::shared_ptr<s3::HttpTransport> transport = {});

// claim_checkpoint_folder(), for "s3://BUCKET/PREFIX". Fails also as S3Bucket: rights, region, clock, a bucket that is not there.
[[nodiscard]] Status claim_s3_folder(s3::S3Bucket& bucket, const std::string& path, const std::string& job,
                                     const std::string& token_digest, bool resumes = false);

}  // namespace pawl::job
