#include "job/persist/checkpoint_store.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/json_access.h"
#include "base/text.h"
#include "checkpoint/output/partial_output.h"
#include "env/files.h"

namespace pawl::job {
namespace {

constexpr int kNice = 19;
constexpr std::uint64_t kBufferBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kShareBytesMax = std::uint64_t{1} << 30;
constexpr std::string_view kClaimName = "pawl-job.json";
constexpr std::uint64_t kClaimBytesMax = 4096;
constexpr std::uint64_t kValuesBytesMax = std::uint64_t{64} << 20;

// Beside the folder in which the checkpoint grows: none of these is published.
std::string share_path(const std::string& folder, Seat seat) {
  return text(folder, "-share-", seat.value);
}
std::string values_path(const std::string& folder, Seat seat) {
  return text(folder, "-values-", seat.value);
}

// Of this task, and of the threads that it begins. Idle would be less still, and starve where trainers take every core.
void be_nice() {
  (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), kNice);
}

// A few: what is written is bound by the storage, and trainers want the rest.
std::uint32_t writer_threads() {
  return std::clamp(std::thread::hardware_concurrency() / 8, 1u, 4u);
}

class FileCheckpoint : public OpenCheckpoint {
 public:
  explicit FileCheckpoint(checkpoint::StoreFolder store) : store_(std::move(store)) {}
  const std::string& folder() const override { return store_.folder(); }

  Status publish(std::uint32_t seat_count) override {
    std::vector<std::string> shares;
    std::string values;
    for (Seat seat(0); seat.value < seat_count; ++seat.value) {
      Result<std::string> share = read_file(share_path(folder(), seat), kShareBytesMax);
      if (!share && share.error().code == Code::not_found)
        return Error{Code::not_found, text("the part of seat ", seat.value, " is not in ", folder(),
                                           ": do all nodes see the same folder at this path?")};
      if (!share) return std::move(share).error();
      shares.push_back(std::move(*share));
      if (values.empty() && path_exists(values_path(folder(), seat))) {
        PAWL_ASSIGN(values, read_file(values_path(folder(), seat), kValuesBytesMax));
      }
    }
    PAWL_ASSIGN(checkpoint::StorePublishOptions options, publish_options_of(values));
    options.equal_boxes = checkpoint::EqualBoxes::keep_first;
    return store_.publish(shares, options);
  }

 private:
  checkpoint::StoreFolder store_;
};

// Of attempts whose root was killed: what nobody holds any more. A later one to the same place would take it over, but none comes.
void remove_leftovers(const std::string& folder) {
  const Result<std::vector<std::string>> names = real_files().list(folder);
  const std::string suffix(checkpoint::kPartialSuffix);
  for (const std::string& name : names ? *names : std::vector<std::string>()) {
    if (!name.starts_with("step-") || !name.ends_with(suffix)) continue;
    checkpoint::StoreOptions options;
    options.overwrite = true;
    (void)checkpoint::StoreFolder::begin(join_path(folder, name.substr(0, name.size() - suffix.size())), options);
  }
}

class FileCheckpointStore : public CheckpointStore {
 public:
  Result<std::unique_ptr<OpenCheckpoint>> begin(const std::string& path, std::uint64_t attempt) override {
    remove_leftovers(parent_path(path));
    checkpoint::StoreOptions options;
    options.overwrite = true;
    options.attempt = text("attempt-", attempt);
    PAWL_ASSIGN(checkpoint::StoreFolder store, checkpoint::StoreFolder::begin(path, options));
    return std::unique_ptr<OpenCheckpoint>(std::make_unique<FileCheckpoint>(std::move(store)));
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
    options.execution.progress = [&progress, before = progress.bytes.load()](const checkpoint::ExecuteProgress& done) {
      progress.bytes = before + done.bytes_done;
    };
    PAWL_ASSIGN(const std::string share, checkpoint::write_store_part(folder, part.seat.value, part.pieces, options));
    if (!part.values.empty()) PAWL_TRY(write_file_atomically(values_path(folder, part.seat), part.values));
    return write_file_atomically(share_path(folder, part.seat), share);
  }
};

}  // namespace

std::unique_ptr<CheckpointStore> file_checkpoint_store() {
  return std::make_unique<FileCheckpointStore>();
}

Status claim_checkpoint_folder(const std::string& path, const std::string& job, const std::string& token_digest,
                               bool resumes) {
  std::error_code failed;
  std::filesystem::create_directories(path, failed);
  if (failed) return Error{Code::io, text("make the folder ", path, ": ", failed.message())};
  const std::string claim = join_path(path, kClaimName);
  const std::string ours = json{{"job", job}, {"token_digest", token_digest}}.dump();
  PAWL_ASSIGN(const std::vector<std::string> names, real_files().list(path));
  const Result<std::string> there = read_file(claim, kClaimBytesMax);
  if (there && *there == ours) return {};
  const auto is_checkpoint = [](const std::string& name) { return name.starts_with("step-"); };
  if (const auto found = std::ranges::find_if(names, is_checkpoint); found != names.end() && !resumes) {
    const std::string whose = there ? string_in(json::parse(*there, nullptr, false), "job") : "";
    return Error{Code::invalid,
                 text(path, " holds checkpoints", whose.empty() ? "" : " of job " + whose, " already (", *found,
                      "), which this job would replace: name another folder, move them away, or go on from the newest "
                      "(--resume auto)")};
  }
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
