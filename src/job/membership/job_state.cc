#include "job/membership/job_state.h"

#include <algorithm>
#include <array>
#include <concepts>
#include <limits>
#include <type_traits>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "job/redundancy/failure_domains.h"

namespace pawl::job {
namespace {

using nlohmann::json;

constexpr int kDepthMax = 16;
constexpr std::size_t kSheetNameBytes = 64;  // at most, in a state
// What a sheet may have, and in which order it takes that until the rest is short enough.
constexpr std::array kSheetFields{"sources", "restart",  "struck",   "evicted", "moved",  "causes",
                                  "before",  "departed", "attempts", "waiting", "verdict"};
constexpr std::uint64_t kAllSourcesMax = std::uint64_t{4} * kSeatsMax;

// The texts of an enumeration, in the order of its values, which begin at 0.
template <class Enum>
constexpr std::array<const char*, 0> kNames{};
template <>
constexpr std::array kNames<JobPhase>{"forming", "restoring", "running", "quiescing", "finished", "failed"};
template <>
constexpr std::array kNames<SourceKind>{"nothing", "own_arena", "replica", "storage", "path"};
template <>
constexpr std::array kNames<FaultKind>{"none",
                                       "node_lost",
                                       "node_silent",
                                       "trainer_exit",
                                       "trainer_hang",
                                       "trainer_stuck",
                                       "communication",
                                       "corrupt_source",
                                       "leader_lost",
                                       "operator_stop",
                                       "layout_conflict",
                                       "drain",
                                       "source_unreached",
                                       "last_checkpoint"};
template <>
constexpr std::array kNames<SlotState>{"empty", "dirty", "sealed"};

template <class Enum>
const char* text_of(Enum value) {
  const auto index = static_cast<std::size_t>(value);
  return index < kNames<Enum>.size() ? kNames<Enum>[index] : "?";
}

// Each record's fields, once for both directions: `io(name, member)`; io.unless_default leaves out a value that is as in a
// new record.
template <class Record, class Plain>
concept Is = std::same_as<std::remove_const_t<Record>, Plain>;

template <class Io, Is<JobSpec> Record>
void fields(Io& io, Record& r) {
  io("job", r.job), io("version", r.version), io("node_count", r.node_count), io("seats_per_node", r.seats_per_node);
  io("spare_count", r.spare_count), io("replica_count", r.replica_count), io("wait_for_spare", r.wait_for_spare);
  io("test_hooks", r.test_hooks), io("gate_off", r.gate_off), io("deadline_ms", r.deadline_ms);
  io("hang_ms", r.hang_ms), io("start_ms", r.start_ms), io("token_digest", r.token_digest);
  io.unless_default("domains", r.domains), io.unless_default("fewer_domains", r.fewer_domains);
  io.unless_default("memory_bytes", r.memory_bytes);
  io.unless_default("replica_bytes_a_second", r.replica_bytes_a_second);
  io.unless_default("checkpoint_path", r.checkpoints.path),
      io.unless_default("checkpoint_steps", r.checkpoints.every_steps);
  io.unless_default("checkpoint_ms", r.checkpoints.every_ms);
  io.unless_default("checkpoint_auto", r.checkpoints.every_auto);
  io.unless_default("checkpoint_bytes_a_second", r.checkpoints.bytes_a_second);
  io.unless_default("resume_path", r.checkpoints.resume_path),
      io.unless_default("resume_step", r.checkpoints.resume_step);
  io.unless_default("resume_older", r.checkpoints.resume_older);
  io.unless_default("checkpoint_keep_last", r.checkpoints.keep_last);
  io.unless_default("checkpoint_keep_every", r.checkpoints.keep_every);
}
template <class Io, Is<NodeRecord> Record>
void fields(Io& io, Record& r) {
  io("life", r.life), io("address", r.address), io("lifeline", r.lifeline), io("local_path", r.local_path);
  io("keeper_pid", r.keeper_pid);
  io("pawld_pid", r.pawld_pid), io("parked", r.parked), io("healthy", r.healthy), io("unhealthy", r.unhealthy);
  io("arena_bytes", r.arena_bytes), io.unless_default("domain", r.domain);
}
// Rows of a table, as lists without names: neighbouring seats that are alike share one.
struct TopologyName {
  Generation generation;
  std::uint64_t digest = 0;
};
struct RowDomains {
  std::string node;
  std::string plan;
  bool operator==(const RowDomains&) const = default;
};
struct SeatRow {  // `seats` seats on one node, in consecutive places there
  NodeLife life;
  std::string address;
  std::uint32_t first_index = 0;
  std::uint32_t seats = 0;
  RowDomains domains = {};
};
struct MovedRow {  // of the seats from `first` on
  Seat first;
  SeatRow row;
};
struct SourceCell {
  SourceKind kind = SourceKind::nothing;
  std::optional<NodeLife> from;  // none: the node where each of the row's seats sits; of storage, nobody
  Extent extent;
  Seat of = {};  // of a path
  bool operator==(const SourceCell&) const = default;
};
struct SourceRow {  // of the next `seats` seats, of each all of these
  std::uint32_t seats = 0;
  Generation slot_generation;
  Step step;
  std::vector<SourceCell> sources;
};
struct SeatRange {
  Seat first;
  std::uint32_t seats = 0;
};
struct BeforeRow {  // the seats from `first` on go on from those from `before` on
  Seat first;
  std::uint32_t seats = 0;
  Seat before;
};
template <class Io, Is<NodeLife> Row>
void columns(Io& io, Row& r) {
  io(r.node), io(r.incarnation);
}
template <class Io, Is<TopologyName> Row>
void columns(Io& io, Row& r) {
  io(r.generation), io(r.digest);
}
template <class Io, Is<SeatRow> Row>
void columns(Io& io, Row& r) {
  io(r.life.node), io(r.life.incarnation), io(r.address), io(r.first_index), io(r.seats);
  io.unless_alone(r.domains);
}
template <class Io, Is<MovedRow> Row>
void columns(Io& io, Row& r) {
  io(r.first), columns(io, r.row);
}
template <class Io, Is<LineageEntry> Row>
void columns(Io& io, Row& r) {
  io(r.generation), io(r.resume);
}
template <class Io, Is<SourceRow> Row>
void columns(Io& io, Row& r) {
  io(r.seats), io(r.slot_generation), io(r.step), io(r.sources);
}
template <class Io, Is<SourceCell> Row>
void columns(Io& io, Row& r) {
  io(r.kind), io(r.from), io.place_of(r);
}
template <class Io, Is<SeatRange> Row>
void columns(Io& io, Row& r) {
  io(r.first), io(r.seats);
}
template <class Io, Is<BeforeRow> Row>
void columns(Io& io, Row& r) {
  io(r.first), io(r.seats), io(r.before);
}
template <class Type>
concept IsRow = std::same_as<Type, SeatRow> || std::same_as<Type, MovedRow> || std::same_as<Type, NodeLife> ||
    std::same_as<Type, TopologyName> || std::same_as<Type, LineageEntry> || std::same_as<Type, SourceRow> ||
    std::same_as<Type, SourceCell> || std::same_as<Type, SeatRange> || std::same_as<Type, BeforeRow>;

struct TopologyRecord {
  Generation generation;
  std::vector<SeatRow> seats;
};
// JobState as it is written: what may be long is in rows. Of `state` itself that is not looked at.
template <class State>
struct JobRecordOf {
  State state;
  std::optional<TopologyName> topology;
  std::vector<SeatRow> seats;   // without a topology: all
  std::vector<MovedRow> moved;  // with one: what is another's there, ascending
  std::vector<SourceRow> sources;
  std::vector<SeatRange> restart;
  std::vector<BeforeRow> before;  // ascending; seats of no row go by their own numbers
};
using JobRecord = JobRecordOf<JobState>;             // what is read
using JobRecordView = JobRecordOf<const JobState&>;  // what is written: a state of many seats is not copied for it
template <class Io, Is<Struck> Record>
void fields(Io& io, Record& r) {
  io("at", r.at), io("seat", r.seat), io("kind", r.kind), io("slot_generation", r.slot_generation), io("step", r.step);
  io.unless_default("extent", r.extent), io.unless_default("of", r.of), io.unless_default("differs", r.differs);
}
template <class Io, Is<Cause> Record>
void fields(Io& io, Record& r) {
  io("kind", r.kind), io.unless_default("node", r.node), io.unless_default("seat", r.seat);
  io.unless_default("detail", r.detail), io.unless_default("detected_wall_ms", r.detected_wall_ms);
}
template <class Io, Is<Attempt> Record>
void fields(Io& io, Record& r) {
  io("kind", r.kind), io.unless_default("seat", r.seat), io("resume", r.resume), io("count", r.count);
}
template <class Io, Is<TopologyRecord> Record>
void fields(Io& io, Record& r) {
  io("generation", r.generation), io("seats", r.seats);
}
template <class Io, class Record>
requires(Is<Record, JobRecord> || Is<Record, JobRecordView>) void fields(Io& io, Record& r) {
  auto& s = r.state;
  io("generation", s.generation), io("phase", s.phase), io("leader", s.leader);
  io.unless_default("topology", r.topology), io.unless_default("seats", r.seats), io.unless_default("moved", r.moved);
  io.unless_default("before", r.before);
  io.unless_default("evicted", s.evicted), io.unless_default("departed", s.departed),
      io.unless_default("struck", s.struck);
  io.unless_default("lineage", s.lineage), io.unless_default("ran", s.ran), io.unless_default("committed", s.committed);
  io.unless_default("resume", s.resume), io.unless_default("sources", r.sources),
      io.unless_default("restart", r.restart);
  io.unless_default("plan_digest", s.plan_digest), io.unless_default("cold", s.cold),
      io.unless_default("arena_bytes", s.arena_bytes), io.unless_default("causes", s.causes);
  io.unless_default("attempts", s.attempts), io.unless_default("waiting", s.waiting);
  io.unless_default("verdict", s.verdict);
}
template <class Io, Is<Accusation> Record>
void fields(Io& io, Record& r) {
  io("victim", r.victim), io("accuser", r.accuser);
}
template <class Io, Is<FaultReport> Record>
void fields(Io& io, Record& r) {
  io("seat", r.seat), io("lost", r.lost);
}

struct Writer {
  struct ColumnWriter {
    json& list;
    template <class Value>
    void operator()(const Value& value) {
      list.push_back(encode(value));
    }
    void place_of(const SourceCell& cell) {  // the last ones: of a path its seat; the extent unless it is whole
      if (cell.kind == SourceKind::path) (*this)(cell.of);
      if (!cell.extent.is_whole()) (*this)(cell.extent);
    }
    void unless_alone(const RowDomains& domains) {  // the last one or two: the second where it is another
      if (domains == RowDomains()) return;
      (*this)(domains.node);
      if (domains.plan != domains.node) (*this)(domains.plan);
    }
  };

