#include "cli/checkpoint/convert_proof.h"

#include <utility>

#include "checkpoint/formats/read_proof.h"
#include "cli/checkpoint/progress.h"

namespace pawl::checkpoint {
namespace {

class ProvenOutput final : public ConvertOutput {
 public:
  ProvenOutput(std::unique_ptr<ConvertOutput> output, ReadProof proof, const OutputPlan& plan,
               const CheckpointView& view, const ConvertOptions& options, std::vector<std::string>& damage)
      : output_(std::move(output)),
        proof_(std::move(proof)),
        plan_(plan),
        view_(view),
        options_(options),
        damage_(damage) {}

  Status begin(const std::string& attempt) override { return output_->begin(attempt); }
  void join(const std::string& attempt) override { output_->join(attempt); }
  std::uint64_t share_bytes(std::uint32_t worker) const override { return output_->share_bytes(worker); }
  std::vector<std::uint32_t> share_tensors(std::uint32_t worker) const override {
    return output_->share_tensors(worker);
  }

  Result<ShareReport> write(std::uint32_t worker, const ExecuteOptions& execution) override {
    ExecuteOptions watched = execution;
    watched.observe_read = proof_.observer();
    PAWL_ASSIGN(ShareReport report, output_->write(worker, watched));
    PAWL_ASSIGN(std::string words, proof_.take_words());
    report.texts.push_back(std::move(words));  // the last: finish() takes it off
    return report;
  }

  Status finish(std::span<const ShareReport> reports) override {
    std::vector<ShareReport> written(reports.begin(), reports.end());
    for (ShareReport& report : written) {
      if (report.texts.empty()) return Error{Code::corrupt, "a worker's report does not say what it has read"};
      PAWL_TRY(proof_.join(report.texts.back()));
      report.texts.pop_back();
    }
    ReadProof::Read read{{}, options_.trusted_replica};
    for (const PlannedTensor& planned : plan_.tensors) read.tensors.push_back(planned.tensor);
    PAWL_ASSIGN(damage_, proof_.damage(view_, read, &interrupted()));
    if (!damage_.empty() && !options_.despite_problems) return damaged_source(damage_).within("nothing was written");
    return output_->finish(written);
  }

 private:
  std::unique_ptr<ConvertOutput> output_;
  ReadProof proof_;
  const OutputPlan& plan_;
  const CheckpointView& view_;
  const ConvertOptions& options_;
  std::vector<std::string>& damage_;
};

}  // namespace

Result<std::unique_ptr<ConvertOutput>> proven_output(std::unique_ptr<ConvertOutput> output, const OutputPlan& plan,
                                                     const CheckpointView& view, const ConvertOptions& options,
                                                     std::vector<std::string>& damage) {
  PAWL_ASSIGN(ReadProof proof, ReadProof::create(view));
  return std::unique_ptr<ConvertOutput>(
      std::make_unique<ProvenOutput>(std::move(output), std::move(proof), plan, view, options, damage));
}

}  // namespace pawl::checkpoint
