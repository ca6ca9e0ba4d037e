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

std::vector<Step> steps_to_remove(const PersistRecord& record, std::span<const checkpoint::ListedCheckpoint> listed,
                                  checkpoint::Retention retention) {
  std::vector<std::uint64_t> sound = checkpoint::sound_steps(listed);
  std::erase_if(sound, [&](std::uint64_t step) { return step > record.published.value; });
  std::vector<Step> gone;
  for (const std::uint64_t step : checkpoint::to_remove(std::move(sound), retention))
    if (Step(step) != record.published && Step(step) != record.step && !contains(record.older, Step(step)))
      gone.emplace_back(step);
  return gone;
}

}  // namespace pawl::job
