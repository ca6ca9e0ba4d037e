#include "job/daemon/rendezvous_log.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/crc32c.h"
#include "base/text.h"

namespace pawl::job {
namespace {

constexpr std::uint64_t kMagic = 0x3152'5453'4C57'4150;  // "PAWLSTR1"
constexpr std::size_t kRoomBytesMin = 256 << 10;

struct Header {
  std::uint64_t magic;
  std::uint64_t generation;
};
// Before each record, 8-byte aligned; `length` is written last. 0: the end.
struct Line {
  std::atomic<std::uint32_t> length;
  std::uint32_t crc32c;
};
static_assert(sizeof(Header) == 16 && sizeof(Line) == 8);

std::size_t space_of(std::size_t record_bytes) {
  return (sizeof(Line) + record_bytes + 7) / 8 * 8;
}

Line* line_at(const Mapping& memory, std::size_t offset) {
  return reinterpret_cast<Line*>(memory.data() + offset);
}

Header header_of(const Mapping& memory) {
  Header header{};
  std::memcpy(&header, memory.data(), sizeof header);
  return header;
}

}  // namespace

Status RendezvousLog::adopt(Fd fd) {
  PAWL_ASSIGN(const std::uint64_t size, shared_.size_bytes(fd.get()));
  if (size < sizeof(Header) + sizeof(Line)) return Error{Code::corrupt, "the store's segment is too short"};
  PAWL_ASSIGN(Mapping memory, shared_.map(fd.get(), size, {}));
  if (header_of(memory).magic != kMagic) return Error{Code::corrupt, "the store's segment has a wrong magic"};
  std::size_t used = sizeof(Header);
  while (used + sizeof(Line) <= size) {
    const Line* line = line_at(memory, used);
    const std::uint32_t length = line->length.load(std::memory_order_acquire);
    if (length == 0) break;
    if (length > size - used - sizeof(Line)) return Error{Code::corrupt, "a record of the store passes its end"};
    const auto* record = memory.data() + used + sizeof(Line);
    if (crc32c(std::span(record, length)) != line->crc32c)
      return Error{Code::corrupt, "a record of the store is damaged"};
    used += space_of(length);
  }
  fd_ = std::move(fd);
  memory_ = std::move(memory);
  used_bytes_ = used;
  return {};
}

std::vector<std::string> RendezvousLog::records(Generation generation) const {
  std::vector<std::string> records;
  if (memory_.data() == nullptr || header_of(memory_).generation != generation.value) return records;
  for (std::size_t at = sizeof(Header); at < used_bytes_;) {
    const std::uint32_t length = line_at(memory_, at)->length.load(std::memory_order_acquire);
    records.emplace_back(reinterpret_cast<const char*>(memory_.data() + at + sizeof(Line)), length);
    at += space_of(length);
  }
  return records;
}

bool RendezvousLog::try_append(const std::string& record) {
  const std::size_t space = space_of(record.size());
  if (space > memory_.size_bytes() - used_bytes_) return false;
  Line* line = line_at(memory_, used_bytes_);
  std::memcpy(memory_.data() + used_bytes_ + sizeof(Line), record.data(), record.size());
  line->crc32c = crc32c(std::as_bytes(std::span(record)));
  line->length.store(static_cast<std::uint32_t>(record.size()), std::memory_order_release);
  used_bytes_ += space;
  return true;
}

Status RendezvousLog::begin_anew(Generation generation, std::span<const std::string> records, std::size_t room_bytes) {
  std::size_t size = sizeof(Header) + room_bytes;
  for (const std::string& record : records) size += 2 * space_of(record.size());
  PAWL_ASSIGN(Fd fd, shared_.create(text("pawl.", job_, ".", kName), size));
  PAWL_ASSIGN(Mapping memory, shared_.map(fd.get(), size, {}));
  const Header header{kMagic, generation.value};
  std::memcpy(memory.data(), &header, sizeof header);
  fd_ = std::move(fd);
  memory_ = std::move(memory);
  used_bytes_ = sizeof(Header);
  for (const std::string& record : records) (void)try_append(record);  // there is room
  return {};
}

Status RendezvousLog::append(Generation generation, const std::string& record,
                             const std::function<std::vector<std::string>()>& all) {
  const bool ours = memory_.data() != nullptr && header_of(memory_).generation == generation.value;
  if (ours && try_append(record)) return {};
  const std::size_t room = std::max(kRoomBytesMin, 2 * space_of(record.size()));
  PAWL_TRY(begin_anew(generation, all(), room));
  (void)try_append(record);
  hold_(kName, fd_.get());  // it is whole: the keeper may let go of the one before
  return {};
}

}  // namespace pawl::job
