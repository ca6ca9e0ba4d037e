#include "job/persist/s3_checkpoint_store.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/text.h"
#include "checkpoint/formats/native/store_manifest.h"
#include "checkpoint/formats/native/store_view.h"
#include "checkpoint/store/store_part.h"
#include "env/files.h"
#include "env/s3/s3_url.h"
#include "job/persist/collected_parts.h"
#include "job/persist/least_priority.h"
#include "job/persist/persist_record.h"

namespace pawl::job {
namespace {

using s3::ListedObject;
using s3::S3Bucket;

constexpr std::uint64_t kManifestBytesMax = std::uint64_t{1} << 32;
constexpr std::uint64_t kMarkerBytesMax = std::uint64_t{1} << 20;
constexpr std::uint64_t kNoteBytesMax = 4096;
constexpr std::string_view kRemovedName = "removed";             // its removal has begun
constexpr std::uint64_t kLastAttempts = std::uint64_t{1} << 40;  // from there on: those of the end of a job
constexpr std::size_t kRequestsMax = 16;                         // of small ones at once
constexpr auto kMarkerMax = std::chrono::seconds(60);

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::optional<std::uint64_t> number_of(std::string_view attempt) {
  std::uint64_t number = 0;
  if (!parse_number(attempt.substr(0, attempt.find('-')), number)) return std::nullopt;
  return number;
}

// Of an object in a step's folder; nothing: it is no attempt's.
std::optional<std::string> attempt_in(std::string_view name) {
  static constexpr std::string_view kBegins[] = {"data-", "manifest", "share-", "beside-", "values-", "attempt"};
  if (std::ranges::none_of(kBegins, [&](std::string_view begin) { return name.starts_with(begin); }))
    return std::nullopt;
  for (const std::string_view end : {".safetensors", ".json"})
    if (name.ends_with(end)) name.remove_suffix(end.size());
  const std::size_t dot = name.rfind('.');
  return dot == name.npos ? std::string() : std::string(name.substr(dot + 1));
}

// Where an attempt writes: s3://BUCKET/PREFIX/step-7/@ATTEMPT.
struct Place {
  std::string step_key;  // with the slash at its end
  std::string attempt;

  [[nodiscard]] std::string key(std::string_view name) const { return text(step_key, name); }
  [[nodiscard]] std::string data(Seat seat) const { return key(checkpoint::store_file_name(seat.value, attempt)); }
  [[nodiscard]] std::string manifest() const { return key(checkpoint::store_manifest_name(attempt)); }
  [[nodiscard]] std::string share(Seat seat) const { return key(text("share-", seat.value, ".", attempt)); }
  [[nodiscard]] std::string beside(Seat seat) const { return key(text("beside-", seat.value, ".", attempt)); }
  [[nodiscard]] std::string values(Seat seat) const { return key(text("values-", seat.value, ".", attempt)); }
  [[nodiscard]] std::string note() const { return key(text("attempt.", attempt)); }  // it goes on; of which job
  [[nodiscard]] std::string marker() const { return key(checkpoint::kStoreMarkerName); }
};

// The beginning of the keys beneath a folder.
Result<std::string> folder_key(const std::string& path) {
  PAWL_ASSIGN(s3::S3Path parsed, s3::parse_s3_path(path));
  while (parsed.prefix.ends_with('/')) parsed.prefix.pop_back();
  return parsed.prefix.empty() ? std::string() : parsed.prefix + "/";
}

Result<Place> place_of(const std::string& folder) {
  PAWL_ASSIGN(const s3::S3Path parsed, s3::parse_s3_path(folder));
  const std::size_t at = parsed.prefix.rfind("/@");
  if (at == std::string::npos) return Error{Code::invalid, text(folder, " is no place of an attempt")};
  return Place{parsed.prefix.substr(0, at + 1), parsed.prefix.substr(at + 2)};
}

Result<std::string> read_object(S3Bucket& bucket, const std::string& key, std::uint64_t size_max) {
  PAWL_ASSIGN(const s3::ObjectHead head, bucket.head(key, {}));
  if (head.size_bytes > size_max)
    return Error{Code::corrupt, text(key, ": ", head.size_bytes, " bytes, more than it can have")};
  std::string content(head.size_bytes, '\0');
  PAWL_TRY(bucket.get(key, 0, std::as_writable_bytes(std::span(content)), head.etag, {}));
  return content;
}

Status put_text(S3Bucket& bucket, const std::string& key, std::string_view content, const s3::S3Call& call = {}) {
  PAWL_TRY(bucket.put(key, bytes_of(content), {}, call));
  return {};
}

// Many requests at once, since each of them only waits most of the time. The first error, after having tried all.
Status for_each_at_once(std::size_t count, const std::function<Status(std::size_t)>& ask) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  Status first;
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      Status done = ask(i);
      const std::lock_guard lock(mutex);
      if (!done && first) first = std::move(done);
    }
  };
  std::vector<std::thread> others;
  for (std::size_t i = 1; i < std::min(count, kRequestsMax); ++i) others.emplace_back(work);
  work();
  for (std::thread& thread : others) thread.join();
  return first;
}

