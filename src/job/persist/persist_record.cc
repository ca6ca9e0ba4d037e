#include "job/persist/persist_record.h"

#include <array>
#include <utility>

#include "base/json_access.h"
#include "base/text.h"
#include "checkpoint/store/checkpoint_folder.h"
#include "env/files.h"
#include "job/snapshot/slot_word.h"

namespace pawl::job {
namespace {

constexpr std::array<const char*, 3> kPhases{"idle", "pinning", "writing"};
constexpr std::size_t kBytesMax = std::size_t{64} << 10;
constexpr std::size_t kFields = 14;

Error wrong(std::string_view field) {
  return {Code::corrupt, text("persist record: `", field, "` is missing or out of range")};
}

// Numbers up to `most`.
Status read(const json& object, const char* field, std::uint64_t most, std::uint64_t& out) {
  const json& found = member_of(object, field);
  if (!found.is_number_unsigned() || found.get<std::uint64_t>() > most) return wrong(field);
  out = found.get<std::uint64_t>();
  return {};
}

Status read(const json& object, const char* field, std::string& out) {
  const json& found = member_of(object, field);
  if (!found.is_string()) return wrong(field);
  out = found.get<std::string>();
  return {};
}

Status read_phase(const json& object, PersistPhase& out) {
  const std::string phase = string_in(object, "phase");
  for (std::size_t i = 0; i < kPhases.size(); ++i) {
    if (phase != kPhases[i]) continue;
    out = static_cast<PersistPhase>(i);
    return {};
  }
  return wrong("phase");
}

Status read_older(const json& object, std::vector<Step>& out) {
  const json& found = member_of(object, "older");
  if (!found.is_array() || found.size() > kOlderMax) return wrong("older");
  for (const json& step : found) {
    if (!step.is_number_unsigned() || step.get<std::uint64_t>() > kStepMax) return wrong("older");
    out.emplace_back(step.get<std::uint64_t>());
  }
  return {};
}

}  // namespace

const char* name_of(PersistPhase phase) {
  const auto index = static_cast<std::size_t>(phase);
  return index < kPhases.size() ? kPhases[index] : "?";
}

std::string to_json(const PersistRecord& record) {
  json older = json::array();
  for (const Step step : record.older) older.push_back(step.value);
  return json{{"attempt", record.attempt},
              {"generation", record.generation.value},
              {"phase", name_of(record.phase)},
              {"step", record.step.value},
              {"tries", record.tries},
              {"folder", record.folder},
              {"published", record.published.value},
              {"older", std::move(older)},
              {"tried", record.tried.value},
              {"interval_ms", record.interval_ms},
              {"published_wall_ms", record.published_wall_ms},
              {"ended_wall_ms", record.ended_wall_ms},
              {"failures", record.failures},
              {"why", record.why}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<PersistRecord> parse_persist_record(std::string_view text_of_it) {
  if (text_of_it.size() > kBytesMax) return Error{Code::corrupt, "persist record: longer than 64 KiB"};
  const json object = json::parse(text_of_it, nullptr, false);
  if (!object.is_object() || object.size() != kFields)
    return Error{Code::corrupt, "persist record: it is no object, or has fields that this version does not know"};
  constexpr std::uint64_t kAny = ~std::uint64_t{0};
  PersistRecord record;
  std::uint64_t failures = 0, tries = 0;
  PAWL_TRY(read(object, "attempt", kAny, record.attempt));
  PAWL_TRY(read(object, "generation", kGenerationMax, record.generation.value));
  PAWL_TRY(read_phase(object, record.phase));
  PAWL_TRY(read(object, "step", kStepMax, record.step.value));
  PAWL_TRY(read(object, "tries", ~std::uint32_t{0}, tries));
  PAWL_TRY(read(object, "folder", record.folder));
  PAWL_TRY(read(object, "published", kStepMax, record.published.value));
  PAWL_TRY(read_older(object, record.older));
  PAWL_TRY(read(object, "tried", kStepMax, record.tried.value));
  PAWL_TRY(read(object, "interval_ms", kAny, record.interval_ms));
  PAWL_TRY(read(object, "published_wall_ms", kAny, record.published_wall_ms));
  PAWL_TRY(read(object, "ended_wall_ms", kAny, record.ended_wall_ms));
  PAWL_TRY(read(object, "failures", ~std::uint32_t{0}, failures));
  PAWL_TRY(read(object, "why", record.why));
  record.failures = static_cast<std::uint32_t>(failures);
  record.tries = static_cast<std::uint32_t>(tries);
  return record;
}

std::string checkpoint_path(std::string_view path, Step step) {
  return join_path(path, checkpoint::checkpoint_name(step.value));
}

}  // namespace pawl::job
