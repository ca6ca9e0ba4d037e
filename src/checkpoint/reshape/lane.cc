#include "checkpoint/reshape/lane.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <tuple>
#include <utility>

#include "base/text.h"
#include "checkpoint/reshape/cast.h"
#include "checkpoint/reshape/strided.h"

namespace pawl::checkpoint {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kDepth = 256;                // requests in flight, the same number for each slot
constexpr std::uint64_t kSlotBytes = 512 << 10;      // for one request: longer ones are no faster, and queue worse
constexpr std::uint64_t kHugePage = 2 << 20;         // that a slot lies in one of them is one segment to the disk
constexpr std::uint64_t kDirectReadMin = 256 << 10;  // alignment adds up to two units: at most 3.1 %
constexpr std::uint64_t kDirectWriteMin = 256 << 10;
constexpr std::uint64_t kWriteBytes = 1 << 20;  // of one request
constexpr double kGapShare = 0.015;             // of the needed bytes; with alignment less than 5 %
constexpr std::uint32_t kWritesMax = 16;        // more in flight don't make a disk faster
constexpr std::size_t kMeanElements = 1024;     // averaged at once
constexpr std::int64_t kReportEveryMs = 100;

std::uint64_t rounded_down(std::uint64_t value, std::uint64_t unit) {
  return value / unit * unit;
}

std::uint64_t rounded_up(std::uint64_t value, std::uint64_t unit) {
  return rounded_down(value + unit - 1, unit);
}

std::int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::vector<std::string> paths_of(const std::vector<StoredFile>* files) {
  std::vector<std::string> paths;
  for (std::size_t i = 0; files != nullptr && i < files->size(); ++i) paths.push_back((*files)[i].path);
  return paths;
}

std::vector<std::string> paths_of(const std::vector<TargetFile>& files) {
  std::vector<std::string> paths;
  for (const TargetFile& file : files) paths.push_back(file.path);
  return paths;
}

// Strides, in bytes, of the box's elements without gaps.
PerDimension dense_bytes(const Box& box, std::uint64_t unit) {
  PerDimension stride = dense_stride(box);
  for (std::uint32_t d = 0; d < box.dimensions; ++d) stride[d] *= unit;
  return stride;
}

}  // namespace

LaneMemory divide_memory(std::uint64_t bytes) {
  // More than eight at once from each of two lanes per core only wait, and are joined to longer requests meanwhile.
  constexpr std::uint64_t kSlotsMin = 4, kSlotsMax = 8;
  constexpr std::uint64_t kStagedMax = 32 << 20;
  constexpr std::uint64_t kTargetMax = 16 << 20;
  constexpr std::uint64_t kRunsMax = 32 << 10;
  LaneMemory memory;
  memory.slots = std::clamp(bytes / 4 / kSlotBytes, kSlotsMin, kSlotsMax);
  memory.slot_bytes = std::min(kSlotBytes, rounded_down(bytes / 4 / memory.slots, kDirectUnit));
  memory.staged_bytes = std::min(kStagedMax, bytes / 2);
  // Windows are placed with up to a page of room before each large one.
  memory.limits.staged_bytes = memory.staged_bytes / 16 * 15;
  memory.limits.target_bytes = std::min(kTargetMax, memory.limits.staged_bytes);
  memory.limits.runs =
      std::min(kRunsMax, std::max<std::uint64_t>(16, bytes / 4 / (sizeof(ReadPiece) + sizeof(CopyPart))));
  return memory;
}

// --- SlabQueue ----------------------------------------------------------------------------------------------------

bool SlabQueue::push(Slab slab, const std::function<bool()>& stopped) {
  std::unique_lock lock(mutex_);
  while (slabs_.size() >= slabs_max_) {
    if (stopped()) return false;
    changed_.wait_for(lock, 20ms);
  }
  slabs_.push_back(std::move(slab));
  changed_.notify_all();
  return true;
}

void SlabQueue::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