Status remove_all(S3Bucket& bucket, const std::vector<std::string>& keys) {
  return for_each_at_once(keys.size(), [&](std::size_t i) { return bucket.remove(keys[i], {}); });
}

Result<std::string> claim_in(S3Bucket& bucket, const std::string& folder) {
  PAWL_ASSIGN(const std::string key, folder_key(folder));
  return read_object(bucket, text(key, kClaimName), kClaimBytesMax);
}

// What a marker makes valid; nothing: there is none.
struct Marker {
  std::string text;
  std::string manifest_name;
};

Result<std::optional<Marker>> marker_at(S3Bucket& bucket, const std::string& key) {
  Result<std::string> marker = read_object(bucket, key, kMarkerBytesMax);
  if (!marker && marker.error().code == Code::not_found) return std::optional<Marker>();
  if (!marker) return std::move(marker).error();
  PAWL_ASSIGN(std::string name, checkpoint::manifest_name_in(*marker));
  return std::optional(Marker{std::move(*marker), std::move(name)});
}

// All objects beneath a folder of checkpoints, by the name of the step's folder and their own.
using Steps = std::map<std::uint64_t, std::map<std::string, std::uint64_t>>;

Result<Steps> steps_in(S3Bucket& bucket, const std::string& prefix) {
  PAWL_ASSIGN(const std::vector<ListedObject> objects, bucket.list(text(prefix, "step-"), {}));
  Steps steps;
  for (const ListedObject& object : objects) {
    const std::string_view rest = std::string_view(object.key).substr(prefix.size());
    const std::size_t slash = rest.find('/');
    const auto step = checkpoint::parse_checkpoint_name(rest.substr(0, slash));
    if (step && slash != rest.npos) steps[*step].emplace(rest.substr(slash + 1), object.size_bytes);
  }
  return steps;
}

std::string step_key(const std::string& prefix, std::uint64_t step) {
  return text(prefix, checkpoint::checkpoint_name(step), "/");
}

// A finished one, beside which nothing was left.
bool is_of_one_attempt(const std::map<std::string, std::uint64_t>& objects) {
  std::set<std::string> attempts;
  for (const auto& [name, size] : objects)
    if (const auto attempt = attempt_in(name)) attempts.insert(*attempt);
  return attempts.size() == 1 && objects.contains(std::string(checkpoint::kStoreMarkerName));
}

class S3Checkpoint : public OpenCheckpoint {
 public:
  S3Checkpoint(S3Bucket& bucket, Place place, const CheckpointOrder& order, checkpoint::StoreIdentity identity)
      : bucket_(bucket),
        place_(std::move(place)),
        folder_(text(order.path, "/@", place_.attempt)),
        parent_(parent_path(order.path)),
        owner_(order.owner),
        identity_(std::move(identity)) {}
  S3Checkpoint(const S3Checkpoint&) = delete;
  S3Checkpoint& operator=(const S3Checkpoint&) = delete;
  ~S3Checkpoint() override {
    if (!is_marked_) clean([this](const std::string& attempt, std::string_view) { return attempt == place_.attempt; });
  }
  const std::string& folder() const override { return folder_; }

