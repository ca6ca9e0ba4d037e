// Suspicion: when a member that is not heard any more is replaced. Evidence, not accusation.
//
// *Proof* suffices from one node: the member's address refuses connections (its keeper owned the socket), or its node
// has begun another life. Silence is no proof: whoever has lost his own cable hears nobody. So a node that doesn't hear
// a member accuses it, by a key that all see and that is erased when the member is heard again. A member is *convicted*
// when more than half of its witnesses accuse it, and the members that are then left and registered are at least half.
//
// The witnesses of a member are nodes that keep a link to it and are not absent themselves (is_absent): the members
// beside it on the ring and in the tree; where only two are left, also the lowest registered spare, so that three can
// tell whose cable is cut. In a recovery the survivors close up, so that nobody is left without witnesses. To the root all
// keep a link, and all see each word against it: in a large job only some bear witness, evenly spread over all.
// A node accuses only
//   (1) after it was awake and answered by the control for the deadline for silence, and heard nothing in that time, and as
//       long besides as a killed pawld of the accused may take to give its memory back (time_to_end); and
//   (2) if it hears at least half of those it has links to: else it suspects itself; or if the accused is absent, which
//       the accuser is not. Of up to five members all are linked with all, by links of one or the other: there it counts
//       both, and hears half of the others only on the side that is more than half of the job.
//
// Why a sound member is not convicted. A node without data links hears nobody, so by (2) it accuses only who has lost
// its registration; and of two witnesses or more its word is one. After a control that was away, or a stop of the
// accuser, (1) gives everyone the time that a pawld needs to be heard again. Members that the control can't reach but
// that hear each other: if they are more than half of all, those that are left registered are not half, and nobody is
// convicted; if they are half or fewer, they fence themselves (must_fence). Members cut off from the control at one moment
// lose their registrations within a quarter of a lease of each other, which is less than `absence`: by the time that one
// of them is absent, and counts as a witness no more, all of them are missing from the half.
// Why a dead one is. If all others are sound: of three members or more, every witness hears all its other neighbours,
// one at least of two, and accuses it after `silence`. If up to half of the members fall silent together, the witnesses
// that are left accuse the first by (2)'s absence, after lease + absence; whom the fallen alone had watched is watched by
// others when they are gone, and a silence later goes, too. Several that lose their data links together and keep the
// control, and hear each other: up to five members replace any smaller side. In larger jobs a node next to a large part
// that is cut off hears few and says nothing; a third that are neighbours are replaced (of nine members), more may not be.
// In a large job witnesses don't know who is registered, and need not: they accuse whom they don't hear, and who hears less than
// half looks at single keys for (2). Some others know (node_followers.h) and convict, by the words of accusers that are registered.
// suspicion_model_test.cc tries every division of small jobs. Pure.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <vector>

#include "job/recovery/absent_members.h"
#include "job/recovery/decide.h"

namespace pawl::job {

// What this node's link to another says of it.
struct Contact {
  NodeLife life;
  Duration heard{};           // steady clock: its last sign of life; at first, when it was first looked for
  Duration heard_boottime{};  // the same moment on the clock that runs on in a suspended machine
  bool refused = false;       // its address refuses: proof
};

// With whom this node should keep links. Empty if the job is over. A node that is no member watches the members if none
// of them is registered (decide_orphaned), or as the third of a job of two.
[[nodiscard]] std::vector<Member> watched_by(const JobState& state, const Registrations& registrations, NodeLife self);
// The nodes that have a link with this one, whoever of the two has made it: of up to five members all others.
struct Links {
  std::vector<NodeLife> lives;  // by position
  bool with_all = true;         // there are no others
};
[[nodiscard]] Links links_of(const JobState& state, const Registrations& registrations, NodeLife self);
struct SuspicionView {
  const JobState& state;
  const Registrations& registrations;
  std::vector<Accusation> accusations;  // of the state's generation
  std::span<const Contact> contacts;
  NodeLife self;
  std::optional<Duration> attentive_since;  // Attention
  Duration now{};
  std::vector<NodeId> beating = {};  // have beaten on links that they made, within the deadline for silence
  // It knows who is registered and most others don't (node_followers.h): it judges by their words, too.
  bool judges_all = false;
};
// Whose word counts about a member.
[[nodiscard]] std::vector<NodeLife> witnesses_of(const SuspicionView& view, NodeLife victim,
                                                 const Deadlines& deadlines);
// Whom this node accuses now. What it said before and does not hold any more is to be withdrawn.
[[nodiscard]] std::vector<NodeLife> accused_by(const SuspicionView& view, const Deadlines& deadlines);
// Who does not know who is registered looks at the keys of these: it hears them not, and too few others to accuse them for that.
[[nodiscard]] std::vector<NodeLife> looked_up_by(const SuspicionView& view, const Deadlines& deadlines);
// Who is convicted of those that it accuses or, if it judges for all, that anybody does; for a member. Never stored: asked again
// before each compare-and-swap.
[[nodiscard]] std::vector<Cause> convicted(const SuspicionView& view, const Deadlines& deadlines);

// Adds to `view` whom this node has links with, and whom it hears. `beats`: when others last beat on links that they made,
// by boottime.
void count_heard(FenceView& view, const Links& links, std::span<const Contact> contacts,
                 const std::map<NodeId, Duration>& beats, const Deadlines& deadlines);

// Its registration ended so long ago that it would have been renewed if the node and its way to the control were sound.
[[nodiscard]] bool is_absent(const Registrations& registrations, NodeLife life, Duration attentive_since, Duration now,
                             const Deadlines& deadlines);
// Whether enough members are left without `victims`: registered, and at least half of those not evicted yet. Nobody is
// evicted for silence, a lease or lateness otherwise; many that vanish at once are the control's fault, not theirs.
[[nodiscard]] bool leaves_quorum(const JobState& state, const Registrations& registrations,
                                 std::span<const NodeLife> victims);

}  // namespace pawl::job