std::optional<Slab> SlabQueue::pop(const std::function<bool()>& stopped) {
  std::unique_lock lock(mutex_);
  while (slabs_.empty() && !closed_ && !stopped()) changed_.wait_for(lock, 20ms);
  if (slabs_.empty() || stopped()) return std::nullopt;
  Slab slab = std::move(slabs_.front());
  slabs_.pop_front();
  changed_.notify_all();
  return slab;
}

// --- LaneShared ---------------------------------------------------------------------------------------------------

LaneShared::LaneShared(const CopySource& source, const CopyTarget& target, const ExecuteOptions& given,
                       std::uint64_t decoded_bytes_max, std::size_t slabs_max)
    : options(given),
      stored(source.files),
      sources(paths_of(source.files), false, given.direct),
      targets(paths_of(target.files), true, given.direct),
      peers(target.peers),
      decoded(source.files, decoded_bytes_max, [this] { return stopped(); }),
      slabs(slabs_max),
      reported_ms_(now_ms()) {}

void LaneShared::fail(Error error) {
  const std::lock_guard lock(error_mutex_);
  if (!error_) error_ = std::move(error);
  failed_ = true;
}

Status LaneShared::status() {
  const std::lock_guard lock(error_mutex_);
  if (error_) return *error_;
  if (stopped()) return Error{Code::cancelled, "cancelled"};
  return {};
}

void LaneShared::add_done(std::uint64_t bytes) {
  done_ += bytes;
  report_progress(false);
}

void LaneShared::report_progress(bool is_last) {
  if (!options.progress) return;
  std::unique_lock lock(progress_mutex_, std::defer_lock);
  if (is_last) {
    lock.lock();
  } else if (!lock.try_lock() || now_ms() - reported_ms_ < kReportEveryMs) {
    return;
  }
  reported_ms_ = now_ms();
  options.progress({done_, options.bytes_expected});
}

// --- PinnedBuffer --------------------------------------------------------------------------------------------------------

PinnedBuffer::~PinnedBuffer() {
  if (mapped_ != nullptr) ::munmap(mapped_, mapped_bytes_);
}

Status PinnedBuffer::map(std::uint64_t size_bytes) {
  if (mapped_ != nullptr) ::munmap(std::exchange(mapped_, nullptr), mapped_bytes_);
  // Not every kernel begins it on a huge page by itself; what is not touched takes no memory.
  mapped_bytes_ = size_bytes < kHugePage ? size_bytes : size_bytes + kHugePage;
  void* data =
      ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    Error error = system_error(text("reshape: ", size_bytes, " bytes of buffers"), errno);
    error.code = Code::full;
    return error;
  }
  mapped_ = data;
  std::size_t room = mapped_bytes_;
  if (size_bytes >= kHugePage) (void)std::align(kHugePage, size_bytes, data, room);
  (void)::madvise(data, size_bytes, MADV_HUGEPAGE);  // advice: without, it's only slower
  data_ = static_cast<std::byte*>(data);
  return {};
}

// --- Lane: a slab -------------------------------------------------------------------------------------------------

Lane::Lane(LaneShared& shared, const LaneMemory& memory)
    : shared_(shared), memory_(memory), peer_writes_(shared.peers), allowance_(kGapShare) {}

void Lane::run() {
  const auto stopped = [this] { return shared_.stopped(); };
  while (std::optional<Slab> slab = shared_.slabs.pop(stopped)) {
    if (Status done = process(*slab); !done) return shared_.fail(std::move(done).error());
  }
}

// What touches files needs slots and a queue; all else goes without.
Status Lane::prepare() {
  if (queue_) return {};
  queue_ = make_disk_queue(kDepth, shared_.options.io_uring);
  PAWL_TRY(slot_memory_.map(memory_.slots * memory_.slot_bytes));
  buffer_bytes_ += memory_.slots * memory_.slot_bytes;
  for (std::uint64_t i = 0; i < memory_.slots; ++i)
    slots_.push_back({slot_memory_.data() + i * memory_.slot_bytes, 0, 0, {}});
  return {};
}