  Status publish(std::uint32_t seat_count) override {
    PAWL_ASSIGN(const CollectedParts parts, collect(seat_count));
    PAWL_ASSIGN(const checkpoint::StorePublishOptions options, options_of(parts));
    PAWL_ASSIGN(const checkpoint::StoreManifest manifest, join(parts, options));
    const std::string content = text_of(manifest);
    if (const auto again = checkpoint::parse_store_manifest(content); !again)  // e.g. an alias that is no UTF-8
      return Error{Code::invalid, text("publish: ", again.error().what)};
    PAWL_TRY(put_text(bucket_, place_.manifest(), content));
    PAWL_TRY(check_claim(parent_, claim_in(bucket_, parent_), owner_));
    PAWL_ASSIGN(const std::optional<Marker> before, marker_at(bucket_, place_.marker()));
    if (const auto note = bucket_.head(place_.note(), {}); !note)
      return Error(note.error()).within(text("publish ", folder_, ": perhaps another attempt has begun"));
    checkpoint::StoreIdentity identity = identity_;
    identity.written_ms = wall_ms();
    PAWL_TRY(mark(checkpoint::marker_of(content, identity, checkpoint::store_manifest_name(place_.attempt)), !before));
    clean([this](const std::string& attempt, std::string_view name) {
      return attempt != place_.attempt || !(name.starts_with("data-") || name.starts_with("manifest"));
    });
    return {};
  }

 private:
  Result<CollectedParts> collect(std::uint32_t seat_count) {
    CollectedParts parts;
    parts.shares.resize(seat_count);
    parts.besides.resize(seat_count);
    PAWL_TRY(for_each_at_once(seat_count, [&](std::size_t i) -> Status {
      const Seat seat(static_cast<std::uint32_t>(i));
      Result<std::string> share = read_object(bucket_, place_.share(seat), kShareBytesMax);
      if (!share && share.error().code == Code::not_found)
        return Error{Code::not_found, text("the part of seat ", seat.value, " is not in ", folder_)};
      if (!share) return std::move(share).error();
      parts.shares[i] = std::move(*share);
      PAWL_ASSIGN(const std::string beside, read_object(bucket_, place_.beside(seat), kShareBytesMax));
      PAWL_ASSIGN(parts.besides[i], parse_beside(beside));
      return {};
    }));
    for (Seat seat(0); seat.value < seat_count && parts.values.empty(); ++seat.value) {  // the lowest one's, mostly
      Result<std::string> values = read_object(bucket_, place_.values(seat), kValuesBytesMax);
      if (values) parts.values = std::move(*values);
      if (!values && values.error().code != Code::not_found) return std::move(values).error();
    }
    return parts;
  }

  Result<checkpoint::StoreManifest> join(const CollectedParts& parts, const checkpoint::StorePublishOptions& options) {
    PAWL_ASSIGN(const std::vector<ListedObject> objects, bucket_.list(place_.step_key, {}));
    std::map<std::string, std::uint64_t> sizes;
    for (const ListedObject& object : objects) sizes.emplace(object.key, object.size_bytes);
    const auto check = [&](const checkpoint::StoreFile& file) -> Status {
      const auto found = sizes.find(place_.key(file.name));
      if (found == sizes.end() || attempt_in(file.name) != place_.attempt)
        return Error{Code::invalid, text("part ", file.name, " is not in ", folder_, ": it was written elsewhere")};
      if (found->second == file.size_bytes) return {};
      return Error{Code::corrupt, text("part ", file.name, ": ", found->second, " bytes instead of ", file.size_bytes)};
    };
    return join_shares(parts.shares, options, check);
  }

  // From here on nobody knows whether it is there until an answer says so: so nothing of the attempt is removed any more.
  Status mark(const std::string& marker, bool is_first) {
    is_marked_ = true;
    const s3::S3Call call{Deadline::in(kMarkerMax), nullptr};
    const auto put = bucket_.put(place_.marker(), bytes_of(marker), {.only_if_absent = is_first}, call);
    if (put) return {};
    const auto there = marker_at(bucket_, place_.marker());
    if (there && *there && (*there)->text == marker) return {};
    return put.error();
  }

