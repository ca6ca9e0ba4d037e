// BesideState: what stands beside the job's state, as far as this node knows: the topology and the sheet that states name.
//
// Of each the newest: what a state names is never older than what one before it named. Pure. JobMirror keeps it.
#pragma once

#include <optional>
#include <string>

#include "job/control/control.h"
#include "job/membership/job_state.h"

namespace pawl::job {

struct BesideState {
  std::optional<Topology> topology;
  Revision topology_revision = 0;  // at which it was put
  std::optional<Sheet> sheet;
  Revision sheet_revision = 0;           // at which it was put
  std::optional<SheetName> sheet_named;  // by the state that stands
  Revision named_revision = 0;           // of that state

  struct Taken {
    std::string refused;   // not empty: a topology can't be read, why
    bool spoiled = false;  // a sheet is not what was put
  };
  [[nodiscard]] static bool has_key(const JobKeys& keys, const std::string& key);
  // A key of these, as it was put.
  Taken take(const JobKeys& keys, const std::string& key, const std::string& value, Revision revision);
  // The newest of them in a listing. They may be older ones than are known, if the control has lost data.
  Taken take_all(const JobKeys& keys, const Listing& listing);
  void note_named(std::optional<SheetName> by_state, Revision revision);  // of a state that was read
  // What this node has put with a state; the state itself is learned besides.
  void note(WrittenState written, Revision revision);

  [[nodiscard]] const Topology* known_topology() const { return topology ? &*topology : nullptr; }
  [[nodiscard]] const Sheet* known_sheet() const { return sheet ? &*sheet : nullptr; }
  // Only this one may be named again: any other has been erased. nullptr: the state that stands names none.
  [[nodiscard]] const Sheet* standing_sheet() const { return sheet && sheet->name == sheet_named ? &*sheet : nullptr; }
  // Fails: as read_state.
  [[nodiscard]] Result<JobState> read(const std::string& state) const {
    return read_state(state, known_topology(), known_sheet());
  }
};

}  // namespace pawl::job
