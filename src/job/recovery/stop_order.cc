#include "job/recovery/stop_order.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "base/contains.h"
#include "base/json_access.h"
#include "base/text.h"

namespace pawl::job {
namespace {

constexpr std::array<const char*, 3> kPhases{"writing", "published", "failed"};
constexpr std::size_t kBytesMax = kRecordBytesMax;
constexpr std::uint64_t kAny = ~std::uint64_t{0};

Error wrong(std::string_view record, std::string_view field) {
  return {Code::corrupt, text(record, ": `", field, "` is missing or out of range")};
}

// One record's fields, the first fault of which is kept.
class Fields {
 public:
  Fields(std::string_view name, std::string_view text_of_it) : name_(name) {
    if (text_of_it.size() <= kBytesMax) object_ = json::parse(text_of_it, nullptr, false);
    if (!object_.is_object()) status_ = Error{Code::corrupt, text(name, ": it is no object")};
  }
  Fields(std::string_view name, const json& object) : name_(name), object_(object) {
    if (!object_.is_object()) status_ = Error{Code::corrupt, text(name, ": it is no object")};
  }

  [[nodiscard]] std::uint64_t number(const char* field, std::uint64_t most = kAny) {
    const json& found = member_of(object_, field);
    if (found.is_number_unsigned() && found.get<std::uint64_t>() <= most) return found.get<std::uint64_t>();
    fail(field);
    return 0;
  }
  [[nodiscard]] std::string sentence(const char* field) {
    const json& found = member_of(object_, field);
    if (found.is_string()) return found.get<std::string>();
    fail(field);
    return {};
  }
  [[nodiscard]] json list(const char* field) {
    const json& found = member_of(object_, field);
    if (found.is_array()) return found;
    fail(field);
    return json::array();
  }
  void fail(const char* field) {
    if (status_) status_ = wrong(name_, field);
  }
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  const std::string_view name_;
  json object_;
  Status status_;
};

NodeLife life_in(Fields& fields) {
  return {NodeId(static_cast<std::uint32_t>(fields.number("node", ~std::uint32_t{0}))),
          Incarnation(fields.number("incarnation"))};
}

Result<LastPart> part_in(const json& object) {
  Fields fields("last checkpoint's part", object);
  LastPart part;
  part.seat = Seat(static_cast<std::uint32_t>(fields.number("seat", kSeatsMax - 1)));
  part.from = life_in(fields);
  const std::string kind = fields.sentence("kind");
  if (kind == name_of(SourceKind::own_arena))
    part.kind = SourceKind::own_arena;
  else if (kind == name_of(SourceKind::replica))
    part.kind = SourceKind::replica;
  else
    fields.fail("kind");
  if (!fields.status()) return fields.status().error();
  return part;
}

std::string dumped(const json& object) {
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

std::string last_checkpoint_key(const JobKeys& keys) {
  return keys.root + "last_checkpoint";
}

std::string to_json(const StopOrder& order) {
  return dumped({{"why", order.why}, {"wall_ms", order.wall_ms}, {"patience_ms", order.patience_ms}});
}

std::string to_json(const StoppingNode& node) {
  return dumped({{"node", node.life.node.value},
                 {"incarnation", node.life.incarnation.value},
                 {"why", node.why},
                 {"grace_ms", node.grace_ms}});
}

std::string to_json(const LastRecord& record) {
  json parts = json::array();
  for (const LastPart& part : record.parts)
    parts.push_back({{"seat", part.seat.value},
                     {"node", part.from.node.value},
                     {"incarnation", part.from.incarnation.value},
                     {"kind", name_of(part.kind)}});
  return dumped({{"attempt", record.attempt},
                 {"generation", record.generation.value},
                 {"node", record.by.node.value},
                 {"incarnation", record.by.incarnation.value},
                 {"phase", kPhases[static_cast<std::size_t>(record.phase)]},
                 {"step", record.step.value},
                 {"folder", record.folder},
                 {"parts", std::move(parts)},
                 {"why", record.why}});
}

std::string to_json(const PartTold& told) {
  json seats = json::array();
  for (const Seat seat : told.seats) seats.push_back(seat.value);
  return dumped({{"attempt", told.attempt}, {"seats", std::move(seats)}, {"failed", told.failed}});
}

Result<StopOrder> parse_stop_order(std::string_view text_of_it) {
  Fields fields("stop order", text_of_it);
  StopOrder order{fields.sentence("why"), fields.number("wall_ms"), fields.number("patience_ms")};
  if (!fields.status()) return fields.status().error();
  return order;
}

Result<StoppingNode> parse_stopping_node(std::string_view text_of_it) {
  Fields fields("stopping node", text_of_it);
  StoppingNode node;
  node.life = life_in(fields);
  node.why = fields.sentence("why");
  node.grace_ms = fields.number("grace_ms");
  if (!fields.status()) return fields.status().error();
  return node;
}

Result<LastRecord> parse_last_record(std::string_view text_of_it) {
  Fields fields("last checkpoint", text_of_it);
  LastRecord record;
  record.attempt = fields.number("attempt");
  record.generation = Generation(fields.number("generation", kGenerationMax));
  record.by = life_in(fields);
  const std::string phase = fields.sentence("phase");
  const auto found = std::ranges::find(kPhases, phase);
  if (found == kPhases.end())
    fields.fail("phase");
  else
    record.phase = static_cast<LastPhase>(found - kPhases.begin());
  record.step = Step(fields.number("step", kStepMax));
  record.folder = fields.sentence("folder");
  record.why = fields.sentence("why");
  for (const json& one : fields.list("parts")) {
    PAWL_ASSIGN(const LastPart part, part_in(one));
    record.parts.push_back(part);
  }
  if (!fields.status()) return fields.status().error();
  return record;
}

Result<PartTold> parse_part_told(std::string_view text_of_it) {
  Fields fields("last checkpoint's part", text_of_it);
  PartTold told;
  told.attempt = fields.number("attempt");
  told.failed = fields.sentence("failed");
  for (const json& seat : fields.list("seats")) {
    if (!seat.is_number_unsigned() || seat.get<std::uint64_t>() >= kSeatsMax) {
      fields.fail("seats");
      break;
    }
    told.seats.emplace_back(seat.get<std::uint32_t>());
  }
  if (!fields.status()) return fields.status().error();
  return told;
}

std::vector<LastPart> parts_elsewhere(std::span<const Source> sources, std::span<const Member> seats) {
  std::vector<LastPart> parts;
  for (const Source& source : sources) {
    const bool is_at_home = source.kind == SourceKind::own_arena && source.seat.value < seats.size() &&
                            seats[source.seat.value].life == source.from;
    if (!is_at_home) parts.push_back({source.seat, source.from, source.kind});
  }
  return parts;
}

std::vector<PartToWrite> parts_of(const LastRecord& record, std::span<const Member> seats, NodeLife node) {
  std::vector<PartToWrite> own;
  auto elsewhere = record.parts.begin();
  for (const Member& member : seats) {
    const bool listed = elsewhere != record.parts.end() && elsewhere->seat == member.seat;
    if (listed ? elsewhere->from == node : member.life == node)
      own.push_back({member.seat, listed ? elsewhere->kind : SourceKind::own_arena});
    if (listed) ++elsewhere;
  }
  return own;
}

bool ends_job(std::span<const NodeLife> survivors, std::size_t dead_count, std::span<const StoppingNode> stopping,
              std::uint32_t replica_count) {
  std::set<NodeLife> all;
  for (const StoppingNode& node : stopping) all.insert(node.life);
  const auto going =
      static_cast<std::size_t>(std::ranges::count_if(survivors, [&all](NodeLife life) { return all.contains(life); }));
  return going > 0 && (going == survivors.size() || going + dead_count > replica_count);
}

}  // namespace pawl::job