  // What stays over is removed by the next attempt.
  void clean(const std::function<bool(const std::string& attempt, std::string_view name)>& chosen) {
    const auto objects = bucket_.list(place_.step_key, {});
    std::vector<std::string> keys;
    for (const ListedObject& object : objects ? *objects : std::vector<ListedObject>()) {
      const std::string_view name = std::string_view(object.key).substr(place_.step_key.size());
      if (const auto attempt = attempt_in(name); attempt && chosen(*attempt, name)) keys.push_back(object.key);
    }
    (void)remove_all(bucket_, keys);
  }

  S3Bucket& bucket_;
  const Place place_;
  const std::string folder_;
  const std::string parent_;
  const std::string owner_;
  const checkpoint::StoreIdentity identity_;
  bool is_marked_ = false;
};

class S3CheckpointStore : public CheckpointStore {
 public:
  S3CheckpointStore(S3Bucket bucket, std::string name, S3UploadOptions options,
                    std::shared_ptr<s3::HttpTransport> transport)
      : transport_(std::move(transport)), bucket_(std::move(bucket)), name_(std::move(name)), options_(options) {}

  Result<std::unique_ptr<OpenCheckpoint>> begin(const CheckpointOrder& order) override {
    PAWL_TRY(check_bucket(order.path));
    const std::string parent = parent_path(order.path);
    PAWL_TRY(check_claim(parent, claim_in(bucket_, parent), order.owner));
    PAWL_ASSIGN(const std::string prefix, folder_key(parent));
    PAWL_ASSIGN(checkpoint::StoreIdentity identity, identity_after(order.before));
    Place place{text(prefix, last_name(order.path), "/"), text(order.attempt, "-", identity.id)};
    PAWL_TRY(put_text(bucket_, place.note(), order.owner));
    PAWL_TRY(remove_leftovers(prefix, place, order.owner));
    return std::unique_ptr<OpenCheckpoint>(
        std::make_unique<S3Checkpoint>(bucket_, std::move(place), order, std::move(identity)));
  }

  Result<std::unique_ptr<StoredCheckpoint>> open(const std::string& path) override {
    return open_stored_checkpoint(path);
  }

  Status write(const std::string& folder, const SeatPart& part, PartProgress& progress) override {
    be_nice();
    PAWL_TRY(check_bucket(folder));
    PAWL_ASSIGN(const Place place, place_of(folder));
    const auto failed = [&](Error error) { return std::move(error).within(text("save part ", part.seat.value)); };
    if (const auto note = bucket_.head(place.note(), {}); !note) return failed(note.error());  // the attempt has ended
    const auto plan = checkpoint::plan_part(part.pieces);
    if (!plan) return failed(plan.error());
    const auto sums = upload_part_file(bucket_, place.data(part.seat), *plan, part.proof, progress, options_);
    if (!sums) return failed(sums.error());
    const auto share =
        share_text(part.pieces, *plan, checkpoint::store_file_name(part.seat.value, place.attempt), *sums);
    if (!share) return failed(share.error());
    if (!part.values.empty()) PAWL_TRY(put_text(bucket_, place.values(part.seat), part.values));
    PAWL_TRY(put_text(bucket_, place.beside(part.seat), part.beside));
    return put_text(bucket_, place.share(part.seat), *share);
  }

  Result<std::vector<checkpoint::ListedCheckpoint>> list(const std::string& folder) override {
    PAWL_TRY(check_bucket(folder));
    PAWL_ASSIGN(const std::string prefix, folder_key(folder));
    PAWL_ASSIGN(const Steps steps, steps_in(bucket_, prefix));
    std::vector<checkpoint::ListedCheckpoint> listed;
    for (const auto& [step, objects] : steps) {
      checkpoint::ListedCheckpoint& one = listed.emplace_back();
      one.step = step;
      one.path = checkpoint_path(folder, Step(step));
      one.finished = objects.contains(std::string(checkpoint::kStoreMarkerName));
      if (!one.finished) continue;
      const Status sound = look_into(step_key(prefix, step), objects, one);
      if (sound) continue;
      one.damage = sound.error().what;
      one.is_unknown = sound.error().code != Code::corrupt && sound.error().code != Code::not_found;
    }
    return listed;
  }