  json& object;
  template <class Value>
  void operator()(const char* name, const Value& value) {
    object[name] = encode(value);
  }
  template <class Value>
  void unless_default(const char* name, const Value& value) {
    if (!is_default(value)) (*this)(name, value);
  }

  template <class Value>
  static bool is_default(const Value& value) {
    return value == Value{};
  }
  template <class Value>
  static bool is_default(const std::vector<Value>& values) {
    return values.empty();
  }
  template <class Value>
  static bool is_default(const std::optional<Value>& value) {
    return !value;
  }

  static json encode(const std::string& value) { return value; }
  template <class Number>
  requires std::is_arithmetic_v<Number>
  static json encode(Number value) { return value; }
  template <class Enum>
  requires std::is_enum_v<Enum>
  static json encode(Enum value) { return text_of(value); }
  template <class Tag, class Integer>
  static json encode(Id<Tag, Integer> id) {
    return id.value;
  }
  template <class Value>
  static json encode(const std::optional<Value>& value) {
    return value ? encode(*value) : json(nullptr);
  }
  template <class Value>
  static json encode(const std::vector<Value>& values) {
    json list = json::array();
    for (const Value& value : values) list.push_back(encode(value));
    return list;
  }
  template <IsRow Row>
  static json encode(const Row& row) {
    json list = json::array();
    ColumnWriter column{list};
    columns(column, row);
    return list;
  }
  // [begin, end], end null for the stream's.
  static json encode(Extent extent) {
    return json::array({extent.begin, extent.end == kStreamEnd ? json(nullptr) : json(extent.end)});
  }
  template <class Record>
  requires(std::is_class_v<Record> && !IsRow<Record>) static json encode(const Record& record) {
    json object = json::object();
    Writer writer{object};
    fields(writer, record);
    return object;
  }
};

// Keeps the first mistake, with the path to it; everything after it is skipped.
class Reader {
 public:
  explicit Reader(const json& object) : object_(&object) {}

