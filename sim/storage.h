// Storage: where a simulated job's checkpoints go, in virtual time and without files; and what must be true of them.
//
// All nodes see the same. What a seat has written is kept as the bytes that lay in its slot while they were copied, so a
// checkpoint of two steps, or of a slot that somebody overwrote, shows. A call takes its time; by the seed's choice some take
// long, fail, or hang. What a killed process has begun stays as it was then.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/result.h"
#include "job/persist/checkpoint_store.h"
#include "job/persist/persist_record.h"
#include "job/persist/persist_round.h"
#include "job/recovery/stop_order.h"
#include "job/snapshot/slot_word.h"
#include "machine.h"

namespace pawl::sim {

class Cluster;
struct KeptArena;

enum class StorageHealth : unsigned char {
  none,  // the job stores nothing
  sound,
  slow,
  failing,  // one call in six fails, before or after it has done what it does; until calm()
  hanging,  // one in eight takes long, some of them longer than anybody waits; until calm()
  broken,   // from some moment on all calls fail
  stuck,    // from some moment on none returns
};
[[nodiscard]] const char* name_of(StorageHealth health);

struct StorageOptions {
  StorageHealth health = StorageHealth::none;
  std::uint64_t every_steps = 0;  // or
  std::uint64_t every_ms = 0;     // or
  bool every_auto = false;
  std::uint64_t asks_in = 0;    // of so many steps of a trainer it asks in one for a checkpoint; 0: never
  Duration spoiled_after{};     // since the start: broken, or stuck
  std::uint64_t keep_last = 0;  // as of the job's spec
  std::uint64_t keep_every = 0;
};
[[nodiscard]] StorageOptions draw_storage(std::uint64_t seed);  // from a stream of its own

// What one part has of one tensor, which has one dimension.
struct StoredBytes {
  std::string name, role;
  std::uint64_t begin_bytes = 0;  // in the tensor
  std::vector<std::byte> bytes;
};
using StoredParts = std::map<std::uint32_t, std::vector<StoredBytes>>;  // by seat

class Storage {
 public:
  explicit Storage(Cluster& cluster);

  [[nodiscard]] bool is_on() const;
  [[nodiscard]] std::unique_ptr<job::CheckpointStore> client(Process& process);  // as this process sees it
  void calm();                                                    // what fails or hangs now and then does so no more
  [[nodiscard]] Step newest() const { return newest_; }           // that is published
  [[nodiscard]] Step known() const { return record_.published; }  // the job knows of it

  // --- What is told to it, to be checked
  void on_record(const std::string& json);  // the key `persist` is this now
  void on_last_record(const std::string& json);
  void sealed(Seat before, Step step) { sealed_[step.value].insert(before.value); }  // by a trainer, or restored
  [[nodiscard]] bool is_flipped(Step step) const { return flipped_.contains(step.value); }
  void flipped(Step step) { flipped_.insert(step.value); }  // bits of it, in some memory
  void went_back(Step resume);                              // the job goes on from that checkpoint
  void goes_on_from(Step resume);                           // or from memory
  void on_strike();                                         // a fault
  void look();                                              // now and then
  void check_end();                                         // the job has finished
  [[nodiscard]] std::string describe() const;
  [[nodiscard]] std::set<std::uint32_t> equal_to(Seat seat) const;  // seats that have its bytes

 private:
  friend class StorageClient;
  friend class SimulatedOpen;
  enum class Phase : unsigned char { idle, ordered, pinning, writing, publishing };
  struct Folder {
    std::string path;
    std::uint64_t attempt = 0;
    Process* owner = nullptr;
    bool is_gone = false;
    StoredParts parts;
    checkpoint::StoreIdentity identity;
    std::string after;  // the record named this one as published when it was begun
  };
  struct Call {
    Duration takes{};
    bool fails = false;
    bool fails_after = false;  // it has done what it does by then
  };
  using SlotName = std::tuple<std::uint32_t, std::string, std::uint32_t>;  // machine, arena, index

  // Calls of processes: on fibers.
  [[nodiscard]] Call drawn();
  [[nodiscard]] bool is_spoiled() const;
  Status enter(const Call& call);
  [[nodiscard]] Status begin(Process& process, const job::CheckpointOrder& order, std::string& folder);
  [[nodiscard]] checkpoint::StoreIdentity identity_after(const job::CheckpointOrder& order) const;
  [[nodiscard]] Status write(const std::string& folder, const job::SeatPart& part, job::PartProgress& progress);
  [[nodiscard]] Status publish(const std::string& folder, std::uint32_t seat_count);
  void remove(const std::string& folder);
  [[nodiscard]] Result<std::vector<checkpoint::ListedCheckpoint>> list(const std::string& folder);
  [[nodiscard]] Status remove(const checkpoint::ListedCheckpoint& one);
  [[nodiscard]] Result<std::unique_ptr<job::StoredCheckpoint>> open(const std::string& path);

  void check_published(const Folder& folder, std::uint32_t seat_count);
  void look_at_pins(KeptArena& kept);
  void look_at_pace();
  [[nodiscard]] bool is_untroubled(std::uint32_t machine) const;
  [[nodiscard]] Phase phase() const;

  Cluster& cluster_;
  std::mt19937_64 random_;
  std::map<std::string, Folder> folders_;  // that were begun
  std::map<std::string, std::shared_ptr<const StoredParts>> published_;
  std::map<std::string, checkpoint::StoreIdentity> identities_;  // of those
  std::set<std::string> history_;                                // ids of those that led to where the job is
  Step newest_;
  bool is_calm_ = false;
  Duration hung_until_{};  // the last call that took long
  int publishing_ = 0;
  job::PersistRecord record_;
  std::map<std::uint64_t, std::pair<Generation, Step>> attempts_;
  bool may_decrease_ = false;                                // the job went back
  std::map<std::uint64_t, std::set<std::uint32_t>> sealed_;  // by step: seats before
  std::set<std::uint64_t> flipped_;
  std::map<SlotName, job::SlotWord> pinned_;
  std::map<SlotName, Duration> idle_pinned_since_;  // though nothing is being written
  Duration published_at_{};                         // or since then all was well
  std::uint64_t committed_then_ = 0;
  std::array<std::uint32_t, 5> strikes_{};  // by phase
  std::uint32_t publications_ = 0, removals_ = 0;
};

// All of the state of `seat`, whose bytes these other seats have, too. Fails: `corrupt`, naming a byte that nobody wrote.
[[nodiscard]] Result<std::vector<std::byte>> state_in(const StoredParts& parts, std::uint32_t seat,
                                                      const std::set<std::uint32_t>& equal);

// Once or twice, at a time drawn from the seed, when something has been published: more nodes die than copies are for. `on_end`: that
// is over.
void lose_too_much(Cluster& cluster, std::function<void()> on_end);

}  // namespace pawl::sim