Status Lane::process(Slab& slab) {
  slab_ = &slab;
  PAWL_TRY(stage(slab));
  PAWL_TRY(sort_sources());
  if (!pieces_.empty()) {
    PAWL_TRY(prepare());
    const std::uint64_t extent_bytes_max = memory_.slot_bytes - 2 * kDirectUnit;
    PAWL_TRY(read_extents(join_read_pieces(pieces_, extent_bytes_max, allowance_)));
  }
  PAWL_TRY(copy_encoded());
  average_parts();
  PAWL_TRY(peer_writes_.flush());
  copy_fence();
  if (!staged_.empty()) {
    PAWL_TRY(prepare());
    PAWL_TRY(write_windows());
  }
  std::uint64_t done = 0;
  for (const CopyPart& part : slab.parts) done += target_bytes(slab.batch->copies[part.copy], part.box);
  if (!shared_.stopped()) shared_.add_done(done);
  return {};
}

std::byte* Lane::take(std::uint64_t bytes, std::uint64_t congruent_to) {
  const std::uint64_t unit = bytes >= kDirectWriteMin ? kDirectUnit : 1;
  const std::uint64_t at = rounded_up(staged_used_, unit) + congruent_to % unit;
  staged_used_ = at + bytes;
  return staged_memory_.data() + at;
}

// Memory for the ranges and for the versions of what is averaged.
Status Lane::stage(Slab& slab) {
  staged_.clear();
  staged_used_ = 0;
  const std::vector<FileRange> ranges = plan_writes(slab);
  versions_.assign(slab.parts.size(), nullptr);
  std::uint64_t bytes = 0;
  const auto versions_bytes = [&](const CopyPart& part) {
    const PlacedCopy& placed = slab.batch->copies[part.copy];
    return placed.source_count > 1 ? volume(part.box) * size_bits(placed.from) / 8 * placed.source_count : 0;
  };
  for (const FileRange& range : ranges) bytes += range.end - range.begin;
  for (const CopyPart& part : slab.parts) bytes += versions_bytes(part);
  if (bytes == 0) return {};
  const std::uint64_t most = bytes + (bytes / kDirectWriteMin + 1) * 2 * kDirectUnit;
  if (most > staged_bytes_) {  // the first one; later, a slab of one element may pass the limits
    buffer_bytes_ -= staged_bytes_;
    staged_bytes_ = std::max(most, memory_.staged_bytes);
    PAWL_TRY(staged_memory_.map(staged_bytes_));
    buffer_bytes_ += staged_bytes_;
  }
  for (const FileRange& range : ranges) staged_.push_back({range, take(range.end - range.begin, range.begin)});
  for (std::size_t i = 0; i < slab.parts.size(); ++i) {
    const std::uint64_t size = versions_bytes(slab.parts[i]);
    if (size != 0) versions_[i] = take(size, 0);
  }
  return {};
}

// Copies what lies in memory; the rest becomes pieces and encoded parts.
Status Lane::sort_sources() {
  pieces_.clear();
  encoded_.clear();
  const std::uint64_t item_bytes_max = std::max<std::uint64_t>((memory_.slot_bytes - 2 * kDirectUnit) / 2, 1);
  for (std::uint32_t i = 0; i < slab_->parts.size() && !shared_.stopped(); ++i) {
    const CopyPart& part = slab_->parts[i];
    const PlacedCopy& placed = slab_->batch->copies[part.copy];
    for (std::uint32_t s = 0; s < placed.source_count; ++s) {
      const PlacedEnd& end = slab_->batch->sources[placed.first_source + s];
      if (end.memory != nullptr) {
        copy(i, s, part.box, end_at(end, placed.box, part.box).memory);
        continue;
      }
      switch (const StoredFile& file = (*shared_.stored)[end.file]; file.codec) {
        case StoredFile::Codec::none:
        case StoredFile::Codec::bfloat16:
        case StoredFile::Codec::float16:
          append_read_pieces(*slab_, i, s, item_bytes_max, allowance_, pieces_);
          break;
        case StoredFile::Codec::content:
          PAWL_TRY(copy_decoded({end.file, i, s}, file.content));
          break;
        default:
          encoded_.push_back({end.file, i, s});
      }
    }
  }
  return {};
}

