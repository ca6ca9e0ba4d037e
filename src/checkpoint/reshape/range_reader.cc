#include "checkpoint/reshape/range_reader.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/text.h"
#include "checkpoint/reshape/alignment.h"

namespace pawl::checkpoint {
namespace {

constexpr std::uint64_t kDirectReadMin = 256 << 10;  // alignment adds up to two units: at most 3.1 %

// Where the range's one piece belongs, if it lies there as it lies in the file, without a gap; else null.
std::byte* place_of_range(const ReadRange& range, const StagedSlab& slab) {
  if (range.last_piece - range.first_piece != 1) return nullptr;
  const ReadPiece& piece = slab.pieces[range.first_piece];
  const PlacedCopy& copy = slab.copy_of(piece.part);
  const PlacedEnd& source = slab.source_of(piece.part, piece.source);
  const ElementType to_type = copy.source_count > 1 ? copy.from : copy.to;
  if (copy.from != to_type || copy.from != source.stored || (source.swapped && swapped_bytes(copy.from) > 1))
    return nullptr;
  if (volume(piece.box) * (size_bits(copy.from) / 8) != range.end - range.begin) return nullptr;
  const PlacedEnd target = slab.arrival_of(piece.part, piece.source, piece.box);
  if (target.peer != BufferPlace::kThisProcess) return nullptr;
  for (std::uint32_t d = 0; d < piece.box.dimensions; ++d)
    if (piece.box.size[d] > 1 && (source.stride[d] != target.stride[d] || source.stride[d] == 0)) return nullptr;
  return target.memory;
}

}  // namespace

Status RangeReader::prepare() {
  if (!buffers_.empty()) return {};
  const std::uint64_t bytes = lane_memory_.read_buffers * lane_memory_.read_buffer_bytes;
  PAWL_TRY(memory_.map(bytes));
  buffer_bytes_ = bytes;
  for (std::uint64_t i = 0; i < lane_memory_.read_buffers; ++i)
    buffers_.push_back({memory_.data() + i * lane_memory_.read_buffer_bytes, 0, 0, {}});
  return {};
}

// Buffers are filled ahead.
Status RangeReader::read(const StagedSlab& slab, const std::vector<ReadRange>& ranges, DiskQueue& queue,
                         SlabCopier& copier) {
  PAWL_TRY(prepare());
  const Task task{slab, ranges, queue, copier};
  std::vector<std::uint64_t> free;
  for (std::uint64_t i = queue.uses_io_uring() ? lane_memory_.read_buffers : 1; i-- > 0;) free.push_back(i);
  std::size_t next = 0;
  Status status;
  for (;;) {
    while (status && next < ranges.size() && !free.empty() && !execution_.stopped()) {
      const std::uint64_t number = free.back();
      status = fill(buffers_[number], number, task, next);
      if (status) free.pop_back();
    }
    if (in_flight_ == 0) return status;
    const DiskAnswer answer = queue.wait();
    ReadBuffer& buffer = buffers_[answer.tag >> 32];
    Status settled = settle(buffer, answer, task);
    if (status && !settled) status = std::move(settled);
    if (buffer.pending != 0) continue;
    if (status) empty(buffer, task);
    free.push_back(answer.tag >> 32);
  }
}

// False: there is no room for it in this buffer.
bool RangeReader::add_reading(ReadBuffer& buffer, const ReadRange& range, const StagedSlab& slab, Reading reading) {
  const std::uint64_t size = range.end - range.begin;
  OpenFile& file = *reading.file;
  reading.direct = size >= kDirectReadMin && file.direct() >= 0 && !file.is_cached(range.begin, size);
  if (!reading.direct) reading.data = place_of_range(range, slab);
  reading.in_place = reading.data != nullptr;
  if (reading.in_place) {
    reading.request.memory = reading.data;
  } else {
    buffer.used = rounded_up(buffer.used, reading.direct ? kDirectUnit : 64);
    const std::uint64_t begin = reading.direct ? rounded_down(range.begin, kDirectUnit) : range.begin;
    const std::uint64_t room = reading.direct ? rounded_up(range.end, kDirectUnit) - begin : size;
    if (buffer.used + room > lane_memory_.read_buffer_bytes) return false;
    reading.request.memory = buffer.memory + buffer.used;
    reading.request.offset_bytes = begin;
    reading.request.size_bytes = room;
    reading.request.enough_bytes = range.end - begin;
    reading.data = reading.request.memory + (range.begin - begin);
    if (reading.direct) reading.request.fd = file.direct();
    buffer.used += room;
  }
  buffer.readings.push_back(std::move(reading));
  return true;
}

// Adds the next ranges as long as there is room, and asks for them.
Status RangeReader::fill(ReadBuffer& buffer, std::uint64_t number, const Task& task, std::size_t& next) {
  buffer.used = 0;
  buffer.readings.clear();
  while (next < task.ranges.size() && buffer.readings.size() < kRequestsMax / lane_memory_.read_buffers) {
    const ReadRange& range = task.ranges[next];
    const std::uint64_t size = range.end - range.begin;
    PAWL_ASSIGN(std::shared_ptr<OpenFile> file, execution_.sources.get(range.file));
    const DiskRequest request{.fd = file->plain(),
                              .address = file->address(),
                              .offset_bytes = range.begin,
                              .size_bytes = size,
                              .enough_bytes = size,
                              .tag = number << 32 | buffer.readings.size()};
    if (!add_reading(buffer, range, task.slab, {std::move(file), next, nullptr, request})) break;
    ++next;
    if (buffer.readings.back().in_place && buffer.used == 0 && size >= kDirectReadMin) break;  // enough for one
  }
  buffer.pending = buffer.readings.size();
  for (const Reading& reading : buffer.readings) {
    task.queue.push(reading.request);
    ++in_flight_;
  }
  return {};
}

Status RangeReader::settle(ReadBuffer& buffer, const DiskAnswer& answer, const Task& task) {
  Reading& reading = buffer.readings[answer.tag & 0xFFFF'FFFF];
  --in_flight_;
  bytes_read_ += answer.bytes;
  if (answer.error == EINVAL && reading.direct) {  // the file system has other rules for it: ask again without
    reading.file->refuse_direct();
    reading.direct = false;
    reading.request.fd = reading.file->plain();
    task.queue.push(reading.request);
    ++in_flight_;
    return {};
  }
  --buffer.pending;
  if (answer.failure) return *answer.failure;
  if (answer.error != 0) return disk_error("read", reading.file->path(), reading.request.offset_bytes, answer.error);
  const ReadRange& range = task.ranges[reading.range];
  if (reading.request.offset_bytes + answer.bytes < range.end)
    return Error{Code::corrupt, text("read ", reading.file->path(), " at ", range.begin, ": the file ends at ",
                                     reading.request.offset_bytes + answer.bytes, ", ", range.end - range.begin,
                                     " bytes are wanted: it is truncated, or was changed meanwhile")};
  return {};
}

// To the observer: what the pieces cover, in as few stretches as possible.
void RangeReader::show(const Reading& reading, const ReadRange& range, const StagedSlab& slab) const {
  const ReadObserver& observe = execution_.options.observe_read;
  if (!observe) return;
  std::uint64_t begin = range.begin, end = range.begin;
  const auto flush = [&] {
    if (begin < end) observe(range.file, begin, {reading.data + (begin - range.begin), end - begin});
  };
  for (std::size_t i = range.first_piece; i < range.last_piece; ++i) {
    if (slab.pieces[i].begin > end) {
      flush();
      begin = slab.pieces[i].begin;
    }
    end = std::max(end, slab.pieces[i].end);
  }
  flush();
}

void RangeReader::empty(ReadBuffer& buffer, const Task& task) {
  for (const Reading& reading : buffer.readings) {
    if (execution_.stopped()) return;
    const ReadRange& range = task.ranges[reading.range];
    show(reading, range, task.slab);
    if (reading.in_place) continue;
    for (std::size_t i = range.first_piece; i < range.last_piece; ++i) {
      const ReadPiece& piece = task.slab.pieces[i];
      task.copier.copy(task.slab, piece.part, piece.source, piece.box, reading.data + (piece.begin - range.begin));
    }
  }
  if (Status sent = task.copier.flush(); !sent) execution_.fail(std::move(sent).error());  // the buffer is used again
}

}  // namespace pawl::checkpoint