  template <class Value>
  void operator()(const char* name, Value& value) {
    ++known_;
    if (!mistake_.empty()) return;
    const std::size_t length = path_.size();
    if (!path_.empty()) path_ += '.';
    path_ += name;
    const auto found = object_->find(name);
    if (found == object_->end()) {
      fail("missing");
    } else {
      decode(*found, value);
    }
    path_.resize(length);
  }
  template <class Value>
  void unless_default(const char* name, Value& value) {
    if (object_->contains(name)) (*this)(name, value);
  }

  template <class Record>
  void record(const json& source, Record& out) {
    if (!source.is_object()) return fail("not an object");
    const json* outer = std::exchange(object_, &source);
    const std::size_t outer_known = std::exchange(known_, 0);
    fields(*this, out);
    // Every known field was found, so a surplus is a field that we do not know.
    if (mistake_.empty() && known_ != source.size()) fail("has a field that this version does not know");
    object_ = outer;
    known_ = outer_known;
  }

  void fail(std::string_view why) {
    if (mistake_.empty()) mistake_ = path_.empty() ? std::string(why) : text(path_, ": ", why);
  }
  [[nodiscard]] const std::string& mistake() const { return mistake_; }

 private:
  struct ColumnReader {
    Reader& reader;
    const json& source;
    std::size_t next = 0;
    template <class Value>
    void operator()(Value& value) {
      const std::size_t length = reader.path_.size();
      reader.path_ += text('[', next, ']');
      if (next < source.size()) reader.decode(source[next], value);
      reader.path_.resize(length);
      ++next;
    }
    void place_of(SourceCell& cell) {
      if (cell.kind == SourceKind::path) (*this)(cell.of);
      if (next < source.size()) (*this)(cell.extent);
    }
    void unless_alone(RowDomains& domains) {
      if (next == source.size()) return;
      (*this)(domains.node);
      domains.plan = domains.node;
      const bool has_plan = next < source.size();
      if (has_plan) (*this)(domains.plan);
      if (has_plan == (domains.plan == domains.node) || domains == RowDomains())
        reader.fail("failure domains that are not written so");
    }
  };
  void decode(const json& source, std::string& out) {
    if (const auto* value = source.get_ptr<const json::string_t*>()) {
      out = *value;
    } else {
      fail("not a text");
    }
  }
  void decode(const json& source, bool& out) {
    if (const auto* value = source.get_ptr<const json::boolean_t*>()) {
      out = *value;
    } else {
      fail("not true or false");
    }
  }
  template <std::unsigned_integral Number>
  void decode(const json& source, Number& out) {
    number(source, out, std::numeric_limits<Number>::max());
  }
  template <class Tag, class Integer>
  void decode(const json& source, Id<Tag, Integer>& out) {
    number(source, out.value, std::numeric_limits<Integer>::max());
  }
  void decode(const json& source, Generation& out) { number(source, out.value, kGenerationMax); }
  void decode(const json& source, Step& out) { number(source, out.value, kStepMax); }

  template <class Number>
  void number(const json& source, Number& out, std::uint64_t max) {
    const auto* value = source.get_ptr<const json::number_unsigned_t*>();
    if (value == nullptr) return fail("not a whole number from 0");
    if (*value > max) return fail(text("out of range (at most ", max, ")"));
    out = static_cast<Number>(*value);
  }