// Where a box of a part goes now: its target, its range, or its version's place.
PlacedEnd Lane::target_of(std::uint32_t number, std::uint32_t source, const Box& box) const {
  const CopyPart& part = slab_->parts[number];
  const PlacedCopy& placed = slab_->batch->copies[part.copy];
  if (placed.source_count > 1) {
    const std::uint64_t unit = size_bits(placed.from) / 8;
    PlacedEnd end;
    end.memory = versions_[number] + source * volume(part.box) * unit;
    end.stride = dense_bytes(part.box, unit);
    return end_at(end, part.box, box);
  }
  const PlacedEnd end = end_at(placed.target, placed.box, box);
  return end.memory != nullptr ? end : window_of(end);
}

PlacedEnd Lane::window_of(PlacedEnd end) const {
  const auto after = std::ranges::upper_bound(staged_, std::tuple(end.file, end.at), {}, [](const Staged& staged) {
    return std::tuple(staged.range.file, staged.range.begin);
  });
  const Staged& staged = *(after - 1);
  end.memory = staged.memory + (end.at - staged.range.begin);
  return end;
}

// `from`: the box's first element of that source.
void Lane::copy(std::uint32_t number, std::uint32_t source, const Box& box, const std::byte* from) {
  const PlacedCopy& placed = slab_->batch->copies[slab_->parts[number].copy];
  const PlacedEnd& source_end = slab_->batch->sources[placed.first_source + source];
  const PlacedEnd target = target_of(number, source, box);
  deliver(placed, target,
          {.dimensions = box.dimensions,
           .size = box.size,
           .from = from,
           .from_stride = source_end.stride,
           .from_type = source_end.stored,
           .by_type = placed.from,
           .swapped = source_end.swapped,
           .to = target.memory,
           .to_stride = target.stride,
           .to_type = placed.source_count > 1 ? placed.from : placed.to});
}

void Lane::deliver(const PlacedCopy& placed, const PlacedEnd& target, const BoxCopy& copy) {
  std::uint64_t overflows = 0;
  if (target.peer == BufferPlace::kThisProcess) {
    overflows = copy_box(copy);
  } else if (Result<std::uint64_t> written = peer_writes_.add(target.peer, copy); written) {
    overflows = *written;
  } else {
    shared_.fail(std::move(written).error());
  }
  if (overflows != 0) overflows_[placed.tensor] += overflows;
}

Status Lane::copy_decoded(const Encoded& encoded, std::string_view bytes) {
  const CopyPart& part = slab_->parts[encoded.part];
  const PlacedCopy& placed = slab_->batch->copies[part.copy];
  const PlacedEnd end = end_at(slab_->batch->sources[placed.first_source + encoded.source], placed.box, part.box);
  std::uint64_t last = size_bits(placed.from) / 8;
  for (std::uint32_t d = 0; d < part.box.dimensions; ++d) last += (part.box.size[d] - 1) * end.stride[d];
  if (end.at > bytes.size() || last > bytes.size() - end.at)
    return Error{Code::corrupt, text((*shared_.stored)[encoded.file].path, ": ", bytes.size(),
                                     " bytes when decoded, and ", end.at, " + ", last, " are wanted")};
  copy(encoded.part, encoded.source, part.box, reinterpret_cast<const std::byte*>(bytes.data()) + end.at);
  return {};
}

Status Lane::copy_encoded() {
  std::ranges::sort(encoded_, {}, [](const Encoded& one) { return std::tuple(one.file, one.part, one.source); });
  for (std::size_t i = 0; i < encoded_.size() && !shared_.stopped();) {
    const std::uint32_t file = encoded_[i].file;
    PAWL_ASSIGN(const DecodedFiles::Bytes bytes, shared_.decoded.get(file));
    for (; i < encoded_.size() && encoded_[i].file == file; ++i) PAWL_TRY(copy_decoded(encoded_[i], *bytes));
  }
  return {};
}

