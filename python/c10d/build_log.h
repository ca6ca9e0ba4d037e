// BuildLog: what the collectives before the first step gave, for the seats that are built again later.
//
// A seat that takes a lost one's place runs the script from its beginning, alone: the other ranks are long past their
// models' making. Whatever that making got from a collective (a seed, a mean, an object of rank 0) must be what it was,
// or the seat trains differently. So each process records, from pawl.init() to its first block, the results that are
// equal on all ranks of a group, by group and by place in the group's order. A late seat replays them instead of
// loopback's own answers.
// Of a result above 64 KiB, and of any once 8 MiB are kept, only the digest is kept: the replay then finds out whether
// loopback gives the same, and remembers where it doesn't. A result that each rank has for itself (a scatter, a
// receive) can't be replayed, since the rank that had it is gone: its name is remembered, so that it can be refused.
// Collectives that spread or cut a module's state (quiet) are only counted: protected state is restored afterwards.
// Those of job.aside() (paused) are not even that: an evaluation may be left out, and its results are not kept.
// Who shares a log comes to it only when its lost step has run out. So a replay doesn't wait for the log where the
// results set nothing (quiet), or are only for a check of torch's that all ranks have the same (compared): they are
// loopback's, and are proven when the log is there, at the latest by settle().
// Threads: any; `fetch` is called with Python's lock.
#pragma once

#include <functional>
#include <map>
#include <mutex>

#include "torch_headers.h"

namespace pawl {

// What a collective leaves in its outputs.
enum class Results : std::uint8_t {
  none,    // nothing
  shared,  // the same on all ranks of the group
  own      // each rank has its own, or only one has any
};

class BuildLog {
 public:
  struct Place {
    std::string group;
    std::size_t number = 0;
    const char* collective = "";
  };
  struct Differing {
    std::string what;
    std::uintptr_t address;  // of the first tensor that it is in
  };
  struct Digest {
    std::string what;
    std::uint64_t digest;  // of the results; 0: only counted
  };
  // The encoded log of a group; nothing: nobody has it.
  using Fetch = std::function<std::optional<std::string>(const std::string& group)>;

  static BuildLog& only();
  BuildLog(const BuildLog&) = delete;
  BuildLog& operator=(const BuildLog&) = delete;

  void record();
  void replay(Fetch fetch);
  void end();  // what was recorded or fetched stays, for encoded()
  // Also after the end: fetches what logs are missing yet, and proves the results that did not wait for them. With
  // Python's lock. Throws as replay() does.
  void settle();
  void set_quiet(bool quiet);
  void set_compared(bool compared);
  void set_paused(bool paused);

  // A group has been made: its log is known, and empty.
  void know(const std::string& group);
  // Replaying, and somebody has the log of that group, which is fetched.
  [[nodiscard]] bool knows(const std::string& group);
  // Of the next collective of that group; nothing: it isn't logged.
  [[nodiscard]] std::optional<Place> next(const std::string& group, const char* collective, Results results);
  // It has succeeded. Nothing happens after the end: whoever waits so late may have written to the outputs.
  void succeeded(const Place& place, const Tensors& outputs);
  // In loopback: puts the results into `outputs`, or else calls `local` and compares. Throws: c10::Error where the
  // script does another collective than it did when the job began, or the log is damaged.
  void replay(const Place& place, const Tensors& outputs, const std::function<void()>& local);

  [[nodiscard]] std::map<std::string, std::string> encoded() const;  // by group
  [[nodiscard]] std::vector<std::string> own() const;                // collectives that can't be replayed
  [[nodiscard]] std::vector<Differing> differing() const;
  // Recorded, but too big to be kept.
  [[nodiscard]] std::vector<Differing> big() const;
  // Of a replay that is over: groups in which the script did fewer collectives than when the job began.
  [[nodiscard]] std::vector<std::string> left_out() const;
  [[nodiscard]] std::vector<std::string> unknown() const;  // groups whose log nobody has: they have what loopback gave
  [[nodiscard]] std::map<std::string, std::vector<Digest>> digests() const;  // by group, in order
  void trust();  // what loopback gave has turned out to be right

 private:
  enum class Mode : std::uint8_t { off, recording, replaying };
  enum class Kind : std::uint8_t { counted, digested, kept };
  struct Record {
    Kind kind = Kind::counted;
    std::string collective;
    std::uint64_t bytes = 0, digest = 0;
    std::string value;  // if kept
  };
  struct Group {
    std::vector<Record> records;
    std::vector<Record> unproven;  // loopback's, of the first collectives, while it is not ready
    std::size_t next = 0;
    bool ready = false;  // recorded, or fetched
    bool known = true;   // somebody had it, if it was fetched
  };
  BuildLog() = default;
  void fill(Record& record, const Tensors& outputs);
  Record record_of(const Place& place, const Tensors& outputs);
  static void prove(const std::string& group, const std::vector<Record>& unproven, const std::vector<Record>& records);
  static const Record& record_at(const Place& place, const std::vector<Record>& records);
  Group& fetched(const std::string& group, std::unique_lock<std::mutex>& lock);
  static std::string encode(const std::vector<Record>& records);
  static std::vector<Record> decode(const std::string& text);

  mutable std::mutex mutex_;
  std::atomic<Mode> mode_{Mode::off};
  bool quiet_ = false, compared_ = false, paused_ = false;
  Fetch fetch_;
  std::map<std::string, Group> groups_;
  std::uint64_t kept_bytes_ = 0;
  std::vector<std::string> own_;
  std::vector<Differing> differing_, big_;
};

}  // namespace pawl