  Status remove(const checkpoint::ListedCheckpoint& one, const std::string& owner) override {
    const std::string folder = parent_path(one.path);
    PAWL_TRY(check_bucket(folder));
    PAWL_TRY(check_claimed(folder, claim_in(bucket_, folder), owner));
    PAWL_ASSIGN(const std::string prefix, folder_key(folder));
    const std::string key = step_key(prefix, one.step);
    PAWL_ASSIGN(const std::optional<Marker> marker, marker_at(bucket_, text(key, checkpoint::kStoreMarkerName)));
    if (!marker)
      return Error{Code::not_found, text(one.path, " is no checkpoint that a job wrote: it is left as it is")};
    const Result<checkpoint::StoreIdentity> identity = checkpoint::identity_in(marker->text);
    if ((identity ? identity->id : "") != one.identity.id)
      return Error{Code::stale,
                   text(one.path, " is another checkpoint than was listed: it has been replaced, and stays")};
    PAWL_TRY(put_text(bucket_, text(key, kRemovedName), ""));
    PAWL_TRY(bucket_.remove(text(key, checkpoint::kStoreMarkerName), {}));
    return remove_step(key);
  }

  Status finish_removals(const std::string& folder, const std::string& owner) override {
    PAWL_TRY(check_bucket(folder));
    PAWL_TRY(check_claimed(folder, claim_in(bucket_, folder), owner));
    PAWL_ASSIGN(const std::string prefix, folder_key(folder));
    PAWL_ASSIGN(const Steps steps, steps_in(bucket_, prefix));
    Status first;
    for (const auto& [step, objects] : steps) {
      const bool is_removed = objects.contains(std::string(kRemovedName));
      if (!is_removed || objects.contains(std::string(checkpoint::kStoreMarkerName))) continue;
      if (Status removed = remove_step(step_key(prefix, step)); !removed && first) first = std::move(removed);
    }
    return first;
  }

 private:
  [[nodiscard]] Status check_bucket(const std::string& path) const {
    PAWL_ASSIGN(const s3::S3Path parsed, s3::parse_s3_path(path));
    if (parsed.bucket == name_) return {};
    return Error{Code::invalid, text(path, " is not in the bucket of this job's checkpoints, ", name_)};
  }

  // What says nothing of itself, or is gone, has nothing before it that is known. What may be readable later fails.
  Result<checkpoint::StoreIdentity> identity_after(const std::string& before) {
    const auto step = checkpoint::parse_checkpoint_name(last_name(before));
    if (!step) return new_identity();
    if (!check_bucket(before)) {
      const Result<checkpoint::StoreIdentity> last = checkpoint::read_store_identity(before);
      if (!last && last.error().code != Code::not_found && last.error().code != Code::corrupt) return last.error();
      return last ? job::identity_after(*step, *last, [](std::uint64_t) { return false; }) : new_identity();
    }
    PAWL_ASSIGN(const std::string prefix, folder_key(parent_path(before)));
    PAWL_ASSIGN(const std::optional<Marker> marker,
                marker_at(bucket_, text(step_key(prefix, *step), checkpoint::kStoreMarkerName)));
    PAWL_ASSIGN(const Steps steps, steps_in(bucket_, prefix));
    if (!marker) return new_identity();
    const Result<checkpoint::StoreIdentity> last = checkpoint::identity_in(marker->text);
    if (!last) return new_identity();
    return job::identity_after(*step, *last, [&](std::uint64_t other) { return steps.contains(other); });
  }

  // All that is in it; that it is to be removed goes last.
  Status remove_step(const std::string& key) {
    PAWL_ASSIGN(const std::vector<ListedObject> objects, bucket_.list(key, {}));
    std::vector<std::string> keys;
    for (const ListedObject& object : objects)
      if (object.key != text(key, kRemovedName)) keys.push_back(object.key);
    PAWL_TRY(remove_all(bucket_, keys));
    return bucket_.remove(text(key, kRemovedName), {});
  }

