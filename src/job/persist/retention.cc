#include "job/persist/retention.h"

#include <algorithm>

#include "base/contains.h"

namespace pawl::job {

PersistRecord after_retention(PersistRecord record, checkpoint::Retention retention) {
  std::vector<std::uint64_t> steps{record.published.value};
  for (const Step step : record.older) steps.push_back(step.value);
  const std::vector<std::uint64_t> gone = checkpoint::to_remove(std::move(steps), retention);
  std::erase_if(record.older, [&](Step step) { return contains(gone, step.value); });
  return record;
}

std::vector<checkpoint::ListedCheckpoint> checkpoints_to_remove(const PersistRecord& record,
                                                                std::span<const checkpoint::ListedCheckpoint> listed,
                                                                checkpoint::Retention retention) {
  const auto published = std::ranges::find_if(listed, [&](const checkpoint::ListedCheckpoint& one) {
    return one.finished && Step(one.step) == record.published;
  });
  if (record.published == Step(0) || published == listed.end()) return {};
  std::vector<checkpoint::ListedCheckpoint> history = checkpoint::history_of(listed, *published);
  const std::vector<std::uint64_t> old = checkpoint::to_remove(checkpoint::sound_steps(history), retention);
  std::erase_if(history, [&](const checkpoint::ListedCheckpoint& one) {
    const Step step(one.step);
    return !contains(old, one.step) || step == record.published || step == record.step || contains(record.older, step);
  });
  return history;
}

}  // namespace pawl::job
