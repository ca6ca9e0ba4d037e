// PersistRecord: the key `persist`, by which a job's nodes agree on the step that is being written to storage.
//
// The root of the tree moves it by compare-and-swap, three times a checkpoint: pinning (each node keeps that step of its
// seats), writing (all have it; into which folder), idle (it is published, or why not). One attempt has one number, and
// belongs to one generation: in another one nobody goes on with it. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace pawl::job {

enum class PersistPhase : std::uint8_t { idle, pinning, writing };

struct PersistRecord {
  std::uint64_t attempt = 0;  // counts up; 0: none yet
  Generation generation;      // of the attempt
  PersistPhase phase = PersistPhase::idle;
  Step step;                // of the attempt
  std::uint32_t tries = 0;  // of that step, in a row
  std::string folder;       // of `writing`: where all parts go
  Step published;           // the newest checkpoint of this job; 0: none
  std::vector<Step> older;  // those before it, the newest first: where it proves damaged, they are tried
  Step tried;               // up to there none is due any more: `published`, or a later one that could not be written
  std::uint64_t interval_ms = 0;        // between the last two that were published; 0: not known
  std::uint64_t published_wall_ms = 0;  // when the newest was
  std::uint64_t ended_wall_ms = 0;      // when the last attempt was published, or given up
  std::uint32_t failures = 0;           // since the last that was published
  std::string why;                      // of the last of these
  bool operator==(const PersistRecord&) const = default;
};

inline constexpr std::size_t kOlderMax = 7;

[[nodiscard]] const char* name_of(PersistPhase phase);
[[nodiscard]] std::string to_json(const PersistRecord& record);
// Fails: `corrupt`, naming the field: one is missing, unknown, of another type or out of range.
[[nodiscard]] Result<PersistRecord> parse_persist_record(std::string_view json);

// The folder of a step's checkpoint in the job's folder: "<path>/step-500".
[[nodiscard]] std::string checkpoint_path(std::string_view path, Step step);

}  // namespace pawl::job
