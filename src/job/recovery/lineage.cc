#include "job/recovery/lineage.h"

namespace pawl::job {

bool in_lineage(std::span<const LineageEntry> lineage, Generation slot_generation, Step step) {
  for (const LineageEntry& entry : lineage)
    if (entry.generation > slot_generation && step > entry.resume) return false;
  return true;
}

void append_lineage(std::vector<LineageEntry>& lineage, LineageEntry entry) {
  while (!lineage.empty() && lineage.back().resume >= entry.resume) lineage.pop_back();
  lineage.push_back(entry);
  if (lineage.size() > kLineageMax) {
    lineage[1].resume = lineage[0].resume;
    lineage.erase(lineage.begin());
  }
}

}  // namespace pawl::job
