#include "job/persist/other_world.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/first_few.h"
#include "base/text.h"

namespace pawl::job {
namespace {

bool is_blob(const LayoutEntry& entry) {
  return entry.mesh == kNoMesh;
}

bool is_own(const LayoutEntry& entry) {
  return entry.lifetime == Lifetime::volatile_;
}

std::string label(const LayoutEntry& entry) {
  return text(entry.name, " (", entry.role, ")");
}

std::string form(const LayoutEntry& entry) {
  return text(name_of(entry.dtype), ' ', text_of(entry.shape), ", box ", text_of(entry.box));
}

// "volatile/rank12" of seat 12 is "volatile/rank3" of seat 3. A number that goes on to the left is another one.
std::string name_at(std::string_view name, Seat seat, Seat other) {
  const std::string number = text(seat);
  if (!name.ends_with(number)) return std::string(name);
  const std::string_view rest = name.substr(0, name.size() - number.size());
  if (!rest.empty() && rest.back() >= '0' && rest.back() <= '9') return std::string(name);
  return text(rest, other);
}

class Counterparts {
 public:
  Counterparts(const SeatLayout& stored, Seat from) : from_(from) {
    for (const LayoutEntry& entry : stored.entries)
      if (is_own(entry)) own_.emplace(std::pair(entry.name, entry.role), &entry);
  }

  // nullptr: there is none.
  const LayoutEntry* of(const LayoutEntry& entry, Seat seat) const {
    auto found = own_.find({entry.name, entry.role});
    if (found == own_.end() && is_blob(entry)) found = own_.find({name_at(entry.name, seat, from_), entry.role});
    return found != own_.end() ? found->second : nullptr;
  }
  const auto& all() const { return own_; }

 private:
  Seat from_;
  std::map<std::pair<std::string, std::string>, const LayoutEntry*> own_;
};

// What the seat's own state lacks, or has too much. One seat of a job has the values of its checkpoints, and reads none.
void compare_own(const SeatLayout& declared, Seat seat, const Counterparts& there, FirstFew& faults) {
  std::set<const LayoutEntry*> used;
  for (const LayoutEntry& entry : declared.entries) {
    if (!is_own(entry)) continue;
    const LayoutEntry* const stored = there.of(entry, seat);
    if (stored == nullptr) {
      faults.add(text(label(entry), ": is not in the checkpoint"));
      continue;
    }
    used.insert(stored);
    const bool is_alike = stored->dtype == entry.dtype && stored->shape == entry.shape && stored->box == entry.box &&
                          stored->order == entry.order;
    if (is_blob(entry) != is_blob(*stored) || (!is_blob(entry) && !is_alike))
      faults.add(text(label(entry), ": ", form(*stored), " there, ", form(entry), " here, and each seat's is its own"));
  }
  for (const auto& [key, stored] : there.all())
    if (!used.contains(stored) && !(is_blob(*stored) && stored->name == kValuesBlob))
      faults.add(text(label(*stored), ": is not declared here"));
}

// What every seat of the other world has, this one must declare. Of what is cut among seats, another one may have the rest;
// but no role is gone altogether, as when the script has another optimizer. Of seats that have no part of any such tensor
// nothing follows, so that is asked of the first one alone.
void compare_stable(const SeatLayout& declared, Seat seat, const SeatLayout& stored, FirstFew& faults) {
  std::set<std::pair<std::string_view, std::string_view>> here;
  std::set<std::string_view> roles;
  for (const LayoutEntry& entry : declared.entries) {
    here.emplace(entry.name, entry.role);
    roles.insert(entry.role);
  }
  for (const LayoutEntry& entry : stored.entries) {
    if (entry.lifetime != Lifetime::stable) continue;
    const bool is_everywhere = entry.placement == TensorPlacement::replicate;
    if (is_everywhere ? !here.contains({entry.name, entry.role}) : seat == Seat(0) && !roles.contains(entry.role))
      faults.add(text(label(entry), ": is not declared here"));
  }
}

}  // namespace

Seat seat_in_world(Seat seat, std::uint32_t seat_count) {
  return Seat(seat.value % seat_count);
}

Result<SeatLayout> layout_from_other_world(const SeatLayout& declared, Seat seat, const SeatLayout& stored) {
  const Counterparts there(stored, seat_in_world(seat, stored.world));
  FirstFew faults;
  compare_own(declared, seat, there, faults);
  compare_stable(declared, seat, stored, faults);
  if (faults.any()) return Error{Code::invalid, faults.sentence()};
  LayoutBuilder builder(declared.world);
  for (const Mesh& mesh : declared.meshes) PAWL_TRY(builder.add_mesh(mesh));
  for (const LayoutEntry& entry : declared.entries) {
    if (is_blob(entry))
      PAWL_TRY(builder.add_blob(entry.name, std::max(entry.bytes, there.of(entry, seat)->bytes) - kBlobHeaderBytes));
    else
      PAWL_TRY(builder.add(entry));
  }
  return builder.build();
}

Status fill_own_state(const SeatLayout& layout, Seat seat, std::span<std::byte> to, const SeatLayout& stored,
                      std::span<const std::byte> from) {
  if (to.size() != layout.payload_bytes - layout.stable_bytes ||
      from.size() != stored.payload_bytes - stored.stable_bytes)
    return Error{Code::invalid, "the seat's own state is not of the length that its layout says"};
  std::ranges::fill(to, std::byte{0});
  const Counterparts there(stored, seat_in_world(seat, stored.world));
  for (const LayoutEntry& entry : layout.entries) {
    if (!is_own(entry)) continue;
    const LayoutEntry* const other = there.of(entry, seat);
    if (other == nullptr) return Error{Code::invalid, text(label(entry), ": is not in the checkpoint")};
    const std::span<const std::byte> bytes = from.subspan(other->payload_offset - stored.stable_bytes, other->bytes);
    std::uint64_t count = other->bytes;
    if (is_blob(entry)) {
      std::memcpy(&count, bytes.data(), sizeof count);
      if (count > other->bytes - kBlobHeaderBytes)
        return Error{Code::corrupt, text("blob ", other->name, ": ", count, " bytes of ", other->bytes)};
      count += kBlobHeaderBytes;
    }
    if (count > entry.bytes)
      return Error{Code::invalid, text(label(entry), ": ", count, " bytes, and there is room for ", entry.bytes)};
    std::ranges::copy(bytes.first(count),
                      to.begin() + static_cast<std::ptrdiff_t>(entry.payload_offset - layout.stable_bytes));
  }
  return {};
}

}  // namespace pawl::job