  template <class Enum>
  requires std::is_enum_v<Enum>
  void decode(const json& source, Enum& out) {
    const auto* value = source.get_ptr<const json::string_t*>();
    if (value == nullptr) return fail("not a text");
    const auto& names = kNames<Enum>;
    const auto found = std::find(names.begin(), names.end(), std::string_view(*value));
    if (found == names.end()) return fail(text("unknown: '", std::string_view(*value).substr(0, 40), "'"));
    out = static_cast<Enum>(found - names.begin());
  }
  template <class Value>
  void decode(const json& source, std::optional<Value>& out) {
    out.reset();
    if (!source.is_null()) decode(source, out.emplace());
  }
  template <class Value>
  void decode(const json& source, std::vector<Value>& out) {
    if (!source.is_array()) return fail("not a list");
    out.clear();
    out.reserve(source.size());
    for (const json& element : source) {
      const std::size_t length = path_.size();
      path_ += text('[', out.size(), ']');
      decode(element, out.emplace_back());
      path_.resize(length);
      if (!mistake_.empty()) return;
    }
  }
  template <IsRow Row>
  void decode(const json& source, Row& out) {
    if (!source.is_array()) return fail("not a list");
    ColumnReader column{*this, source};
    columns(column, out);
    if (column.next != source.size()) fail(text("has ", source.size(), " columns, not ", column.next));
  }
  void decode(const json& source, Extent& out) {
    if (!source.is_array() || source.size() != 2) return fail("not an extent: begin and end");
    decode(source[0], out.begin);
    if (!source[1].is_null()) decode(source[1], out.end);
    if (out.is_empty() || out.is_whole() || (!source[1].is_null() && out.end == kStreamEnd))
      fail("no part of a stream");
  }
  template <class Record>
  requires(std::is_class_v<Record> && !IsRow<Record>) void decode(const json& source, Record& out) {
    record(source, out);
  }

  const json* object_;
  std::size_t known_ = 0;
  std::string path_;
  std::string mistake_;
};

bool nested_too_deeply(std::string_view source) {
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < source.size(); ++i) {
    const char c = source[i];
    if (quoted && c == '\\') {
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (!quoted && (c == '{' || c == '[')) {
      if (++depth > kDepthMax) return true;
    } else if (!quoted && (c == '}' || c == ']')) {
      --depth;
    }
  }
  return false;
}

// What the types cannot say.
void check(Reader& reader, const JobSpec& spec) {
  if (spec.node_count == 0) reader.fail("node_count: out of range (at least 1)");
  if (spec.seats_per_node == 0) reader.fail("seats_per_node: out of range (at least 1)");
  if (std::uint64_t{spec.node_count} * spec.seats_per_node > kSeatsMax)
    reader.fail(text("node_count: out of range (node_count x seats_per_node is at most ", kSeatsMax, ")"));
}
void check(Reader& reader, const NodeRecord& record) {
  if (record.domain.empty()) return;
  if (const Status named = check_domain(record.domain); !named) reader.fail(text("domain: ", named.error().what));
}
bool are_domains(const RowDomains& domains) {
  return (domains.node.empty() || check_domain(domains.node)) && (domains.plan.empty() || check_domain(domains.plan));
}
// How many seats all rows have. No row is empty, so that one state is written in one way.
template <class Row>
std::uint64_t seats_in(Reader& reader, const char* name, const std::vector<Row>& rows) {
  std::uint64_t seats = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].seats == 0) reader.fail(text(name, "[", i, "]: out of range (at least one seat)"));
    seats += rows[i].seats;
  }
  if (seats > kSeatsMax) reader.fail(text(name, ": out of range (at most ", kSeatsMax, " seats)"));
  return seats;
}
std::uint64_t check(Reader& reader, const std::vector<SeatRow>& rows) {
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (rows[i].first_index > kSeatsMax || rows[i].address.size() > kAddressBytesMax || !are_domains(rows[i].domains))
      reader.fail(text("seats[", i, "]: out of range"));
  return seats_in(reader, "seats", rows);
}
void check(Reader& reader, const TopologyRecord& record) {
  (void)check(reader, record.seats);
}
// A seat's sources name the whole stream, and each place once in each extent.
void check_sources(Reader& reader, const std::vector<SourceRow>& rows) {
  std::uint64_t all = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    all += std::uint64_t{rows[i].seats} * rows[i].sources.size();
    if (rows[i].sources.size() > kSourcesMax || all > kAllSourcesMax)
      return reader.fail(
          text("sources[", i, "]: out of range (at most ", kSourcesMax, " of a seat, ", kAllSourcesMax, " in all)"));
    Extents extents;
    for (const SourceCell& source : rows[i].sources) {
      if (source.kind == SourceKind::storage && source.from)
        reader.fail(text("sources[", i, "]: storage is at no node"));
      if (source.of.value >= kSeatsMax) reader.fail(text("sources[", i, "]: a path's seat is out of range"));
      if (std::ranges::count(rows[i].sources, source) > 1) reader.fail(text("sources[", i, "]: one of them twice"));
      extents.push_back(source.extent);
    }
    if (!holes_in(extents).empty()) reader.fail(text("sources[", i, "]: they don't have the whole stream"));
  }
}
// Each row as long as it can be, of seats that there are; no two seats go on from the same one.
void check_before(Reader& reader, const std::vector<BeforeRow>& rows, std::uint64_t seats) {
  if (rows.empty()) return;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;  // first and end
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const BeforeRow& row = rows[i];
    if (row.seats == 0 || std::uint64_t{row.first.value} + row.seats > seats)
      return reader.fail(text("before[", i, "]: out of range, no such seat"));
    if (std::uint64_t{row.before.value} + row.seats > kSeatsMax)
      return reader.fail(text("before[", i, "]: out of range (at most ", kSeatsMax, " seats)"));
    if (row.first.value < end) return reader.fail(text("before[", i, "]: not behind the row before it"));
    const bool joins =
        i > 0 && row.first.value == end && rows[i - 1].before.value + rows[i - 1].seats == row.before.value;
    if (joins || row.before == row.first) return reader.fail(text("before[", i, "]: seats that are not written so"));
    if (row.first.value > end) taken.emplace_back(end, row.first.value);
    taken.emplace_back(row.before.value, std::uint64_t{row.before.value} + row.seats);
    end = std::uint64_t{row.first.value} + row.seats;
  }
  if (end < seats) taken.emplace_back(end, seats);
  std::ranges::sort(taken);
  for (std::size_t i = 1; i < taken.size(); ++i)
    if (taken[i].first < taken[i - 1].second)
      return reader.fail(text("before: two seats go on from seat ", taken[i].first));
}
// Of the seats that a record has itself, or that its topology has.
void check_seats(Reader& reader, const JobRecord& record, std::uint64_t seats) {
  if (seats_in(reader, "sources", record.sources) != seats && !record.sources.empty())
    reader.fail("sources: not one for each seat");
  check_sources(reader, record.sources);
  check_before(reader, record.before, seats);
  (void)seats_in(reader, "restart", record.restart);
  for (std::size_t i = 0; i < record.restart.size(); ++i)
    if (std::uint64_t{record.restart[i].first.value} + record.restart[i].seats > seats)
      reader.fail(text("restart[", i, "]: out of range, no such seat"));
  for (std::size_t i = 0; i < record.moved.size(); ++i) {
    const SeatRow& row = record.moved[i].row;
    if (row.seats == 0 || std::uint64_t{record.moved[i].first.value} + row.seats > seats ||
        row.first_index > kSeatsMax || row.address.size() > kAddressBytesMax || !are_domains(row.domains))
      reader.fail(text("moved[", i, "]: out of range, no such seat"));
  }
}
void check(Reader& reader, const JobRecord& record) {
  const std::uint64_t seats = check(reader, record.seats);
  if (record.topology && seats > 0) reader.fail("seats: in the topology and here");
  if (!record.topology && !record.moved.empty()) reader.fail("moved: from no topology");
  if (!record.topology) check_seats(reader, record, seats);
  const std::vector<LineageEntry>& lineage = record.state.lineage;
  for (std::size_t i = 1; i < lineage.size(); ++i)
    if (lineage[i].generation <= lineage[i - 1].generation)
      reader.fail(text("lineage[", i, "].generation: not later than the one before"));
}
void check(Reader&, const Accusation&) {}
void check(Reader&, const FaultReport&) {}

