// A conversion by several workers: forked here (--workers N), or processes that somebody started (--worker I/N), on any
// number of machines with one file system; and by one alone.
//
// What always holds: nothing has the target's name before all workers' reports were checked and the whole is on the
// disk; if a worker ends early, nothing is published, and the error names the worker and the cause. Forked workers end
// with the command, and share its memory budget and the machine's cores. See checkpoint/output/worker_meeting.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "checkpoint/reshape/execute.h"
#include "cli/checkpoint/commands.h"
#include "cli/checkpoint/convert_output.h"

namespace pawl::checkpoint {

// How many there are of this conversion, wherever they are.
[[nodiscard]] std::uint32_t worker_count(const ConvertOptions& options);
// What each of them may use.
[[nodiscard]] std::uint64_t worker_memory(const ConvertOptions& options);
// Whether this process makes the target: not so of worker 1 and up.
[[nodiscard]] bool is_publisher(const ConvertOptions& options);

// Of all that decides what is written, the source's files as they are now included: their sizes and times.
[[nodiscard]] std::string conversion_digest(const OutputPlan& plan, const CheckpointView& view,
                                            const ConvertOptions& options);

// Writes, and publishes if this process does. `before` is called in a process that somebody started as worker I/N,
// once all are there, with the tensors of the plan that it has a part of: checks that are theirs to share. Fails as the
// output does, as WorkerMeeting does, and `cancelled`. The report is of all workers; of worker 1 and up, its own.
using ShareCheck = std::function<Status(const std::vector<std::uint32_t>& tensors)>;
[[nodiscard]] Result<ExecuteReport> write_together(ConvertOutput& output, const ConvertOptions& options,
                                                   const OutputPlan& plan, const CheckpointView& view,
                                                   const ShareCheck& before);

}  // namespace pawl::checkpoint
