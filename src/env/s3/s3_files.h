// S3Files: the objects of S3 as Files to read: s3://BUCKET/a/b is a file, s3://BUCKET/a a folder, with or without a slash
// at its end.
//
// An open file is one version of the object, that of when it was opened: if the object is replaced, reads fail with `stale`.
// Small reads are served from a window, which grows while they go on where the last one ended. A folder is what a list up to
// the next slash shows, so it is there as long as something lies beneath. Nothing is written: what would fails with `invalid`.
// Credentials, region and endpoint are those of the environment (credentials.h), read at the first use. Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "env/files.h"
#include "env/s3/s3_bucket.h"

namespace pawl::s3 {

struct S3FilesOptions {
  std::function<Result<S3Settings>()> settings;  // empty: read_settings(real_settings_sources())
  HttpTransport* transport = nullptr;            // outlives the object; null: libcurl
  Clock* clock = nullptr;                        // likewise; null: real_clock()
  RetryOptions retry;
  std::uint64_t window_min_bytes = std::uint64_t{256}
                                   << 10;  // of the first small read: more: fewer requests for a header
  std::uint64_t window_max_bytes = std::uint64_t{8} << 20;  // of a long run of them
};

class S3Files final : public Files {
 public:
  explicit S3Files(S3FilesOptions options);

  [[nodiscard]] Result<std::unique_ptr<File>> open(const std::string& path, OpenOptions options) override;
  [[nodiscard]] Result<std::vector<std::string>> list(const std::string& directory) override;
  // True also where nobody can say: whoever then opens or lists it is told why.
  [[nodiscard]] bool exists(const std::string& path) override;
  [[nodiscard]] Status rename(const std::string& from, const std::string& to) override;
  [[nodiscard]] Status remove(const std::string& path) override;
  [[nodiscard]] Status sync_directory(const std::string& directory) override;

 private:
  struct Place {
    S3Bucket* bucket;
    std::string key;  // without a slash at its end
  };
  [[nodiscard]] Result<Place> place_of(const std::string& path);
  [[nodiscard]] Result<S3Bucket*> bucket_of(const std::string& name);

  const S3FilesOptions options_;
  std::mutex mutex_;                          // of what is below, which is made when it is first asked for
  std::unique_ptr<HttpTransport> transport_;  // our own
  std::optional<S3Settings> settings_;
  std::map<std::string, S3Bucket> buckets_;  // by name; they stay
};

// real_files() reads s3:// from now on. As often as one likes.
void read_s3_addresses();

}  // namespace pawl::s3