// Whether the member sits right behind those of the row.
bool continues(const SeatRow& row, const Member& member) {
  return row.life == member.life && row.address == member.address &&
         row.first_index + row.seats == member.local_index && row.domains.node == member.domain &&
         row.domains.plan == member.plan_domain;
}

SeatRow row_of(const Member& member) {
  return {member.life, member.address, member.local_index, 1, {member.domain, member.plan_domain}};
}

// The `i`-th of them.
Member member_of(const SeatRow& row, Seat seat, std::uint32_t i) {
  return {seat, row.life, row.address, row.first_index + i, row.domains.node, row.domains.plan};
}

std::vector<SeatRow> rows_of(const std::vector<Member>& seats) {
  std::vector<SeatRow> rows;
  for (const Member& member : seats) {
    if (!rows.empty() && continues(rows.back(), member))
      ++rows.back().seats;
    else
      rows.push_back(row_of(member));
  }
  return rows;
}

std::vector<Member> seats_of(const std::vector<SeatRow>& rows) {
  std::vector<Member> seats;
  for (const SeatRow& row : rows)
    for (std::uint32_t i = 0; i < row.seats; ++i)
      seats.push_back(member_of(row, Seat(static_cast<std::uint32_t>(seats.size())), i));
  return seats;
}

// Whatever they go on from.
bool sits_alike(const Member& one, const Member& other) {
  return one.seat == other.seat && one.life == other.life && one.address == other.address &&
         one.local_index == other.local_index && one.domain == other.domain && one.plan_domain == other.plan_domain;
}

// Of as many seats: those that are others' now.
std::vector<MovedRow> moved_since(const std::vector<Member>& before, const std::vector<Member>& seats) {
  std::vector<MovedRow> moved;
  for (std::size_t i = 0; i < seats.size(); ++i) {
    const Member& member = seats[i];
    if (sits_alike(member, before[i])) continue;
    const bool next = !moved.empty() && moved.back().first.value + moved.back().row.seats == member.seat.value;
    if (next && continues(moved.back().row, member))
      ++moved.back().row.seats;
    else
      moved.push_back({member.seat, row_of(member)});
  }
  return moved;
}

// Of one seat.
SourceRow row_of(const JobState& state, std::span<const Source> sources) {
  SourceRow row{1, sources.front().slot_generation, sources.front().step, {}};
  const std::size_t seat = sources.front().seat.value;
  for (const Source& source : sources) {
    const bool is_here = seat < state.seats.size() && source.from == state.seats[seat].life;
    const bool is_nowhere = source.kind == SourceKind::storage;
    row.sources.push_back(
        {source.kind, is_here || is_nowhere ? std::nullopt : std::optional(source.from), source.extent, source.of});
  }
  return row;
}

// Without its seats. Refers to `state`.
JobRecordView record_of(const JobState& state) {
  JobRecordView record{state, {}, {}, {}, {}, {}, {}};
  const std::span<const Source> sources(state.sources);
  for (std::size_t i = 0, end = 0; i < sources.size(); i = end) {
    while (end < sources.size() && sources[end].seat == sources[i].seat) ++end;
    SourceRow row = row_of(state, sources.subspan(i, end - i));
    SourceRow* const last = record.sources.empty() ? nullptr : &record.sources.back();
    if (last != nullptr && last->sources == row.sources && last->slot_generation == row.slot_generation &&
        last->step == row.step)
      ++last->seats;
    else
      record.sources.push_back(std::move(row));
  }
  for (const Seat seat : state.restart) {
    SeatRange* const last = record.restart.empty() ? nullptr : &record.restart.back();
    if (last != nullptr && last->first.value + last->seats == seat.value)
      ++last->seats;
    else
      record.restart.push_back({seat, 1});
  }
  for (const Member& member : state.seats) {
    if (!member.before) continue;
    BeforeRow* const last = record.before.empty() ? nullptr : &record.before.back();
    if (last != nullptr && last->first.value + last->seats == member.seat.value &&
        last->before.value + last->seats == member.before->value)
      ++last->seats;
    else
      record.before.push_back({member.seat, 1, *member.before});
  }
  return record;
}

