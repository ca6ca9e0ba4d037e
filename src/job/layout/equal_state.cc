#include "job/layout/equal_state.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/digest.h"
#include "base/text.h"

namespace pawl::job {
namespace {

using Entries = std::vector<const LayoutEntry*>;

bool is_along(std::uint64_t axes, std::size_t axis) {
  return (axes >> axis & 1) != 0;
}

std::string name_of_group(const Mesh& mesh, std::uint64_t axes, const std::vector<std::uint64_t>& place) {
  std::string along;
  std::string others;
  for (std::size_t i = 0; i < mesh.axes.size(); ++i) {
    const std::string& name = mesh.axes[i].name;
    if (is_along(axes, i))
      along += text(along.empty() ? "" : "+", name);
    else
      others += text(others.empty() ? " of " : ",", name, '=', place[i]);
  }
  return text(mesh.name, ": ", along, others);
}

std::optional<SeatsAlong> seats_of(const Mesh& mesh, std::uint64_t axes, Seat seat) {
  std::uint64_t stride = 0;
  std::uint64_t count = 1;
  std::uint64_t inner = 1;  // ranks between two neighbours on the axis
  for (std::size_t i = mesh.axes.size(); i-- > 0; inner *= mesh.axes[i].size) {
    if (!is_along(axes, i) || mesh.axes[i].size == 1) continue;
    if (count > 1 && inner != stride * count) return std::nullopt;
    if (count == 1) stride = inner;
    count *= mesh.axes[i].size;
  }
  if (count == 1) return std::nullopt;
  return seats_with(seat, static_cast<std::uint32_t>(stride), static_cast<std::uint32_t>(count));
}

std::uint64_t end_of(const LayoutEntry& entry) {
  return entry.payload_offset + (entry.bytes + kEntryAlignment - 1) / kEntryAlignment * kEntryAlignment;
}

std::string line_of(const LayoutEntry& entry) {
  std::string line = text(entry.name, '\t', entry.role, '\t', name_of(entry.dtype), '\t', text_of(entry.shape), '\t',
                          text_of(begin_of(entry.box)), '\t', text_of(shape_of(entry.box)));
  for (const std::uint32_t dimension : entry.order)
    line += text('\t', dimension);  // equal boxes: equal bytes only if so
  return line + '\n';
}

// Runs of entries with nothing else between them, the longest ones, in ascending order.
std::vector<EqualExtent> extents_of(const std::string& group, Entries entries, std::uint64_t payload_bytes) {
  std::erase_if(entries, [](const LayoutEntry* entry) { return entry->bytes == 0; });
  std::ranges::sort(entries, {}, &LayoutEntry::payload_offset);
  std::vector<EqualExtent> extents;
  for (std::size_t i = 0; i < entries.size();) {
    Extent extent{entries[i]->payload_offset, entries[i]->payload_offset};
    std::string lines = text(group, '\n');
    for (; i < entries.size() && entries[i]->payload_offset == extent.end; ++i) {
      lines += text(entries[i]->payload_offset, '\t', line_of(*entries[i]));
      extent.end = end_of(*entries[i]);
    }
    if (extent.end == payload_bytes) extent.end = kStreamEnd;
    extents.push_back({extent, digest_of(lines)});
  }
  if (extents.size() <= kEqualExtentsMax) return extents;
  const auto is_longer = [](const EqualExtent& a, const EqualExtent& b) {
    return std::pair(b.extent.end - b.extent.begin, a.extent.begin) <
           std::pair(a.extent.end - a.extent.begin, b.extent.begin);
  };
  std::ranges::sort(extents, is_longer);
  extents.resize(kEqualExtentsMax);
  std::ranges::sort(extents);
  return extents;
}

}  // namespace

bool SeatsAlong::has(Seat seat) const {
  if (seat < first || stride == 0) return false;
  const std::uint32_t beyond = seat.value - first.value;
  return beyond % stride == 0 && beyond / stride < count;
}

SeatsAlong seats_with(Seat seat, std::uint32_t stride, std::uint32_t count) {
  const std::uint64_t block = std::uint64_t{stride} * count;
  return {Seat(static_cast<std::uint32_t>(seat.value / block * block + seat.value % stride)), stride, count};
}

std::vector<EqualState> equal_state_of(const SeatLayout& layout, Seat seat) {
  std::map<std::pair<std::uint32_t, std::uint64_t>, Entries> groups;  // by mesh and axes
  for (const LayoutEntry& entry : layout.entries)
    if (entry.equal_axes != 0) groups[{entry.mesh, entry.equal_axes}].push_back(&entry);
  std::vector<EqualState> states;
  for (auto& [key, entries] : groups) {
    const Mesh& mesh = layout.meshes[key.first];
    const std::optional<SeatsAlong> seats = seats_of(mesh, key.second, seat);
    if (!seats) continue;
    EqualState state{name_of_group(mesh, key.second, coordinates_of(mesh, seat.value)), *seats, 0, 0, {}};
    std::ranges::sort(entries, {}, [](const LayoutEntry* entry) { return std::pair(entry->name, entry->role); });
    std::string lines;
    for (const LayoutEntry* entry : entries) {
      lines += line_of(*entry);
      state.bytes += entry->bytes;
    }
    state.digest = digest_of(lines);
    state.extents = extents_of(state.group, std::move(entries), layout.payload_bytes);
    states.push_back(std::move(state));
  }
  std::ranges::sort(states, {}, &EqualState::group);
  return states;
}

}  // namespace pawl::job
