// Fetch: one slot of one seat, from the daemon that holds it into this node's own arena, during a recovery.
//
// Every bucket is verified where it landed. One that is wrong proves nothing against the source: it may have been damaged
// on the way, or here. The slot is asked for again, and the source then proves each bucket in its own memory first; only
// its own word strikes it out. A connection on which nothing comes for long is made anew: the link may be cut, or only
// that connection. Runs in tasks of its own; the slots at both ends are frozen meanwhile. end() never waits:
// a task that does not touch memory then never will, and one that does is counted (StreamContext::workers) until it has
// stopped. So an arena that is still being made, or a connection, holds up no further recovery.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "job/daemon/memory.h"
#include "job/daemon/replication.h"
#include "job/recovery/recovery_waits.h"

namespace pawl::job {

class Fetch : public std::enable_shared_from_this<Fetch> {
 public:
  struct Options {
    Hello hello;          // purpose fetch
    std::string address;  // of the source
    Source source;
    StreamContext context;
    Duration patience{};  // Deadlines::fetch
    // On the fetch's thread: the own arena for this spec (made by the loop).
    std::function<Result<ArenaHandle>(const ArenaSpec&)> arena_for;
    // Any thread, each time that the slot is open: its buckets are ready from now on, one after another, each verified.
    std::function<void()> on_filling = {};
    // Any thread, once. `corrupt`: the source itself says that it hasn't the slot, or not right: strike it out.
    // `cancelled`: ended. All else: this node can't do it, the source is sound.
    std::function<void(Status, std::uint64_t bytes)> on_done;
  };
  static std::shared_ptr<Fetch> start(Options options);
  void end();
  [[nodiscard]] Seat seat() const { return options_.source.seat; }
  [[nodiscard]] FetchState state() const;  // any thread

 private:
  explicit Fetch(Options options) : options_(std::move(options)) {}
  [[nodiscard]] Status run();
  [[nodiscard]] Status attempt(const Address& address);
  [[nodiscard]] Status receive_slot(Stream& stream);
  [[nodiscard]] Deadline deadline(std::uint64_t bytes = 0) const;  // for what comes next, which takes that many to make
  [[nodiscard]] Status fill(const Slot& slot, const SlotBeginMessage& begin, Stream& stream);
  void note(const std::function<void(FetchState&)>& change);
  Options options_;
  bool prove_ = false;  // ask the source to prove what it has
  std::atomic<bool> ended_{false};
  mutable std::mutex mutex_;
  Stream* stream_ = nullptr;  // the live connection, for end(); under mutex_
  FetchState state_;          // under mutex_
};

// The source's end, after the hello was welcomed: answers one `fetch` and ends. `find` is asked on the loop.
class FetchServer : public std::enable_shared_from_this<FetchServer> {
 public:
  struct Options {
    std::unique_ptr<Stream> stream;
    StreamContext context;
    std::function<ArenaHandle(ArenaKind, Seat)> find;  // any thread; waits for the loop
  };
  static std::shared_ptr<FetchServer> start(Options options);
  void end();

 private:
  explicit FetchServer(Options options);
  [[nodiscard]] Status serve();
  Options options_;
  std::unique_ptr<Stream> stream_;
};

// The slot to restore (generation, step) into, without losing one that a further recovery may need: the very slot if it
// is there, else an empty or dirty one, else the one with the least step.
[[nodiscard]] Slot slot_to_fill(const Arena& arena, Generation generation, Step step);
// The sealed slot (generation, step); false if there is none.
[[nodiscard]] bool find_sealed(const Arena& arena, Generation generation, Step step, Slot& slot, std::uint32_t& index);
// The slot that a fetch has opened for (generation, step), sealed or not yet. Before a fetch has, a dirty one may be what
// a capture left behind.
[[nodiscard]] bool find_filling(const Arena& arena, Generation generation, Step step, Slot& slot, std::uint32_t& index);

}  // namespace pawl::job