JobState state_of(JobRecord record, std::vector<Member> seats) {
  JobState state = std::move(record.state);
  state.seats = std::move(seats);
  for (const MovedRow& moved : record.moved)
    for (std::uint32_t i = 0; i < moved.row.seats; ++i)
      state.seats[moved.first.value + i] = member_of(moved.row, Seat(moved.first.value + i), i);
  for (const BeforeRow& row : record.before)
    for (std::uint32_t i = 0; i < row.seats; ++i) state.seats[row.first.value + i].before = Seat(row.before.value + i);
  Seat seat;
  for (const SourceRow& row : record.sources)
    for (std::uint32_t i = 0; i < row.seats; ++i, ++seat.value)
      for (const SourceCell& source : row.sources) {
        const NodeLife here = source.kind == SourceKind::storage ? NodeLife{} : state.seats[seat.value].life;
        state.sources.push_back(
            {seat, source.kind, source.from.value_or(here), row.slot_generation, row.step, source.extent, source.of});
      }
  for (const SeatRange& range : record.restart)
    for (std::uint32_t i = 0; i < range.seats; ++i) state.restart.emplace_back(range.first.value + i);
  return state;
}

// Texts may carry bytes of a trainer's making; what is not UTF-8 is replaced.
std::string dumped(const json& object) {
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

template <class Record>
std::string write(const Record& record) {
  return dumped(Writer::encode(record));
}

Result<json> parse(std::string_view what, std::string_view source) {
  if (source.size() > kRecordBytesMax) return Error{Code::corrupt, text(what, ": more than 1 MiB")};
  if (nested_too_deeply(source)) return Error{Code::corrupt, text(what, ": nested too deeply")};
  json parsed = json::parse(source, nullptr, false);
  if (parsed.is_discarded()) return Error{Code::corrupt, text(what, ": not JSON")};
  return parsed;
}

template <class Record>
Result<Record> record_in(std::string_view what, const json& parsed) {
  Record record;
  Reader reader(parsed);
  reader.record(parsed, record);
  if (reader.mistake().empty()) check(reader, record);
  if (!reader.mistake().empty()) return Error{Code::corrupt, text(what, ": ", reader.mistake())};
  return record;
}

template <class Record>
Result<Record> read(std::string_view what, std::string_view source) {
  PAWL_ASSIGN(const json parsed, parse(what, source));
  return record_in<Record>(what, parsed);
}

// Fails: `corrupt` if what stands there is no name.
Result<std::optional<SheetName>> name_in(const json& state) {
  const auto there = state.is_object() ? state.find("sheet") : state.end();
  if (there == state.end()) return std::optional<SheetName>();
  const bool is_name = there->is_array() && there->size() == 2 && (*there)[0].is_number_unsigned() &&
                       (*there)[1].is_number_unsigned() && (*there)[0].get<std::uint64_t>() <= kGenerationMax;
  if (!is_name) return Error{Code::corrupt, "job state: sheet: not a generation and a digest"};
  return std::optional(SheetName{Generation((*there)[0].get<std::uint64_t>()), (*there)[1].get<std::uint64_t>()});
}

// Puts back into a state what its sheet has.
Status join_sheet(json& state, const Sheet* known) {
  PAWL_ASSIGN(const std::optional<SheetName> name, name_in(state));
  if (!name) return {};
  if (known == nullptr || known->name != *name)
    return Error{Code::stale, text("job state: its sheet, of generation ", name->generation, ", is not known here")};
  PAWL_ASSIGN(json rows, parse("sheet", known->text));
  if (!rows.is_object()) return Error{Code::corrupt, "sheet: not an object"};
  state.erase("sheet");
  for (auto& [field, value] : rows.items()) {
    if (std::ranges::find(kSheetFields, std::string_view(field)) == kSheetFields.end())
      return Error{Code::corrupt, "sheet: has a field that this version does not know"};
    if (state.contains(field)) return Error{Code::corrupt, text("sheet: ", field, ": in the state, too")};
    state[field] = std::move(value);
  }
  return {};
}

// Writes the state, with a sheet if it is too long else.
void write_with_sheet(json record, Generation generation, const SheetOptions& sheets, WrittenState& written) {
  written.state = dumped(record);
  if (written.state.size() <= sheets.bytes_max) return;
  json rows = json::object();
  std::size_t bytes = written.state.size() + kSheetNameBytes;
  for (const char* const field : kSheetFields) {
    if (bytes <= sheets.bytes_max) break;
    const auto found = record.find(field);
    if (found == record.end()) continue;
    bytes -= std::min(bytes, dumped(*found).size());
    rows[field] = std::move(*found);
    record.erase(found);
  }
  if (rows.empty()) return;
  Sheet sheet = make_sheet(generation, dumped(rows));
  const bool is_known = sheets.known != nullptr && sheets.known->text == sheet.text;
  written.named = is_known ? sheets.known->name : sheet.name;
  if (!is_known) written.sheet = std::move(sheet);
  record["sheet"] = json::array({written.named->generation.value, written.named->digest});
  written.state = dumped(record);
}

}  // namespace