void Lane::average_parts() {
  std::vector<const std::byte*> versions;
  alignas(64) std::array<std::byte, kMeanElements * 16> mean;
  for (std::uint32_t i = 0; i < slab_->parts.size() && !shared_.stopped(); ++i) {
    if (versions_[i] == nullptr) continue;
    const CopyPart& part = slab_->parts[i];
    const PlacedCopy& placed = slab_->batch->copies[part.copy];
    const std::uint64_t unit = size_bits(placed.from) / 8, count = volume(part.box);
    for (std::uint64_t done = 0; done < count; done += kMeanElements) {
      const std::size_t n = std::min<std::uint64_t>(kMeanElements, count - done);
      versions.clear();
      for (std::uint32_t s = 0; s < placed.source_count; ++s)
        versions.push_back(versions_[i] + (s * count + done) * unit);
      average(placed.from, versions, n, mean.data());
      std::memcpy(versions_[i] + done * unit, mean.data(), n * unit);
    }
    PlacedEnd target = end_at(placed.target, placed.box, part.box);
    if (target.memory == nullptr) target = window_of(target);
    deliver(placed, target,
            {.dimensions = part.box.dimensions,
             .size = part.box.size,
             .from = versions_[i],
             .from_stride = dense_bytes(part.box, unit),
             .from_type = placed.from,
             .by_type = placed.from,
             .to = target.memory,
             .to_stride = target.stride,
             .to_type = placed.to});
  }
}

// --- Lane: reading ------------------------------------------------------------------------------------------------

// One piece that lies at its target as it lies in the file, without a gap.
bool Lane::goes_in_place(const ReadRange& range, std::byte*& to) const {
  if (range.last_piece - range.first_piece != 1) return false;
  const ReadPiece& piece = pieces_[range.first_piece];
  const PlacedCopy& placed = slab_->batch->copies[slab_->parts[piece.part].copy];
  const PlacedEnd& source = slab_->batch->sources[placed.first_source + piece.source];
  const ElementType to_type = placed.source_count > 1 ? placed.from : placed.to;
  if (placed.from != to_type || placed.from != source.stored || (source.swapped && swapped_bytes(placed.from) > 1))
    return false;
  if (volume(piece.box) * (size_bits(placed.from) / 8) != range.end - range.begin) return false;
  const PlacedEnd target = target_of(piece.part, piece.source, piece.box);
  if (target.peer != BufferPlace::kThisProcess) return false;
  for (std::uint32_t d = 0; d < piece.box.dimensions; ++d)
    if (piece.box.size[d] > 1 && (source.stride[d] != target.stride[d] || source.stride[d] == 0)) return false;
  to = target.memory;
  return true;
}

// Adds the next ranges as long as there is room, and asks for them.
Status Lane::fill_slot(Slot& slot, std::uint64_t number, const std::vector<ReadRange>& ranges, std::size_t& next) {
  slot.used = 0;
  slot.readings.clear();
  while (next < ranges.size() && slot.readings.size() < kDepth / memory_.slots) {
    const ReadRange& range = ranges[next];
    const std::uint64_t size = range.end - range.begin;
    PAWL_ASSIGN(std::shared_ptr<OpenFile> file, shared_.sources.get(range.file));
    Reading reading{file,
                    next,
                    nullptr,
                    {.fd = file->plain(), .offset_bytes = range.begin, .size_bytes = size, .enough_bytes = size}};
    const std::uint64_t aligned = rounded_down(range.begin, kDirectUnit);
    reading.direct = size >= kDirectReadMin && file->direct() >= 0 && !file->is_cached(range.begin, size);
    if (!reading.direct) reading.in_place = goes_in_place(range, reading.data);
    if (reading.in_place) {
      reading.request.memory = reading.data;
    } else {
      slot.used = rounded_up(slot.used, reading.direct ? kDirectUnit : 64);
      const std::uint64_t begin = reading.direct ? aligned : range.begin;
      const std::uint64_t room = reading.direct ? rounded_up(range.end, kDirectUnit) - begin : size;
      if (slot.used + room > memory_.slot_bytes) break;
      reading.request.memory = slot.memory + slot.used;
      reading.request.offset_bytes = begin;
      reading.request.size_bytes = room;
      reading.request.enough_bytes = range.end - begin;
      reading.data = reading.request.memory + (range.begin - begin);
      if (reading.direct) reading.request.fd = file->direct();
      slot.used += room;
    }
    reading.request.tag = number << 32 | slot.readings.size();
    slot.readings.push_back(std::move(reading));
    ++next;
    if (slot.readings.back().in_place && slot.used == 0 && size >= kDirectReadMin) break;  // enough for one
  }
  slot.pending = slot.readings.size();
  for (const Reading& reading : slot.readings) {
    queue_->push(reading.request);
    ++in_flight_;
  }
  return {};
}

