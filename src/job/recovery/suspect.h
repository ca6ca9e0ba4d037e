// Suspect: the node that a failed exchange points to, from what the trainers found when it failed.
//
// Each trainer whose collective failed says whom it found gone before it closed its own connections (FaultReport). A
// failure spreads: whoever fails closes its connections, and its neighbours fail for that. So one word proves nothing, a
// node that finds several gone says less of each, and one that fails alone speaks for all its seats. Times are not
// compared: two machines' clocks differ by more than a failure takes to spread.
// Evidence against a node are the words of at least two other nodes, together weightier than those against any other;
// or that its trainer alone has failed, without finding anyone gone, while those of two other nodes at least go on waiting.
// Who itself found one node gone is none: it may have failed for that one, and those behind it for its own end.
// Else there is no suspect: of a cut between two nodes nobody can tell whose end it is. Never a guess. Pure.
#pragma once

#include <map>
#include <optional>

#include "job/membership/job_state.h"

namespace pawl::job {

// More are not written for one generation: what many say alike, some say.
inline constexpr std::size_t kFaultReportsMax = 64;

// `reports`: of the state's generation. A host stands for the member whose address has it, if it is one member only.
[[nodiscard]] std::optional<NodeLife> name_suspect(const JobState& state, const std::map<Seat, FaultReport>& reports);

}  // namespace pawl::job