std::string to_json(const JobSpec& spec) {
  return write(spec);
}
std::string to_json(const NodeRecord& record) {
  return write(record);
}
std::string to_json(const JobState& state) {
  JobRecordView record = record_of(state);
  record.seats = rows_of(state.seats);
  return write(record);
}
std::string to_json(const Topology& topology) {
  return write(TopologyRecord{topology.generation, rows_of(topology.seats)});
}
std::string to_json(const Accusation& accusation) {
  return write(accusation);
}
std::string to_json(const FaultReport& report) {
  return write(report);
}
Result<JobSpec> parse_job_spec(std::string_view json) {
  return read<JobSpec>("job spec", json);
}
Result<NodeRecord> parse_node_record(std::string_view json) {
  return read<NodeRecord>("node record", json);
}
Result<JobState> parse_job_state(std::string_view json) {
  return read_state(json, nullptr);
}
Result<JobState> read_state(std::string_view json, const Topology* known, const Sheet* sheet) {
  PAWL_ASSIGN(auto whole, parse("job state", json));
  PAWL_TRY(join_sheet(whole, sheet));
  PAWL_ASSIGN(JobRecord record, record_in<JobRecord>("job state", whole));
  if (!record.topology) {
    std::vector<Member> seats = seats_of(record.seats);
    return state_of(std::move(record), std::move(seats));
  }
  const TopologyName& name = *record.topology;
  if (known == nullptr || known->generation != name.generation || known->digest != name.digest)
    return Error{Code::stale, text("job state: its topology, of generation ", name.generation, ", is not known here")};
  const nlohmann::json nothing = nlohmann::json::object();
  Reader reader(nothing);
  check_seats(reader, record, known->seats.size());
  if (!reader.mistake().empty()) return Error{Code::corrupt, text("job state: ", reader.mistake())};
  return state_of(std::move(record), known->seats);
}
std::optional<Generation> topology_named_by(std::string_view json) {
  auto parsed = parse("job state", json);
  if (!parsed || !parsed->is_object()) return std::nullopt;
  parsed->erase("sheet");
  const auto record = record_in<JobRecord>("job state", *parsed);
  return record && record->topology ? std::optional(record->topology->generation) : std::nullopt;
}
std::optional<SheetName> sheet_named_by(std::string_view json) {
  const auto parsed = parse("job state", json);
  if (!parsed) return std::nullopt;
  const auto name = name_in(*parsed);
  return name ? *name : std::nullopt;
}
std::span<const Source> sources_of(std::span<const Source> sources, Seat seat) {
  const auto found = std::ranges::equal_range(sources, seat, {}, &Source::seat);
  return {found.begin(), found.end()};
}
bool are_renumbered(std::span<const Member> seats) {
  return std::ranges::any_of(seats, [](const Member& member) { return member.before.has_value(); });
}
Topology make_topology(Generation generation, std::vector<Member> seats) {
  for (Member& member : seats) member.before.reset();
  std::uint64_t digest = 0xcbf29ce484222325u;  // FNV-1a over whole words, and over the bytes of texts
  const auto mix = [&digest](std::uint64_t word) {
    digest = (digest ^ word) * 0x100000001b3u;
    digest ^= digest >> 29;
  };
  mix(generation.value);
  for (const Member& member : seats) {
    mix(member.life.node.value);
    mix(member.life.incarnation.value);
    mix(member.local_index);
    mix(member.address.size());
    for (const char byte : member.address) mix(static_cast<unsigned char>(byte));
    for (const std::string* domain : {&member.domain, &member.plan_domain}) {
      if (member.domain.empty() && member.plan_domain.empty()) break;
      mix(domain->size());
      for (const char byte : *domain) mix(static_cast<unsigned char>(byte));
    }
  }
  return {generation, std::move(seats), digest};
}
Sheet make_sheet(Generation generation, std::string text) {
  std::uint64_t digest = 0xcbf29ce484222325u ^ generation.value;  // FNV-1a over bytes
  for (const char byte : text) digest = (digest ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
  digest ^= digest >> 29;
  return {{generation, digest}, std::move(text)};
}
Result<Topology> parse_topology(std::string_view json) {
  PAWL_ASSIGN(const TopologyRecord record, read<TopologyRecord>("topology", json));
  return make_topology(record.generation, seats_of(record.seats));
}
WrittenState write_state(const JobState& state, const Topology* known, std::size_t rows_max, SheetOptions sheets) {
  JobRecordView record = record_of(state);
  record.seats = rows_of(state.seats);
  WrittenState written;
  if (record.seats.size() <= rows_max) {
    write_with_sheet(Writer::encode(record), state.generation, sheets, written);
    return written;
  }
  record.seats.clear();
  const bool alike = known != nullptr && known->seats.size() == state.seats.size();
  if (alike) record.moved = moved_since(known->seats, state.seats);
  if (!alike || record.moved.size() > rows_max) {
    record.moved.clear();
    written.topology = make_topology(state.generation, state.seats);
    known = &*written.topology;
  }
  record.topology = TopologyName{known->generation, known->digest};
  write_with_sheet(Writer::encode(record), state.generation, sheets, written);
  return written;
}
Status check_records_of(const JobSpec& spec, std::size_t address_bytes, std::size_t domain_bytes) {
  constexpr std::uint32_t kRecordsTried = 1 << 16;  // more are far too many
  TopologyRecord record{Generation(kGenerationMax), {}};
  const std::uint32_t written = std::min(spec.node_count, kRecordsTried);
  for (std::uint32_t node = 0; node < written; ++node)
    record.seats.push_back({{NodeId(node), Incarnation(std::numeric_limits<std::int64_t>::max())},
                            std::string(address_bytes, 'x'),
                            0,
                            spec.seats_per_node,
                            {std::string(domain_bytes, 'x'), std::string(domain_bytes, 'y')}});  // after a swap
  const std::size_t bytes = write(record).size() * spec.node_count / written;
  if (bytes <= kRecordBytesMax) return {};
  const std::size_t each = bytes / spec.node_count + 1;
  return Error{Code::full, text(spec.node_count, " nodes are too many: the record of who sits where would have ", bytes,
                                " bytes, ", each, " a node, and at most ", kRecordBytesMax,
                                " are possible: use at most ", kRecordBytesMax / each, " nodes")};
}
Result<Accusation> parse_accusation(std::string_view json) {
  return read<Accusation>("accusation", json);
}
Result<FaultReport> parse_fault_report(std::string_view json) {
  return read<FaultReport>("fault report", json);
}

const char* name_of(JobPhase phase) {
  return text_of(phase);
}
const char* name_of(FaultKind kind) {
  return text_of(kind);
}
const char* name_of(SourceKind kind) {
  return text_of(kind);
}
const char* name_of(SlotState state) {
  return text_of(state);
}

JobKeys::JobKeys(std::string_view job) : root(text("/pawl/", job, "/")), beside(text("/pawl/", job, ":")) {}
std::string JobKeys::spec() const {
  return root + "spec";
}
std::string JobKeys::state() const {
  return root + "state";
}
std::string JobKeys::topologies() const {
  return root + "topology/";
}
std::string JobKeys::topology(Generation generation) const {
  return text(topologies(), generation);
}
std::string sheet_prefix(const JobKeys& keys) {
  return keys.root + "sheet/";
}
std::string sheet_key(const JobKeys& keys, SheetName name) {
  return text(sheet_prefix(keys), name.generation, '/', name.digest);
}
std::optional<Sheet> sheet_in(const JobKeys& keys, std::string_view key, std::string value) {
  const std::string prefix = sheet_prefix(keys);
  if (!key.starts_with(prefix)) return std::nullopt;
  const std::string_view name = key.substr(prefix.size());
  Generation generation;
  if (!parse_number(name.substr(0, name.find('/')), generation.value)) return std::nullopt;
  Sheet sheet = make_sheet(generation, std::move(value));
  return sheet_key(keys, sheet.name) == key ? std::optional(std::move(sheet)) : std::nullopt;
}
std::string JobKeys::nodes() const {
  return beside + "nodes/";
}
std::string JobKeys::node(NodeId node) const {
  return text(nodes(), node);
}
std::string JobKeys::all_reports() const {
  return beside + "reports/";
}
std::string JobKeys::reports(Generation generation) const {
  return text(all_reports(), generation, "/");
}
std::string JobKeys::inventories(Generation generation) const {
  return text(reports(generation), "inventory/");
}
std::string JobKeys::inventory(Generation generation, NodeId node) const {
  return text(inventories(generation), node);
}
std::string JobKeys::readies(Generation generation) const {
  return text(reports(generation), "ready/");
}
std::string JobKeys::ready(Generation generation, NodeId node) const {
  return text(readies(generation), node);
}
std::string JobKeys::collected(Generation generation) const {
  return text(reports(generation), "collected/");
}
std::string JobKeys::all_accusations() const {
  return root + "suspect/";
}
std::string JobKeys::accusations(Generation generation) const {
  return text(all_accusations(), generation, "/");
}
std::string JobKeys::accusation(Generation generation, NodeId victim, NodeId accuser) const {
  return text(accusations(generation), victim, "/", accuser);
}
std::string JobKeys::all_faults() const {
  return root + "fault/";
}
std::string JobKeys::faults(Generation generation) const {
  return text(all_faults(), generation, "/");
}
std::string JobKeys::fault(Generation generation, Seat seat) const {
  return text(faults(generation), seat);
}
std::string JobKeys::finishes() const {
  return root + "finish/";
}
std::string JobKeys::finish(Seat seat) const {
  return text(finishes(), seat);
}
std::string JobKeys::exits() const {
  return root + "exit/";
}
std::string JobKeys::exit(Seat seat) const {
  return text(exits(), seat);
}
std::string JobKeys::stop() const {
  return root + "stop";
}
std::string JobKeys::stop_acks(Generation generation) const {
  return text(root, "stop_ack/", generation, "/");
}
std::string JobKeys::stop_ack(Generation generation, NodeId node) const {
  return text(stop_acks(generation), node);
}
std::string JobKeys::all_progress() const {
  return root + "progress/";
}
std::string JobKeys::progress(Generation generation) const {
  return text(all_progress(), generation, '/');
}
std::string JobKeys::progress(Generation generation, NodeId node) const {
  return text(progress(generation), node);
}
std::string JobKeys::orders() const {
  return root + "order/";
}
std::string JobKeys::cordons() const {
  return orders() + "cordon/";
}
std::string JobKeys::cordon(NodeId node) const {
  return text(cordons(), node);
}
std::string JobKeys::drains() const {
  return orders() + "drain/";
}
std::string JobKeys::drain(NodeId node) const {
  return text(drains(), node);
}
std::string JobKeys::pause() const {
  return root + "pause";
}
std::string JobKeys::pause_acks() const {
  return root + "pause_ack/";
}
std::string JobKeys::pause_ack(Generation generation, NodeId node) const {
  return text(pause_acks(), generation, '/', node);
}
std::string JobKeys::events() const {
  return beside + "events/";
}
std::string JobKeys::event(std::uint64_t wall_ns, NodeId node) const {
  const std::string digits = text(wall_ns);  // padded, so that the order of the keys is that of time
  return text(events(), std::string(20 - digits.size(), '0'), digits, ".", node);
}

}  // namespace pawl::job