Status Lane::settle_reading(Slot& slot, const DiskAnswer& answer, const std::vector<ReadRange>& ranges) {
  Reading& reading = slot.readings[answer.tag & 0xFFFF'FFFF];
  --in_flight_;
  bytes_read_ += answer.bytes;
  if (answer.error == EINVAL && reading.direct) {  // the file system has other rules for it: ask again without
    reading.file->refuse_direct();
    reading.direct = false;
    reading.request.fd = reading.file->plain();
    queue_->push(reading.request);
    ++in_flight_;
    return {};
  }
  --slot.pending;
  if (answer.error != 0) return disk_error("read", reading.file->path(), reading.request.offset_bytes, answer.error);
  const ReadRange& range = ranges[reading.range];
  if (reading.request.offset_bytes + answer.bytes < range.end)
    return Error{Code::corrupt, text("read ", reading.file->path(), " at ", range.begin, ": the file ends at ",
                                     reading.request.offset_bytes + answer.bytes, ", ", range.end - range.begin,
                                     " bytes are wanted: it is truncated, or was changed meanwhile")};
  return {};
}

// What the pieces cover, in as few stretches as can be.
void Lane::show(const Reading& reading, const ReadRange& range) const {
  if (!shared_.options.observe_read) return;
  std::uint64_t begin = range.begin, end = range.begin;
  const auto flush = [&] {
    if (begin < end)
      shared_.options.observe_read(range.file, begin, {reading.data + (begin - range.begin), end - begin});
  };
  for (std::size_t i = range.first_piece; i < range.last_piece; ++i) {
    if (pieces_[i].begin > end) {
      flush();
      begin = pieces_[i].begin;
    }
    end = std::max(end, pieces_[i].end);
  }
  flush();
}

void Lane::empty_slot(Slot& slot, const std::vector<ReadRange>& ranges) {
  for (const Reading& reading : slot.readings) {
    if (shared_.stopped()) return;
    const ReadRange& range = ranges[reading.range];
    show(reading, range);
    if (reading.in_place) continue;
    for (std::size_t i = range.first_piece; i < range.last_piece; ++i) {
      const ReadPiece& piece = pieces_[i];
      copy(piece.part, piece.source, piece.box, reading.data + (piece.begin - range.begin));
    }
  }
  if (Status sent = peer_writes_.flush(); !sent) shared_.fail(std::move(sent).error());  // the slot is used again
}

// Slots are filled ahead; whatever happens, nothing is in flight when this returns.
Status Lane::read_extents(const std::vector<ReadRange>& ranges) {
  std::vector<std::uint64_t> free;
  for (std::uint64_t i = queue_->uses_io_uring() ? memory_.slots : 1; i-- > 0;) free.push_back(i);
  std::size_t next = 0;
  Status status;
  for (;;) {
    while (status && next < ranges.size() && !free.empty() && !shared_.stopped()) {
      const std::uint64_t number = free.back();
      status = fill_slot(slots_[number], number, ranges, next);
      if (status) free.pop_back();
    }
    if (in_flight_ == 0) return status;
    const DiskAnswer answer = queue_->wait();
    Slot& slot = slots_[answer.tag >> 32];
    Status settled = settle_reading(slot, answer, ranges);
    if (status && !settled) status = std::move(settled);
    if (slot.pending != 0) continue;
    if (status) empty_slot(slot, ranges);
    free.push_back(answer.tag >> 32);
  }
}

// --- Lane: writing ------------------------------------------------------------------------------------------------

// The aligned middle of a large range goes past the page cache, its edges through it: no page is written both ways.
Status Lane::cut_window(const Staged& staged, std::vector<Writing>& writings) {
  PAWL_ASSIGN(std::shared_ptr<OpenFile> file, shared_.targets.get(staged.range.file));
  const auto add = [&](std::uint64_t begin, std::uint64_t end, bool direct) {
    while (begin < end) {
      const std::uint64_t next = std::min(end, rounded_down(begin, kWriteBytes) + kWriteBytes);
      writings.push_back({file,
                          {.fd = direct ? file->direct() : file->plain(),
                           .write = true,
                           .memory = staged.memory + (begin - staged.range.begin),
                           .offset_bytes = begin,
                           .size_bytes = next - begin,
                           .enough_bytes = next - begin,
                           .tag = writings.size()},
                          direct});
      begin = next;
    }
  };
  const auto [number, begin, end] = staged.range;
  if (end - begin < kDirectWriteMin || file->direct() < 0) {
    add(begin, end, false);
    return {};
  }
  const std::uint64_t middle = rounded_up(begin, kDirectUnit), middle_end = rounded_down(end, kDirectUnit);
  add(begin, middle, false);
  add(middle, middle_end, true);
  add(middle_end, end, false);
  return {};
}

Status Lane::write_windows() {
  for (std::size_t i = 0; shared_.options.observe && i < staged_.size() && !shared_.stopped(); ++i) {
    const auto& [range, memory] = staged_[i];
    shared_.options.observe(range.file, range.begin, {memory, range.end - range.begin});
  }
  std::vector<Writing> writings;
  Status status;
  for (std::size_t i = 0; i < staged_.size() && status; ++i) status = cut_window(staged_[i], writings);
  std::size_t next = 0;
  for (;;) {
    for (; status && next < writings.size() && in_flight_ < kWritesMax && !shared_.stopped(); ++next) {
      queue_->push(writings[next].request);
      ++in_flight_;
    }
    if (in_flight_ == 0) break;
    const DiskAnswer answer = queue_->wait();
    Writing& writing = writings[answer.tag];
    --in_flight_;
    bytes_written_ += answer.bytes;
    if (answer.error == EINVAL && writing.direct) {
      writing.file->refuse_direct();
      writing.direct = false;
      writing.request.fd = writing.file->plain();
      queue_->push(writing.request);
      ++in_flight_;
    } else if (answer.error != 0 && status) {
      status = disk_error("write", writing.file->path(), writing.request.offset_bytes, answer.error);
    }
  }
  if (status && shared_.options.sync && !shared_.stopped()) status = send_to_disk(writings);
  return status;
}

// Where the page cache can't be passed by, at most two slabs of a lane are dirty pages: what is written starts for the
// disk, and what the slab before wrote has arrived. Else they'd pile up to the machine's (or a cgroup's) limit.
Status Lane::send_to_disk(const std::vector<Writing>& writings) {
  for (const Leaving& range : std::exchange(leaving_, {})) {
    // Its answer counts: an error that is told here isn't told again by the sync at the end.
    const auto flags = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    if (::sync_file_range(range.file->plain(), static_cast<off64_t>(range.begin),
                          static_cast<off64_t>(range.end - range.begin), flags) != 0 &&
        errno != EINVAL && errno != ENOSYS && errno != ESPIPE)
      return disk_error("sync", range.file->path(), range.begin, errno);
  }
  for (const Writing& writing : writings) {  // in order of file and offset
    if (writing.file->direct() >= 0) continue;
    const std::uint64_t begin = writing.request.offset_bytes, size = writing.request.size_bytes;
    if (!leaving_.empty() && leaving_.back().file == writing.file) {
      leaving_.back().end = begin + size;
    } else {
      leaving_.push_back({writing.file, begin, begin + size});
    }
  }
  for (const Leaving& range : leaving_)
    (void)::sync_file_range(range.file->plain(), static_cast<off64_t>(range.begin),
                            static_cast<off64_t>(range.end - range.begin), SYNC_FILE_RANGE_WRITE);
  return {};
}

}  // namespace pawl::checkpoint
