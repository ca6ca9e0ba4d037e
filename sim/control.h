// SimulatedControl: one control server (the shipped KeyValues, with its revisions, leases and history) and clients that
// reach it over paths that may be cut, slow, or lose an answer.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "job/control/control.h"
#include "job/control/key_values.h"
#include "machine.h"

namespace pawl::sim {

// What a node watches. Each is a stream of its own, and may be late or lost alone.
enum class WatchKind : unsigned char { keys, reports, nodes };
inline constexpr std::size_t kWatchKinds = 3;

// What goes wrong with a put.
enum class PutFault : unsigned char {
  none,
  dies_before,  // its client is killed before it is carried out
  dies_after,   // and before it hears of it
  late,         // it is carried out a while later
  never,        // its client is told that it was, and it was not
};

// What faults do to one watch of a machine, whichever process of it watches.
struct WatchTrouble {
  Duration late{};  // each change is told so much later, at least
  int losses = 0;   // as many faults last: its stream is lost, and begun anew after them
};

class ControlServerModel {
 public:
  explicit ControlServerModel(Machines& machines);

  [[nodiscard]] std::unique_ptr<job::Control> connect(Process& client);

  // Faults.
  // As many faults last: nobody serves, and calls fail when their deadline passes; it takes calls and answers none.
  int downs = 0;
  int stops = 0;
  Duration disk = std::chrono::microseconds(300);              // of each change
  std::vector<int> cuts;                                       // by machine: it can't reach the control
  std::vector<std::array<WatchTrouble, kWatchKinds>> watches;  // by machine
  void compact();  // the history up to now is dropped: a watch that is behind has to list

  job::KeyValues keys;
  WaitQueue changed;                          // a key, or a path
  std::map<std::string, WaitQueue> watchers;  // by prefix: a key of these, or a path
  // May change the value.
  std::function<PutFault(Process& client, const std::string& key, std::string& value)> before_put;
  std::function<void(const std::string& key, const std::string& value)> on_put;  // as it becomes true
  // Of what a watch is about to tell; may change it. False: it is not told.
  std::function<bool(job::WatchEvent& event)> before_told;

  void touch();                        // after any change of the above
  void touch(const std::string& key);  // after a change of this key: of a thousand watches most watch others
  [[nodiscard]] bool reachable(std::uint32_t machine) const { return downs == 0 && cuts[machine] == 0; }
  [[nodiscard]] const WatchTrouble& trouble(std::uint32_t machine, WatchKind kind) const {
    return watches[machine][static_cast<std::size_t>(kind)];
  }
  [[nodiscard]] job::KeyValues::Time time() const { return job::KeyValues::Time(machines_.scheduler().now()); }
  void expire();

 private:
  Machines& machines_;
};

}  // namespace pawl::sim
