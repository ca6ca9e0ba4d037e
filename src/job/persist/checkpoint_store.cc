#include "job/persist/checkpoint_store.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/json_access.h"
#include "base/text.h"
#include "checkpoint/formats/native/store_manifest.h"
#include "checkpoint/formats/native/store_view.h"
#include "checkpoint/output/partial_output.h"
#include "checkpoint/store/checkpoint_folder.h"
#include "env/files.h"
#include "job/persist/collected_parts.h"
#include "job/persist/least_priority.h"
#include "job/persist/persist_record.h"

namespace pawl::job {
namespace {

constexpr int kRemovalTries = 100;
constexpr auto kRemovalPause = std::chrono::milliseconds(50);
constexpr std::uint64_t kBufferBytes = std::uint64_t{64} << 20;

// Beside the folder in which the checkpoint grows: none of these is published.
std::string share_path(const std::string& folder, Seat seat) {
  return text(folder, "-share-", seat.value);
}
std::string beside_path(const std::string& folder, Seat seat) {
  return text(folder, "-beside-", seat.value);
}
std::string values_path(const std::string& folder, Seat seat) {
  return text(folder, "-values-", seat.value);
}

// A few: what is written is bound by the storage, and trainers want the rest.
std::uint32_t writer_threads() {
  return std::clamp(std::thread::hardware_concurrency() / 8, 1u, 4u);
}

Result<std::string> claim_in(const std::string& folder) {
  return read_file(join_path(folder, kClaimName), kClaimBytesMax);
}

class FileCheckpoint : public OpenCheckpoint {
 public:
  FileCheckpoint(checkpoint::StoreFolder store, std::string parent, std::string owner,
                 checkpoint::StoreIdentity identity)
      : store_(std::move(store)),
        parent_(std::move(parent)),
        owner_(std::move(owner)),
        identity_(std::move(identity)) {}
  const std::string& folder() const override { return store_.folder(); }

  Status publish(std::uint32_t seat_count) override {
    CollectedParts parts;
    for (Seat seat(0); seat.value < seat_count; ++seat.value) {
      Result<std::string> share = read_file(share_path(folder(), seat), kShareBytesMax);
      if (!share && share.error().code == Code::not_found)
        return Error{Code::not_found, text("the part of seat ", seat.value, " is not in ", folder(),
                                           ": do all nodes see the same folder at this path?")};
      if (!share) return std::move(share).error();
      parts.shares.push_back(std::move(*share));
      PAWL_ASSIGN(const std::string beside, read_file(beside_path(folder(), seat), kShareBytesMax));
      PAWL_ASSIGN(parts.besides.emplace_back(), parse_beside(beside));
      if (parts.values.empty() && path_exists(values_path(folder(), seat))) {
        PAWL_ASSIGN(parts.values, read_file(values_path(folder(), seat), kValuesBytesMax));
      }
    }
    PAWL_ASSIGN(checkpoint::StorePublishOptions options, options_of(parts));
    PAWL_TRY(check_claim(parent_, claim_in(parent_), owner_));
    options.identity = identity_;
    options.identity.written_ms = wall_ms();
    return store_.publish(parts.shares, options);
  }

 private:
  checkpoint::StoreFolder store_;
  const std::string parent_;
  const std::string owner_;
  const checkpoint::StoreIdentity identity_;
};

// Where nothing is left of the one before, nothing is known of what was before that. What may be readable later fails: the history of all that
// come after would be cut.
Result<checkpoint::StoreIdentity> identity_after(const std::string& before) {
  const auto step = checkpoint::parse_checkpoint_name(last_name(before));
  if (!step) return new_identity();
  const Result<checkpoint::StoreIdentity> last = checkpoint::read_store_identity(before);
  if (!last && last.error().code != Code::not_found && last.error().code != Code::corrupt) return last.error();
  if (!last) return new_identity();
  return job::identity_after(*step, *last, [&](std::uint64_t other) {
    return path_exists(checkpoint_path(parent_path(before), Step(other)));
  });
}

// Of attempts whose root was killed: what nobody holds any more. A later one to the same place would take it over, but none comes.
void remove_leftovers(const std::string& folder) {
  const Result<std::vector<std::string>> names = real_files().list(folder);
  const std::string suffix(checkpoint::kPartialSuffix);
  for (const std::string& name : names ? *names : std::vector<std::string>()) {
    const std::string place = name.ends_with(suffix) ? name.substr(0, name.size() - suffix.size()) : "";
    if (!checkpoint::parse_checkpoint_name(place)) continue;
    checkpoint::StoreOptions options;
    options.overwrite = true;
    (void)checkpoint::StoreFolder::begin(join_path(folder, place), options);
  }
}

class FileCheckpointStore : public CheckpointStore {
 public:
  Result<std::unique_ptr<OpenCheckpoint>> begin(const CheckpointOrder& order) override {
    const std::string& path = order.path;
    PAWL_TRY(check_claim(parent_path(path), claim_in(parent_path(path)), order.owner));
    remove_leftovers(parent_path(path));
    PAWL_ASSIGN(checkpoint::StoreIdentity identity, identity_after(order.before));
    checkpoint::StoreOptions options;
    options.overwrite = true;
    options.attempt = text("attempt-", order.attempt, "-", identity.id);  // numbers begin anew with each run of a job
    Result<checkpoint::StoreFolder> store = checkpoint::StoreFolder::begin(path, options);
    for (int i = 0; i < kRemovalTries && !store && store.error().code == Code::stale; ++i) {
      std::this_thread::sleep_for(kRemovalPause);  // the one before is being removed
      store = checkpoint::StoreFolder::begin(path, options);
    }
    if (!store) return std::move(store).error();
    return std::unique_ptr<OpenCheckpoint>(
        std::make_unique<FileCheckpoint>(std::move(*store), parent_path(path), order.owner, std::move(identity)));
  }

