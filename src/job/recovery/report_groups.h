// ReportGroups: who collects the reports of which nodes in a recovery of a large job.
//
// Positions in a row of the state's topology are a group; its first survivors are its collectors. Each node knows both from
// the state; nobody agrees on anything. A node sends its report to a collector, which puts those of its group into one key
// (job/daemon/report_collector.h). Whatever becomes of that, each report is there in time: a node whose report is not
// acknowledged soon puts it itself, and one whose report was, and for which nothing came of it, does so later
// (SendingView). So a collector that lies or dies costs time and never a report.
// Pure. Which deadlines: docs/protocol.md.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "job/membership/job_state.h"
#include "job/recovery/deadlines.h"
#include "job/recovery/members.h"
#include "job/redundancy/placement.h"

namespace pawl::job {

inline constexpr std::uint32_t kReportGroupSize = 64;
inline constexpr std::size_t kCollectors = 2;  // of a group
// A larger report is put by its node itself, and so many bytes are put into one key.
inline constexpr std::size_t kCollectedReportBytesMax = std::size_t{64} << 10;
inline constexpr std::size_t kCollectedBytesMax = std::size_t{512} << 10;

struct ReportGroup {
  std::uint32_t index = 0;
  std::vector<Member> survivors;  // one entry a node, its lowest seat, by position; the first kCollectors collect
};
// That of `self`; nullopt: it puts its reports itself, since it is no survivor, or the job is one group, or nobody else
// could collect. `size`: positions of a group. Cost: O(size log seats).
[[nodiscard]] std::optional<ReportGroup> report_group_of(const JobState& state, const Roster& roster, const Ring& ring,
                                                         NodeLife self, std::uint32_t size);

// How long things take, of the deadline for inventories: all of it ends within three quarters of that.
struct ReportWaits {
  Duration collect;       // 50 ms: a collector waits so long after the first report that it has not put
  Duration acknowledged;  // 250 ms: who is not acknowledged by then puts the report itself
  Duration taken;         // 1 s: whose phase goes on for so long after that puts it, too,
  Duration spread;        // within another second, by position
};
[[nodiscard]] ReportWaits report_waits(const Deadlines& deadlines);
// Of `position` among `count`, when after `taken`.
[[nodiscard]] Duration report_delay(std::uint32_t position, std::uint32_t count, const ReportWaits& waits);

// What a node does next about one report.
struct SendingView {
  std::size_t collectors = 0;  // others that could collect it, or itself as one
  std::size_t tried = 0;       // to so many it was sent
  bool refused = false;        // by a collector: it has another one of this node
  bool line_lost = false;      // to the last that it was sent to
  bool acknowledged = false;
  bool put = false;           // by itself, or that is under way
  bool phase_goes_on = true;  // of this kind of report, in its generation
  Duration since_begun{};
  Duration since_acknowledged{};
  Duration delay{};  // report_delay
};
enum class SendingStep { wait, send_to_next, put_itself, done };
[[nodiscard]] SendingStep next_sending_step(const SendingView& view, const ReportWaits& waits);

}  // namespace pawl::job
