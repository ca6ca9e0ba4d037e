// ConvertOutput: what a conversion writes, cut into a share a worker: the files of a plan, or pawl's own store.
//
// One process begins and finishes; each worker writes its share, in this process, in a forked one or on another node
// (convert_workers.h). One worker does all three. Every process makes the same object of the same source and options.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/output/output_plan.h"
#include "checkpoint/reshape/execute.h"
#include "checkpoint/view/checkpoint_view.h"
#include "cli/checkpoint/commands.h"

namespace pawl::checkpoint {

class ConvertOutput {
 public:
  virtual ~ConvertOutput() = default;

  // Makes the place: `attempt` as PartialOptions has it. Fails as PartialOutput::begin() and the disk do. What is not
  // finished is removed with this object.
  [[nodiscard]] virtual Status begin(const std::string& attempt) = 0;
  virtual void join(const std::string& attempt) = 0;  // another process began it

  [[nodiscard]] virtual std::uint64_t share_bytes(std::uint32_t worker) const = 0;
  // Of the plan, ascending: the tensors that the worker has a part of.
  [[nodiscard]] virtual std::vector<std::uint32_t> share_tensors(std::uint32_t worker) const = 0;
  // After begin() or join(). Each share once.
  [[nodiscard]] virtual Result<ShareReport> write(std::uint32_t worker, const ExecuteOptions& execution) = 0;

  // By who began: with the reports of all workers, in order. Afterwards the output is there, and on the disk.
  [[nodiscard]] virtual Status finish(std::span<const ShareReport> reports) = 0;
};

// `plan` and `view` outlive it. `memory_bytes` is what one worker may use. It bears on how a store's data is cut into
// files, so it has to be the same for all workers.
[[nodiscard]] std::unique_ptr<ConvertOutput> files_output(const OutputPlan& plan, const CheckpointView& view,
                                                          const ConvertOptions& options, std::uint32_t workers);
[[nodiscard]] std::unique_ptr<ConvertOutput> store_output(const OutputPlan& plan, const CheckpointView& view,
                                                          const ConvertOptions& options, std::uint32_t workers,
                                                          std::uint64_t memory_bytes);

}  // namespace pawl::checkpoint
