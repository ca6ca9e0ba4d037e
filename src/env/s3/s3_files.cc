#include "env/s3/s3_files.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "base/text.h"
#include "env/s3/credentials.h"
#include "env/s3/s3_url.h"

namespace pawl::s3 {
namespace {

struct Window {
  std::uint64_t min_bytes;
  std::uint64_t max_bytes;
};

class S3File final : public File {
 public:
  S3File(std::string path, S3Bucket& bucket, std::string key, ObjectHead head, OpenOptions options, Window window)
      : path_(std::move(path)),
        bucket_(bucket),
        key_(std::move(key)),
        head_(std::move(head)),
        is_shared_(options.shared),
        limits_(window),
        next_bytes_(window.min_bytes) {
    call_.cancel = options.cancel;
  }

  Result<std::size_t> read_at(std::uint64_t offset_bytes, std::span<std::byte> buffer) override {
    if (offset_bytes >= head_.size_bytes) return std::size_t{0};
    buffer = buffer.first(std::min<std::uint64_t>(buffer.size(), head_.size_bytes - offset_bytes));
    if (is_shared_ || buffer.size() >= limits_.max_bytes) {
      PAWL_TRY(bucket_.get(key_, offset_bytes, buffer, head_.etag, call_));
      return buffer.size();
    }
    for (std::size_t done = 0; done < buffer.size();) {
      const std::uint64_t at = offset_bytes + done;
      if (at < begin_ || at - begin_ >= window_.size()) PAWL_TRY(fetch(at, buffer.size() - done));
      const std::span<const std::byte> there = std::span(window_).subspan(at - begin_);
      const std::size_t count = std::min(there.size(), buffer.size() - done);
      std::memcpy(buffer.data() + done, there.data(), count);
      done += count;
    }
    return buffer.size();
  }

  Result<std::uint64_t> size() override { return head_.size_bytes; }
  Status close() override { return {}; }
  Status write_at(std::uint64_t /*offset_bytes*/, std::span<const std::byte> /*bytes*/) override {
    return check_no_address(path_);
  }
  Status sync() override { return check_no_address(path_); }
  Status truncate(std::uint64_t /*size_bytes*/) override { return check_no_address(path_); }
  Status reserve(std::uint64_t /*offset_bytes*/, std::uint64_t /*size_bytes*/) override {
    return check_no_address(path_);
  }

 private:
  Status fetch(std::uint64_t at, std::uint64_t wanted_bytes) {
    const bool goes_on = !window_.empty() && at == begin_ + window_.size();
    next_bytes_ = goes_on ? std::min(2 * next_bytes_, limits_.max_bytes) : limits_.min_bytes;
    window_.resize(std::min(std::max(next_bytes_, wanted_bytes), head_.size_bytes - at));
    begin_ = at;
    Status got = bucket_.get(key_, begin_, window_, head_.etag, call_);
    if (!got) window_.clear();
    return got;
  }

  const std::string path_;
  S3Bucket& bucket_;
  const std::string key_;
  const ObjectHead head_;
  const bool is_shared_;
  const Window limits_;
  S3Call call_;
  std::vector<std::byte> window_;  // of the object, from begin_ on
  std::uint64_t begin_ = 0;
  std::uint64_t next_bytes_;
};

std::string folder_prefix(const std::string& key) {
  return key.empty() ? key : key + "/";
}

}  // namespace

S3Files::S3Files(S3FilesOptions options) : options_(std::move(options)) {}

Result<S3Bucket*> S3Files::bucket_of(const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (const auto found = buckets_.find(name); found != buckets_.end()) return &found->second;
  if (!settings_) {
    PAWL_ASSIGN(settings_, options_.settings ? options_.settings() : read_settings(real_settings_sources()));
  }
  if (options_.transport == nullptr && !transport_)
    transport_ = curl_transport({.connect_max = std::chrono::seconds(10), .certificates = settings_->certificates});
  S3Options options;
  options.settings = *settings_;
  options.bucket = name;
  options.retry = options_.retry;
  PAWL_ASSIGN(S3Bucket bucket,
              S3Bucket::open(std::move(options), options_.transport != nullptr ? *options_.transport : *transport_,
                             options_.clock != nullptr ? *options_.clock : real_clock()));
  return &buckets_.emplace(name, std::move(bucket)).first->second;
}

Result<S3Files::Place> S3Files::place_of(const std::string& path) {
  PAWL_ASSIGN(S3Path parsed, parse_s3_path(path));
  while (parsed.prefix.ends_with('/')) parsed.prefix.pop_back();
  Result<S3Bucket*> bucket = bucket_of(parsed.bucket);
  if (!bucket) return std::move(bucket).error().within(path);
  return Place{*bucket, std::move(parsed.prefix)};
}

Result<std::unique_ptr<File>> S3Files::open(const std::string& path, OpenOptions options) {
  if (options.write || options.create || options.truncate || options.exclusive) PAWL_TRY(check_no_address(path));
  PAWL_ASSIGN(Place place, place_of(path));
  if (place.key.empty()) return Error{Code::invalid, text("open ", path, ": a bucket is a folder, and not an object")};
  S3Call call;
  call.cancel = options.cancel;
  PAWL_ASSIGN(ObjectHead head, place.bucket->head(place.key, call));
  return std::unique_ptr<File>(std::make_unique<S3File>(path, *place.bucket, std::move(place.key), std::move(head),
                                                        options,
                                                        Window{options_.window_min_bytes, options_.window_max_bytes}));
}

Result<std::vector<std::string>> S3Files::list(const std::string& directory) {
  PAWL_ASSIGN(const Place place, place_of(directory));
  ListQuery query{folder_prefix(place.key), "/", ""};
  std::set<std::string> names;
  bool is_there = place.key.empty();
  do {
    PAWL_ASSIGN(ListPage page, place.bucket->list_page(query, {}));
    const auto add = [&](std::string_view key) {
      if (!key.starts_with(query.prefix)) return;
      is_there = true;
      key.remove_prefix(query.prefix.size());
      if (key.ends_with('/')) key.remove_suffix(1);
      if (!key.empty() && key != "." && key != "..") names.emplace(key);
    };
    for (const ListedObject& each : page.objects) add(each.key);
    for (const std::string& each : page.prefixes) add(each);
    if (page.continuation == query.continuation && !page.continuation.empty())
      return Error{Code::corrupt, text("list ", directory, ": the server sends one page for ever")};
    query.continuation = std::move(page.continuation);
  } while (!query.continuation.empty());
  if (!is_there) return Error{Code::not_found, text("list ", directory, ": nothing lies beneath it")};
  return std::vector<std::string>(names.begin(), names.end());
}

bool S3Files::exists(const std::string& path) {
  const Result<Place> place = place_of(path);
  if (!place) return true;
  if (!place->key.empty()) {
    const Result<ObjectHead> head = place->bucket->head(place->key, {});
    if (head || head.error().code != Code::not_found) return true;
  }
  const Result<ListPage> page = place->bucket->list_page({folder_prefix(place->key), "/", ""}, {});
  if (!page) return page.error().code != Code::not_found;
  return place->key.empty() || !page->objects.empty() || !page->prefixes.empty();
}

Status S3Files::rename(const std::string& from, const std::string& /*to*/) {
  return check_no_address(from);
}

Status S3Files::remove(const std::string& path) {
  return check_no_address(path);
}

Status S3Files::sync_directory(const std::string& directory) {
  return check_no_address(directory);
}

void read_s3_addresses() {
  static S3Files files{S3FilesOptions{}};
  read_addresses_by("s3", files);
}

}  // namespace pawl::s3