  Result<std::unique_ptr<StoredCheckpoint>> open(const std::string& path) override {
    return open_stored_checkpoint(path);
  }

  Status write(const std::string& folder, const SeatPart& part, PartProgress& progress) override {
    be_nice();
    checkpoint::StorePartOptions options;
    options.execution.memory_bytes = kBufferBytes;
    options.execution.threads = writer_threads();
    options.execution.cancel = &progress.cancel;
    options.proof = part.proof;
    options.pace = progress.pace;
    options.execution.progress = [&progress, before = progress.bytes.load()](const checkpoint::ExecuteProgress& done) {
      progress.bytes = before + done.bytes_done;
    };
    PAWL_ASSIGN(const std::string share, checkpoint::write_store_part(folder, part.seat.value, part.pieces, options));
    if (!part.values.empty()) PAWL_TRY(write_file_atomically(values_path(folder, part.seat), part.values));
    PAWL_TRY(write_file_atomically(beside_path(folder, part.seat), part.beside));
    return write_file_atomically(share_path(folder, part.seat), share);
  }

  Result<std::vector<checkpoint::ListedCheckpoint>> list(const std::string& folder) override {
    be_nice();
    return checkpoint::list_checkpoints(folder);
  }
  Status remove(const checkpoint::ListedCheckpoint& one, const std::string& owner) override {
    be_nice();
    PAWL_TRY(check_claimed(parent_path(one.path), claim_in(parent_path(one.path)), owner));
    return checkpoint::remove_checkpoint(one.path, one.identity.id);
  }
  Status finish_removals(const std::string& folder, const std::string& owner) override {
    be_nice();
    PAWL_TRY(check_claimed(folder, claim_in(folder), owner));
    return checkpoint::finish_removals(folder);
  }
};

}  // namespace

std::unique_ptr<CheckpointStore> file_checkpoint_store() {
  return std::make_unique<FileCheckpointStore>();
}

std::string claim_text(const std::string& job, const std::string& token_digest) {
  return json{{"job", job}, {"token_digest", token_digest}}.dump();
}

Status claim_checkpoint_folder(const std::string& path, const std::string& job, const std::string& token_digest,
                               bool resumes) {
  std::error_code failed;
  std::filesystem::create_directories(path, failed);
  if (failed) return Error{Code::io, text("make the folder ", path, ": ", failed.message())};
  const std::string claim = join_path(path, kClaimName);
  const std::string ours = claim_text(job, token_digest);
  PAWL_ASSIGN(const std::vector<std::string> names, real_files().list(path));
  const Result<std::string> there = read_file(claim, kClaimBytesMax);
  if (there && *there == ours) return {};
  const auto is_checkpoint = [](const std::string& name) {
    return checkpoint::parse_checkpoint_name(name).has_value();
  };
  if (const auto found = std::ranges::find_if(names, is_checkpoint); found != names.end() && !resumes)
    return claimed_by_another(path, there, *found);
  return write_file_atomically(claim, ours);
}

Result<checkpoint::StorePublishOptions> publish_options_of(std::string_view values) {
  checkpoint::StorePublishOptions options;
  if (values.empty()) return options;
  const json object = json::parse(values, nullptr, false);
  const json& aliases = member_of(object, "aliases");
  if (!object.contains("values") || !aliases.is_object())
    return Error{Code::corrupt, R"(values: not of the form {"values": ANY, "aliases": {TEXT: TEXT}})"};
  options.values = object["values"].dump(-1, ' ', false, json::error_handler_t::replace);
  for (const auto& [alias, kept] : aliases.items()) {
    if (!kept.is_string()) return Error{Code::corrupt, text("values: alias ", alias, " is no text")};
    options.aliases.emplace_back(alias, kept.get<std::string>());
  }
  return options;
}

}  // namespace pawl::job
