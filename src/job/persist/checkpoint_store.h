// CheckpointStore: where a job's checkpoints are written, part by part from many nodes; the seam where a simulation has its own.
//
// One process begins a checkpoint and publishes it; others write a part each into the folder that it names. All calls block,
// for as long as the storage does: they belong on tasks. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "checkpoint/formats/native/store_manifest.h"
#include "checkpoint/store/checkpoint_folder.h"
#include "checkpoint/store/store_folder.h"
#include "job/layout/seat_layout.h"
#include "job/persist/seat_share.h"

namespace pawl::job {

// One that was begun. What is not published is removed with it.
class OpenCheckpoint {
 public:
  virtual ~OpenCheckpoint() = default;
  [[nodiscard]] virtual const std::string& folder() const = 0;  // as every node of the job names it
  // Of seats 0 to seat_count-1, which all have written their part. Afterwards it is at its path, on the disk, proven to be
  // complete. Fails as StoreFolder::publish, and `not_found` naming a seat whose part is not there.
  [[nodiscard]] virtual Status publish(std::uint32_t seat_count) = 0;
};

struct CheckpointOrder {
  std::string path;           // DIR/step-N
  std::uint64_t attempt = 0;  // another one each time, so that who is late with an earlier one writes nothing into this
  std::string owner;          // the claim of the job (claim_text); empty: nobody's
  std::string before;         // the path of the one after which the job went on, its own or another's; empty: none
};

struct SeatPart {
  Seat seat;
  std::span<const checkpoint::StorePiece> pieces;
  std::string_view beside;  // a SeatBeside's text
  std::string_view
      values;  // {"values": ANY, "aliases": {ALIAS: NAME}}, or nothing: the lowest seat's that has any count
  const checkpoint::MemorySums* proof = nullptr;  // of the memory that pieces lie in; null: the caller has proven it
};

struct PartProgress {
  std::atomic<std::uint64_t> bytes{0};  // written so far; of several parts, one after another, their sum
  std::atomic<bool> cancel{false};      // set: it ends soon, as `cancelled`
  // Of all parts that share it together: returns when so many bytes may be written, or it is cancelled. Set before the first. Empty: at once.
  std::function<void(std::uint64_t bytes)> pace = {};
};

struct StoredSeat {
  Seat seat;           // its number in the job that wrote it
  std::string layout;  // its text
  SeatInfo info;
};

// What a published checkpoint holds of a job. Seats are those of the job that reads it; it may have more or fewer.
class StoredCheckpoint {
 public:
  virtual ~StoredCheckpoint() = default;
  // From which that seat goes on (job/persist/other_world.h): where there were as many, the one with its number. Fails:
  // `not_found` where no job has written it; `corrupt`; `io`.
  [[nodiscard]] virtual Result<StoredSeat> seat(Seat seat) = 0;
  // All of the payload of a slot of that seat, in that layout: every byte that is written was proven. Fails: `corrupt`, naming
  // file and record; `not_found`, `invalid` naming tensors that are not there, or are others; `io`; `cancelled`.
  [[nodiscard]] virtual Status read(Seat seat, const SeatLayout& layout, std::span<std::byte> payload,
                                    PartProgress& progress) = 0;
};

class CheckpointStore {
 public:
  virtual ~CheckpointStore() = default;
  // What stands at that path is replaced if it is a checkpoint of ours. The new one gets an id, and names those of its history that are there.
  // Fails as StoreFolder::begin, and `invalid` where another job has claimed the folder since, as publish() does then.
  [[nodiscard]] virtual Result<std::unique_ptr<OpenCheckpoint>> begin(const CheckpointOrder& order) = 0;
  [[nodiscard]] virtual Result<std::unique_ptr<StoredCheckpoint>> open(const std::string& path) = 0;
  // Fails as write_store_part, whose `proof` is the part's.
  [[nodiscard]] virtual Status write(const std::string& folder, const SeatPart& part, PartProgress& progress) = 0;
  // --- In the folder of a job's checkpoints. Those that change something fail with `invalid` unless `owner` has claimed it.
  [[nodiscard]] virtual Result<std::vector<checkpoint::ListedCheckpoint>> list(const std::string& folder) = 0;
  // As it was listed: `stale` where another one is there by now.
  [[nodiscard]] virtual Status remove(const checkpoint::ListedCheckpoint& one, const std::string& owner) = 0;
  // Deletes what removals have left that were killed.
  [[nodiscard]] virtual Status finish_removals(const std::string& folder, const std::string& owner) = 0;
};

// Of how many seats a job has written it; 0: no job has.
[[nodiscard]] std::uint32_t seat_count_in(const checkpoint::StoreManifest& manifest);

// Of a folder of the store. Fails: `not_found`, `corrupt`, `io`.
[[nodiscard]] Result<std::unique_ptr<StoredCheckpoint>> open_stored_checkpoint(const std::string& path);

// POSIX folders, which all nodes see at one path. Parts are written at the least priority that still makes progress.
[[nodiscard]] std::unique_ptr<CheckpointStore> file_checkpoint_store();

[[nodiscard]] std::string claim_text(const std::string& job, const std::string& token_digest);

// Makes the folder of a job's checkpoints if it is not there, and notes in it whose it is ("pawl-job.json"). The same job may do so
// again, and one that goes on from what is there (`resumes`). Fails: `invalid` if checkpoints of another job are there, which this
// one would replace; `io`; `full`.
[[nodiscard]] Status claim_checkpoint_folder(const std::string& path, const std::string& job,
                                             const std::string& token_digest, bool resumes = false);

// What a blob of values says. Fails: `corrupt` unless it is {"values": ANY, "aliases": {TEXT: TEXT}}; nothing is {}.
[[nodiscard]] Result<checkpoint::StorePublishOptions> publish_options_of(std::string_view values);

}  // namespace pawl::job
