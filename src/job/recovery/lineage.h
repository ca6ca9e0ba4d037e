// Lineage: which slots belong to the history that the job goes on with.
//
// An entry {g, R} says: generation g went on from R, so a slot of an older generation whose step is later than R is
// void for ever, also where g never reached `running` and a further generation decides over the same frozen slots.
// Always: generations and steps both grow from entry to entry (an entry that a later, lower one implies is dropped),
// and there are at most kLineageMax. Pure.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "job/membership/job_state.h"

namespace pawl::job {

inline constexpr std::size_t kLineageMax = 64;

// A slot (generation, step) belongs to the lineage as decided so far: no later generation went on from before it.
[[nodiscard]] bool in_lineage(std::span<const LineageEntry> lineage, Generation slot_generation, Step step);

// `entry` is of a later generation than all in `lineage`. Where there are too many, the two oldest become one that
// voids all that either did; what it voids besides is older than every slot from which the newest entry could resume.
void append_lineage(std::vector<LineageEntry>& lineage, LineageEntry entry);

}  // namespace pawl::job
