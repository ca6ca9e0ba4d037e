#include "checkpoint/reshape/execution.h"

#include <chrono>
#include <string>
#include <utility>

namespace pawl::checkpoint {
namespace {

constexpr std::int64_t kReportEveryMs = 100;

std::int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::vector<std::string> paths_of(const std::vector<StoredFile>* files) {
  std::vector<std::string> paths;
  for (std::size_t i = 0; files != nullptr && i < files->size(); ++i) paths.push_back((*files)[i].path);
  return paths;
}

std::vector<std::string> paths_of(const std::vector<TargetFile>& files) {
  std::vector<std::string> paths;
  for (const TargetFile& file : files) paths.push_back(file.path);
  return paths;
}

}  // namespace

Execution::Execution(const CopySource& source, const CopyTarget& target, const ExecuteOptions& given,
                     std::uint64_t decoded_bytes_max, std::size_t slabs_max)
    : options(given),
      stored(source.files),
      sources(paths_of(source.files), false, given.direct, given.cancel),
      has_addresses(sources.has_addresses()),
      targets(paths_of(target.files), true, given.direct, given.cancel),
      peers(target.peers),
      decoded(source.files, sources, decoded_bytes_max, [this] { return stopped(); }),
      slabs(slabs_max),
      reported_ms_(now_ms()) {}

void Execution::fail(Error error) {
  const std::lock_guard lock(error_mutex_);
  if (!error_) error_ = std::move(error);
  failed_ = true;
}

Status Execution::status() {
  const std::lock_guard lock(error_mutex_);
  if (error_) return *error_;
  if (stopped()) return Error{Code::cancelled, "cancelled"};
  return {};
}

void Execution::add_done(std::uint64_t bytes) {
  done_ += bytes;
  report_progress(false);
}

void Execution::report_progress(bool is_last) {
  if (!options.progress) return;
  std::unique_lock lock(progress_mutex_, std::defer_lock);
  if (is_last) {
    lock.lock();
  } else if (!lock.try_lock() || now_ms() - reported_ms_ < kReportEveryMs) {
    return;
  }
  reported_ms_ = now_ms();
  options.progress({done_, options.bytes_expected});
}

}  // namespace pawl::checkpoint