  // What nobody reads or writes any more. An attempt of another step goes on as long as its note is the owner's, and none of its kind
  // with a greater number has begun.
  Status remove_leftovers(const std::string& prefix, const Place& now, const std::string& owner) {
    PAWL_ASSIGN(const Steps steps, steps_in(bucket_, prefix));
    const std::uint64_t number = number_of(now.attempt).value_or(0);
    for (const auto& [step, objects] : steps) {
      const std::string key = step_key(prefix, step);
      if (key != now.step_key && is_of_one_attempt(objects)) continue;
      std::map<std::string, bool> stays;  // by attempt
      PAWL_ASSIGN(const std::optional<Marker> marker, marker_at(bucket_, text(key, checkpoint::kStoreMarkerName)));
      if (marker) stays[attempt_in(marker->manifest_name).value_or("")] = true;
      if (key == now.step_key) stays[now.attempt] = true;
      std::vector<std::string> keys;
      for (const auto& [name, size] : objects) {
        const std::optional<std::string> attempt = attempt_in(name);
        if (!attempt) continue;
        if (!stays.contains(*attempt)) {
          const std::uint64_t theirs = number_of(*attempt).value_or(0);
          const bool may_live =
              key != now.step_key && (theirs >= number || (theirs >= kLastAttempts) != (number >= kLastAttempts));
          const auto note = may_live ? read_object(bucket_, text(key, "attempt.", *attempt), kNoteBytesMax)
                                     : Result<std::string>(Error{Code::not_found, ""});
          if (!note && note.error().code != Code::not_found) return note.error();
          stays[*attempt] = note && *note == owner;
        }
        if (!stays[*attempt]) keys.push_back(text(key, name));
      }
      if (key == now.step_key && objects.contains(std::string(kRemovedName))) keys.push_back(text(key, kRemovedName));
      PAWL_TRY(remove_all(bucket_, keys));
    }
    return {};
  }

  Status look_into(const std::string& key, const std::map<std::string, std::uint64_t>& objects,
                   checkpoint::ListedCheckpoint& one) {
    PAWL_ASSIGN(const std::optional<Marker> marker, marker_at(bucket_, text(key, checkpoint::kStoreMarkerName)));
    if (!marker) return Error{Code::not_found, text(one.path, ": it is being removed")};
    PAWL_ASSIGN(one.identity, checkpoint::identity_in(marker->text));
    one.written_ms = one.identity.written_ms;
    PAWL_ASSIGN(const std::string content, read_object(bucket_, text(key, marker->manifest_name), kManifestBytesMax));
    PAWL_TRY(checkpoint::check_marker(marker->text, content));
    PAWL_ASSIGN(const checkpoint::StoreManifest manifest, checkpoint::parse_store_manifest(content));
    for (const checkpoint::StoreFile& file : manifest.files) {
      one.bytes += file.size_bytes;
      const auto found = objects.find(file.name);
      if (found == objects.end() || found->second != file.size_bytes)
        return Error{Code::corrupt, text(one.path, ": ", file.name, " is not there, or not as long as it was written")};
    }
    one.tensors = static_cast<std::uint64_t>(std::ranges::count_if(
        manifest.tensors, [](const auto& tensor) { return !checkpoint::is_set_aside(tensor.role); }));
    return {};
  }

  const std::shared_ptr<s3::HttpTransport> transport_;  // outlives the bucket
  S3Bucket bucket_;
  const std::string name_;
  const S3UploadOptions options_;
};

}  // namespace

std::unique_ptr<CheckpointStore> s3_checkpoint_store(S3Bucket bucket, std::string bucket_name, S3UploadOptions options,
                                                     std::shared_ptr<s3::HttpTransport> transport) {
  return std::make_unique<S3CheckpointStore>(std::move(bucket), std::move(bucket_name), options, std::move(transport));
}

Status claim_s3_folder(S3Bucket& bucket, const std::string& path, const std::string& job,
                       const std::string& token_digest, bool resumes) {
  PAWL_ASSIGN(const std::string prefix, folder_key(path));
  const std::string ours = claim_text(job, token_digest);
  PAWL_ASSIGN(const Steps steps,
              steps_in(bucket, prefix));  // first: its answer says what is wrong, that of a HEAD doesn't
  const Result<std::string> there = claim_in(bucket, path);
  if (there && *there == ours) return {};
  if (!there && there.error().code != Code::not_found) return there.error();
  if (!steps.empty() && !resumes)
    return claimed_by_another(path, there, checkpoint::checkpoint_name(steps.begin()->first));
  return put_text(bucket, text(prefix, kClaimName), ours);
}

}  // namespace pawl::job
