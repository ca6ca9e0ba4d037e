#include "job/persist/checkpoint_places.h"

#include <chrono>
#include <map>
#include <mutex>
#include <utility>

#include "checkpoint/store/checkpoint_folder.h"
#include "env/files.h"
#include "env/s3/credentials.h"
#include "env/s3/s3_url.h"
#include "job/persist/s3_checkpoint_store.h"

namespace pawl::job {
namespace {

constexpr auto kConnectMax = std::chrono::seconds(10);

struct Connection {
  std::string bucket_name;
  std::shared_ptr<s3::HttpTransport> transport;
  s3::S3Bucket bucket;
};

Result<Connection> connect(const std::string& path) {
  PAWL_ASSIGN(const s3::S3Path parsed, s3::parse_s3_path(path));
  s3::S3Options options;
  PAWL_ASSIGN(options.settings, s3::read_settings(s3::real_settings_sources()));
  options.bucket = parsed.bucket;
  std::shared_ptr<s3::HttpTransport> transport = s3::curl_transport({kConnectMax, options.settings.certificates});
  PAWL_ASSIGN(s3::S3Bucket bucket, s3::S3Bucket::open(std::move(options), *transport, real_clock()));
  return Connection{parsed.bucket, std::move(transport), std::move(bucket)};
}

class StoreByPath : public CheckpointStore {
 public:
  Result<std::unique_ptr<OpenCheckpoint>> begin(const CheckpointOrder& order) override {
    PAWL_ASSIGN(CheckpointStore* const store, store_of(order.path));
    return store->begin(order);
  }
  Result<std::unique_ptr<StoredCheckpoint>> open(const std::string& path) override {
    PAWL_ASSIGN(CheckpointStore* const store, store_of(path));
    return store->open(path);
  }
  Status write(const std::string& folder, const SeatPart& part, PartProgress& progress) override {
    PAWL_ASSIGN(CheckpointStore* const store, store_of(folder));
    return store->write(folder, part, progress);
  }
  Result<std::vector<checkpoint::ListedCheckpoint>> list(const std::string& folder) override {
    PAWL_ASSIGN(CheckpointStore* const store, store_of(folder));
    return store->list(folder);
  }
  Status remove(const checkpoint::ListedCheckpoint& one, const std::string& owner) override {
    PAWL_ASSIGN(CheckpointStore* const store, store_of(one.path));
    return store->remove(one, owner);
  }
  Status finish_removals(const std::string& folder, const std::string& owner) override {
    PAWL_ASSIGN(CheckpointStore* const store, store_of(folder));
    return store->finish_removals(folder, owner);
  }

 private:
  Result<CheckpointStore*> store_of(const std::string& path) {
    if (!s3::is_s3_path(path)) return files_.get();
    PAWL_ASSIGN(const s3::S3Path parsed, s3::parse_s3_path(path));
    const std::lock_guard lock(mutex_);
    std::unique_ptr<CheckpointStore>& store = buckets_[parsed.bucket];
    if (!store) {
      PAWL_ASSIGN(Connection made, connect(path));
      store = s3_checkpoint_store(std::move(made.bucket), made.bucket_name, {}, std::move(made.transport));
    }
    return store.get();
  }

  const std::unique_ptr<CheckpointStore> files_ = file_checkpoint_store();
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<CheckpointStore>> buckets_;  // which stay
};

}  // namespace

std::unique_ptr<CheckpointStore> checkpoint_store_by_path() {
  return std::make_unique<StoreByPath>();
}

bool is_in_object_storage(const std::string& path) {
  return s3::is_s3_path(path);
}

Status claim_checkpoints(const std::string& path, const std::string& job, const std::string& token_digest,
                         bool resumes) {
  if (!s3::is_s3_path(path)) return claim_checkpoint_folder(path, job, token_digest, resumes);
  PAWL_ASSIGN(Connection made, connect(path));
  return claim_s3_folder(made.bucket, path, job, token_digest, resumes);
}

Result<std::vector<checkpoint::ListedCheckpoint>> list_job_checkpoints(const std::string& path) {
  if (s3::is_s3_path(path)) return checkpoint_store_by_path()->list(path);
  if (!path_exists(path)) return std::vector<checkpoint::ListedCheckpoint>();
  return checkpoint::list_checkpoints(path);
}

}  // namespace pawl::job
