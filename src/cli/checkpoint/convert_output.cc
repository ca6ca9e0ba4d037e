#include "cli/checkpoint/convert_output.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "checkpoint/output/output_shares.h"
#include "checkpoint/output/partial_output.h"
#include "cli/checkpoint/progress.h"
#include "env/files.h"

namespace pawl::checkpoint {
namespace {

class FilesOutput final : public ConvertOutput {
 public:
  FilesOutput(const OutputPlan& plan, const CheckpointView& view, const ConvertOptions& options, std::uint32_t workers)
      : plan_(plan), view_(view), options_(options), shares_(cut_output(plan, view, workers)) {}

  Status begin(const std::string& attempt) override {
    PartialOptions partial = partial_options(plan_, options_.overwrite);
    partial.attempt = attempt;
    PAWL_ASSIGN(PartialOutput begun, PartialOutput::begin(options_.target, partial));
    output_.emplace(std::move(begun));
    PAWL_ASSIGN(paths_, make_files(plan_, *output_, &interrupted()));
    return {};
  }

  void join(const std::string& attempt) override {
    const std::string root = join_path(partial_folder(options_.target), attempt);
    paths_.clear();
    for (const PlannedFile& file : plan_.files) paths_.push_back(join_path(root, plan_.is_folder ? file.name : "data"));
  }

  std::uint64_t share_bytes(std::uint32_t worker) const override { return shares_[worker].bytes; }

  std::vector<std::uint32_t> share_tensors(std::uint32_t worker) const override {
    std::vector<std::uint32_t> tensors;
    for (const TensorStretch& stretch : shares_[worker].stretches) tensors.push_back(stretch.tensor);
    std::ranges::sort(tensors);
    return tensors;
  }

  Result<ShareReport> write(std::uint32_t worker, const ExecuteOptions& execution) override {
    return write_share(plan_, view_, shares_[worker], paths_,
                       {.execution = execution, .trusted_copy = options_.trusted_replica});
  }

  Status finish(std::span<const ShareReport> reports) override {
    PAWL_TRY(finish_files(plan_, reports, paths_));
    return output_->publish();
  }

 private:
  const OutputPlan& plan_;
  const CheckpointView& view_;
  const ConvertOptions& options_;
  std::vector<OutputShare> shares_;
  std::vector<std::string> paths_;
  std::optional<PartialOutput> output_;
};

}  // namespace

std::unique_ptr<ConvertOutput> files_output(const OutputPlan& plan, const CheckpointView& view,
                                            const ConvertOptions& options, std::uint32_t workers) {
  return std::make_unique<FilesOutput>(plan, view, options, workers);
}

}  // namespace pawl::checkpoint
