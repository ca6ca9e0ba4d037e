#include "job/membership/inventory.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "base/text.h"

namespace pawl::job {
namespace {

constexpr std::string_view kDirty = ".dirty";  // after a slot; without it: sealed
constexpr std::string_view kTorn = ".torn";
constexpr std::string_view kEnd = "\nend";  // so that no part of a record is a record

// A digest as text: base64 of a whole number, the highest digit first.
constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
constexpr std::size_t kDigestDigits = 11;
constexpr std::uint64_t kSeatsNamedMax = std::uint64_t{1} << 32;

constexpr std::array<std::int8_t, 256> kValues = [] {
  std::array<std::int8_t, 256> values{};
  values.fill(-1);
  for (std::size_t i = 0; i < kDigits.size(); ++i)
    values[static_cast<unsigned char>(kDigits[i])] = static_cast<std::int8_t>(i);
  return values;
}();

void append_digest(std::string& out, std::uint64_t digest) {
  for (int shift = 6 * (static_cast<int>(kDigestDigits) - 1); shift >= 0; shift -= 6)
    out += kDigits[digest >> shift & 63];
}

bool parse_digest(std::string_view digits, std::uint64_t& out) {
  std::uint64_t digest = 0;
  for (const char digit : digits) {
    const int value = kValues[static_cast<unsigned char>(digit)];
    if (value < 0 || digest >> 58 != 0) return false;
    digest = digest << 6 | static_cast<std::uint64_t>(value);
  }
  out = digest;
  return digits.size() == kDigestDigits;
}

// One arena's slots.
using Slots = std::span<const InventoryItem>;

bool are_alike(const InventoryItem& a, const InventoryItem& b) {
  return a.slot_generation == b.slot_generation && a.step == b.step && a.state == b.state && a.extent == b.extent &&
         a.torn == b.torn;
}

// The items from `from` on that are of one seat, kind and layout.
Slots arena_at(Slots items, std::size_t from) {
  std::size_t end = from + 1;
  while (end < items.size() && items[end].seat == items[from].seat && items[end].kind == items[from].kind &&
         items[end].layout_digest == items[from].layout_digest)
    ++end;
  return items.subspan(from, end - from);
}

// ":0-4096", ":8192-"; of a whole stream nothing.
std::string words_of(Extent extent) {
  if (extent.is_whole()) return "";
  return text(':', extent.begin, '-', extent.end == kStreamEnd ? "" : text(extent.end));
}

// Arenas of consecutive seats that hold the same, but for their layouts.
std::string row_of(const std::vector<Slots>& arenas) {
  const InventoryItem& first = arenas.front().front();
  std::string row = text('\n', name_of(first.kind), ' ', first.seat, '-', arenas.back().front().seat);
  for (const InventoryItem& slot : arenas.front())
    row += text(' ', slot.slot_generation, '.', slot.step, words_of(slot.extent),
                slot.state == SlotState::dirty ? kDirty
                : slot.torn                    ? kTorn
                                               : "");
  row += " layout ";
  const bool one_layout =
      std::ranges::all_of(arenas, [&first](Slots slots) { return slots.front().layout_digest == first.layout_digest; });
  for (const Slots slots : arenas) {
    append_digest(row, slots.front().layout_digest);
    if (one_layout) break;
  }
  return row;
}

bool continues(Slots arena, Slots next) {
  return next.front().kind == arena.front().kind && next.front().seat.value == arena.front().seat.value + 1 &&
         std::ranges::equal(arena, next, are_alike);
}

// Consecutive seats that are equal to the same ones in the same bytes.
std::string row_of(std::span<const EqualOffer> offers) {
  const EqualOffer& first = offers.front();
  const Extent extent = first.state.extent;
  std::string row =
      text("\nequal ", first.seat, '-', offers.back().seat, ' ', first.seats.first, '+', first.seats.stride, '*',
           first.seats.count, ' ', extent.begin, '-', extent.end == kStreamEnd ? "" : text(extent.end), ' ');
  append_digest(row, first.state.digest);
  return row;
}

bool continues(const EqualOffer& offer, const EqualOffer& next) {
  return next.seats == offer.seats && next.state == offer.state && next.seat.value == offer.seat.value + 1;
}

std::string ranges_of(const std::vector<Seat>& seats) {
  std::string ranges;
  for (std::size_t i = 0; i < seats.size();) {
    std::size_t end = i + 1;
    while (end < seats.size() && seats[end].value == seats[end - 1].value + 1) ++end;
    ranges += text(' ', seats[i], '-', seats[end - 1]);
    i = end;
  }
  return ranges;
}

// The part before the next `separator`, or all that is left; takes both away.
std::string_view take(std::string_view& rest, char separator) {
  const std::size_t at = rest.find(separator);
  const std::string_view part = rest.substr(0, at);
  rest.remove_prefix(at == std::string_view::npos ? rest.size() : at + 1);
  return part;
}

template <class Id>
bool parse_id(std::string_view digits, Id& out, std::uint64_t most) {
  std::uint64_t value = 0;
  if (!parse_number_up_to(most, digits, value, 10)) return false;
  out = Id(static_cast<decltype(out.value)>(value));
  return true;
}

struct SeatsNamed {
  std::uint32_t first = 0;
  std::size_t count = 0;
};
bool parse_seats(std::string_view word, SeatsNamed& out) {
  const std::string_view first = take(word, '-');
  std::uint32_t last = 0;
  if (!parse_number(first, out.first) || !parse_number(word, last) || last < out.first) return false;
  out.count = std::size_t{last} - out.first + 1;
  return out.count <= kInventorySlotsMax;
}

bool parse_life(std::string_view word, NodeLife& out) {
  const std::string_view node = take(word, '.');
  return parse_number(node, out.node.value) && parse_number(word, out.incarnation.value);
}

bool parse_extent(std::string_view word, Extent& out) {
  const std::size_t dash = word.find('-');
  if (dash == std::string_view::npos || !parse_number(word.substr(0, dash), out.begin)) return false;
  const std::string_view end = word.substr(dash + 1);
  if (!end.empty() && (!parse_number(end, out.end) || out.end == kStreamEnd)) return false;
  return !out.is_empty();
}

bool parse_slot(std::string_view word, InventoryItem& out) {
  out.state = word.ends_with(kDirty) ? SlotState::dirty : SlotState::sealed;
  if (out.state == SlotState::dirty) word.remove_suffix(kDirty.size());
  out.torn = out.state == SlotState::sealed && word.ends_with(kTorn);
  if (out.torn) word.remove_suffix(kTorn.size());
  const std::size_t cut = word.find(':');
  if (cut != std::string_view::npos && (!parse_extent(word.substr(cut + 1), out.extent) || out.extent.is_whole()))
    return false;  // a whole one is not written
  word = word.substr(0, cut);
  const std::string_view generation = take(word, '.');
  return parse_id(generation, out.slot_generation, kGenerationMax) && parse_id(word, out.step, kStepMax);
}

// Each returns what is wrong with its line; empty: nothing.
using Mistake = std::string_view;

Mistake read_head(std::string_view line, Inventory& out) {
  if (take(line, ' ') != "inventory") return "not an inventory";
  std::uint32_t version = 0;
  if (!parse_number(take(line, ' '), version) || version != kInventoryVersion) return "of another version";
  if (!parse_life(take(line, ' '), out.life)) return "the node's life is not NODE.INCARNATION";
  if (take(line, ' ') != "generation" || !parse_id(take(line, ' '), out.generation, kGenerationMax))
    return "the generation is missing or out of range";
  if (take(line, ' ') != "committed" || !parse_id(take(line, ' '), out.committed, kStepMax))
    return "the committed step is missing or out of range";
  if (take(line, ' ') != "frozen_ms" || !parse_number(take(line, ' '), out.frozen_wall_ms))
    return "the time is missing or out of range";
  return line.empty() ? "" : "has words that this version does not know";
}

Mistake read_alive(std::string_view line, Inventory& out) {
  do {
    SeatsNamed seats;
    if (!parse_seats(take(line, ' '), seats)) return "the seats are not FIRST-LAST";
    if (seats.count > kInventorySlotsMax - out.trainers_alive.size()) return "has too many seats";
    for (std::size_t i = 0; i < seats.count; ++i) out.trainers_alive.emplace_back(seats.first + i);
  } while (!line.empty());
  return "";
}

Mistake read_slots(std::string_view& line, SourceKind kind, std::vector<InventoryItem>& out) {
  std::string_view word;
  while ((word = take(line, ' ')) != "layout") {
    InventoryItem slot;
    slot.kind = kind;
    if (!parse_slot(word, slot)) return "a slot is not GENERATION.STEP or a part of it";
    out.push_back(slot);
  }
  return out.empty() ? "has no slots" : "";
}

Mistake read_row(SourceKind kind, std::string_view line, Inventory& out) {
  SeatsNamed seats;
  if (!parse_seats(take(line, ' '), seats)) return "the seats are not FIRST-LAST";
  std::vector<InventoryItem> slots;
  if (const Mistake mistake = read_slots(line, kind, slots); !mistake.empty()) return mistake;
  if (seats.count * slots.size() > kInventorySlotsMax - out.items.size()) return "has too many slots";
  const bool one_layout = line.size() == kDigestDigits;
  if (!one_layout && line.size() != seats.count * kDigestDigits) return "the layouts are not one, or one for each seat";
  for (std::size_t i = 0; i < seats.count; ++i) {
    std::uint64_t layout = 0;
    if (!parse_digest(line.substr(one_layout ? 0 : i * kDigestDigits, kDigestDigits), layout))
      return "a layout is not a digest";
    for (InventoryItem& slot : slots) {
      slot.seat = Seat(static_cast<std::uint32_t>(seats.first + i));
      slot.layout_digest = layout;
      if (!out.items.empty() && slot < out.items.back()) return "not in ascending order";
      out.items.push_back(slot);
    }
  }
  return "";
}

bool parse_along(std::string_view word, SeatsAlong& out) {
  const std::string_view first = take(word, '+');
  const std::string_view stride = take(word, '*');
  if (!parse_number(first, out.first.value) || !parse_number(stride, out.stride) || !parse_number(word, out.count))
    return false;
  return out.stride > 0 && out.count > 1 &&
         out.first.value + std::uint64_t{out.stride} * (out.count - 1) < kSeatsNamedMax;
}

Mistake read_equal(std::string_view line, Inventory& out) {
  SeatsNamed seats;
  if (!parse_seats(take(line, ' '), seats)) return "the seats are not FIRST-LAST";
  EqualOffer offer;
  if (!parse_along(take(line, ' '), offer.seats)) return "the equal seats are not FIRST+STRIDE*COUNT";
  if (!parse_extent(take(line, ' '), offer.state.extent)) return "the bytes are not BEGIN-END";
  if (!parse_digest(line, offer.state.digest)) return "what is equal is not a digest";
  if (seats.count > kInventorySlotsMax - out.equal.size()) return "has too many seats";
  for (std::size_t i = 0; i < seats.count; ++i) {
    offer.seat = Seat(static_cast<std::uint32_t>(seats.first + i));
    if (!offer.seats.has(offer.seat)) return "a seat is not one of those that it is equal to";
    if (!out.equal.empty() && offer <= out.equal.back()) return "not in ascending order";
    out.equal.push_back(offer);
  }
  return "";
}

Mistake read_line(std::string_view line, std::size_t number, Inventory& out) {
  if (line.ends_with(' ')) return "ends with a blank";
  if (number == 1) return read_head(line, out);
  const std::string_view word = take(line, ' ');
  if (word == "alive" && number == 2) return read_alive(line, out);
  if (word == "equal") return read_equal(line, out);
  for (const SourceKind kind : {SourceKind::own_arena, SourceKind::replica})
    if (word == name_of(kind)) return out.equal.empty() ? read_row(kind, line, out) : "slots after what is equal";
  return "this version does not know it";
}

}  // namespace

std::string to_text(const Inventory& inventory) {
  std::vector<InventoryItem> items = inventory.items;
  std::erase_if(items, [](const InventoryItem& item) { return item.state == SlotState::empty; });
  std::ranges::sort(items);
  std::string record =
      text("inventory ", kInventoryVersion, ' ', inventory.life.node, '.', inventory.life.incarnation, " generation ",
           inventory.generation, " committed ", inventory.committed, " frozen_ms ", inventory.frozen_wall_ms);
  if (!inventory.trainers_alive.empty()) record += text("\nalive", ranges_of(inventory.trainers_alive));
  std::vector<Slots> row;
  for (std::size_t i = 0; i < items.size(); i += row.back().size()) {
    const Slots arena = arena_at(items, i);
    if (!row.empty() && !continues(row.back(), arena)) record += row_of(std::exchange(row, {}));
    row.push_back(arena);
  }
  if (!row.empty()) record += row_of(row);
  std::vector<EqualOffer> offers = inventory.equal;
  std::ranges::sort(offers);
  for (std::size_t i = 0, end = 0; i < offers.size(); i = end) {
    for (end = i + 1; end < offers.size() && continues(offers[end - 1], offers[end]);) ++end;
    record += row_of(std::span(offers).subspan(i, end - i));
  }
  return record += kEnd;
}

Result<Inventory> parse_inventory(std::string_view record) {
  if (record.size() > kRecordBytesMax) return Error{Code::corrupt, "inventory: more than 1 MiB"};
  if (!record.ends_with(kEnd)) return Error{Code::corrupt, "inventory: has no end"};
  Inventory inventory;
  for (std::size_t number = 1;; ++number) {
    const std::string_view line = take(record, '\n');
    if (record.empty()) return inventory;
    if (const Mistake mistake = read_line(line, number, inventory); !mistake.empty())
      return Error{Code::corrupt, text("inventory: line ", number, ": ", mistake)};
  }
}

}  // namespace pawl::job
