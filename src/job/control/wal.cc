#include "job/control/wal.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <span>

#include "base/crc32c.h"
#include "base/text.h"

namespace pawl::job {
namespace {

static_assert(std::endian::native == std::endian::little, "the log is little-endian and written as it lies in memory");

constexpr std::uint32_t kMagic = 0x314c5750;  // "PWL1"
constexpr std::size_t kSectorBytes = 512;     // the least a disk writes whole
constexpr std::uint64_t kRoomBytes = 4 << 20;

std::uint32_t crc_of(std::string_view bytes) {
  return crc32c(std::as_bytes(std::span(bytes)));
}

struct Header {
  std::uint32_t magic = kMagic;
  std::uint32_t length = 0;
  std::uint64_t sequence = 0;
  std::uint32_t payload_crc = 0;
  std::uint32_t header_crc = 0;
};
static_assert(sizeof(Header) == kWalHeaderBytes);

std::string_view summed_part(const Header& header) {
  return {reinterpret_cast<const char*>(&header), offsetof(Header, header_crc)};
}

std::optional<Header> sound_header(std::string_view bytes) {
  if (bytes.size() < kWalHeaderBytes) return std::nullopt;
  Header header;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kMagic || header.length == 0 || header.length > kWalPayloadBytesMax) return std::nullopt;
  if (header.header_crc != crc_of(summed_part(header))) return std::nullopt;
  return header;
}

// A crash leaves unwritten sectors as zeros. A bad frame without any was changed after it was written whole.
bool has_zero_sector(std::string_view log, std::size_t begin, std::size_t end) {
  end = std::min(end, log.size());
  while (begin < end) {
    const std::size_t next = std::min(end, (begin / kSectorBytes + 1) * kSectorBytes);
    if (std::all_of(log.begin() + begin, log.begin() + next, [](char byte) { return byte == 0; })) return true;
    begin = next;
  }
  return false;
}

bool any_frame_after(std::string_view log, std::size_t offset) {
  for (; offset + kWalHeaderBytes <= log.size(); ++offset)
    if (std::memcmp(log.data() + offset, &kMagic, sizeof kMagic) == 0 && sound_header(log.substr(offset))) return true;
  return false;
}

// Is what lies at `offset` the trace of a write that a crash cut short, with nothing acknowledged behind it?
bool is_torn(std::string_view log, std::size_t offset, const std::optional<Header>& header) {
  const std::size_t left = log.size() - offset;
  if (left < kWalHeaderBytes) return true;
  if (!header) return has_zero_sector(log, offset, offset + kWalHeaderBytes) && !any_frame_after(log, offset + 1);
  const std::size_t frame_bytes = kWalHeaderBytes + header->length;
  if (frame_bytes > left) return true;
  return frame_bytes == left && has_zero_sector(log, offset, offset + frame_bytes);
}

}  // namespace

Wal::Wal(WalOptions options)
    : options_(std::move(options)),
      files_(options_.files ? options_.files : &real_files()),
      path_(join_path(options_.directory, "control.wal")) {}

Result<std::string> Wal::read_log() {
  PAWL_ASSIGN(const std::uint64_t size_bytes, file_->size());
  std::string log(size_bytes, '\0');
  PAWL_ASSIGN(const std::size_t got, file_->read_at(0, std::as_writable_bytes(std::span(log))));
  log.resize(got);
  return log;
}

Result<std::unique_ptr<Wal>> Wal::open(WalOptions options, const Replay& replay) {
  std::unique_ptr<Wal> wal(new Wal(std::move(options)));
  auto opened = wal->files_->open(wal->path_, {.write = true});
  if (!opened && opened.error().code == Code::not_found) return wal;
  if (!opened) return std::move(opened).error();
  wal->file_ = std::move(*opened);
  PAWL_ASSIGN(const std::string log, wal->read_log());
  std::size_t offset = 0;
  while (offset < log.size()) {
    const auto header = sound_header(std::string_view(log).substr(offset));
    const bool whole = header && header->length <= log.size() - offset - kWalHeaderBytes;
    const std::string_view payload =
        whole ? std::string_view(log).substr(offset + kWalHeaderBytes, header->length) : std::string_view();
    const auto at = [&] { return text(wal->path_, " at byte ", offset, " of ", log.size()); };
    if (!whole || crc_of(payload) != header->payload_crc) {
      if (is_torn(log, offset, header)) break;
      return Error{Code::corrupt, text(at(), ": checksum differs; nothing was changed. Restore the file from a copy")};
    }
    if (header->sequence != wal->sequence_ + 1)
      return Error{Code::corrupt, text(at(), ": frame ", header->sequence, " where ", wal->sequence_ + 1, " belongs")};
    if (auto taken = replay(payload); !taken) return std::move(taken).error().within(at());
    wal->sequence_ = header->sequence;
    offset += kWalHeaderBytes + header->length;
  }
  // replace() makes the file with its first frame whole, so an empty one is a loss and not a beginning.
  if (wal->sequence_ == 0)
    return Error{Code::corrupt, text(wal->path_, " holds no whole frame; restore it, or remove it to begin anew")};

  wal->size_bytes_ = offset;
  wal->torn_bytes_ = log.size() - offset;
  if (wal->torn_bytes_ > 0) PAWL_TRY(wal->file_->truncate(offset));
  // Also where nothing was torn: a frame that the last process wrote but could not sync is now part of the truth.
  if (wal->options_.fsync) PAWL_TRY(wal->file_->sync());
  wal->keep_room();
  return wal;
}

Error Wal::give_up(Error error) {
  failed_ = error.what;
  if (error.code == Code::full) error.what += "; free some space, then start the server again";
  return error;
}

Status Wal::write_frame(File& file, std::uint64_t offset_bytes, std::uint64_t sequence, std::string_view payload) {
  if (payload.empty() || payload.size() > kWalPayloadBytesMax)
    return Error{Code::invalid, text("a log payload of ", payload.size(), " bytes")};
  Header header;
  header.length = static_cast<std::uint32_t>(payload.size());
  header.sequence = sequence;
  header.payload_crc = crc_of(payload);
  header.header_crc = crc_of(summed_part(header));
  std::string frame(reinterpret_cast<const char*>(&header), sizeof header);
  frame.append(payload);
  return file.write_at(offset_bytes, std::as_bytes(std::span(frame)));
}

// As far as the disk has it: a full one takes what was kept before.
void Wal::keep_room() {
  if (size_bytes_ + kRoomBytes / 2 <= reserved_bytes_) return;
  if (file_->reserve(size_bytes_, kRoomBytes)) reserved_bytes_ = size_bytes_ + kRoomBytes;
}

Status Wal::append(std::string_view payload) {
  if (!failed_.empty()) return Error{Code::io, text(path_, ": closed after a failure: ", failed_)};
  if (!file_) return Error{Code::invalid, text(path_, ": has no first frame yet")};
  if (auto written = write_frame(*file_, size_bytes_, sequence_ + 1, payload); !written) {
    if (written.error().code == Code::invalid) return written;
    return give_up(std::move(written).error());
  }
  if (options_.fsync)
    if (auto synced = file_->sync(); !synced) return give_up(std::move(synced).error());
  ++sequence_;
  size_bytes_ += kWalHeaderBytes + payload.size();
  keep_room();
  return {};
}

Status Wal::replace(const std::vector<std::string>& payloads) {
  if (!failed_.empty()) return Error{Code::io, text(path_, ": closed after a failure: ", failed_)};
  const std::string fresh_path = path_ + ".new";  // one that a crash left behind is overwritten here
  auto opened = files_->open(fresh_path, {.write = true, .create = true, .truncate = true});
  if (!opened) return give_up(std::move(opened).error());
  std::unique_ptr<File> fresh = std::move(*opened);
  std::uint64_t size_bytes = 0;
  auto write_all = [&]() -> Status {
    std::uint64_t sequence = 0;
    for (const std::string& payload : payloads) {
      PAWL_TRY(write_frame(*fresh, size_bytes, ++sequence, payload));
      size_bytes += kWalHeaderBytes + payload.size();
    }
    return {};
  };
  if (Status written = write_all(); !written) {
    if (file_ == nullptr || written.error().code != Code::full) return give_up(std::move(written).error());
    (void)files_->remove(fresh_path);
    return written;
  }
  auto fill = [&]() -> Status {
    if (options_.fsync) PAWL_TRY(fresh->sync());
    PAWL_TRY(files_->rename(fresh_path, path_));
    if (options_.fsync) PAWL_TRY(files_->sync_directory(options_.directory));
    return {};
  };
  if (auto filled = fill(); !filled) return give_up(std::move(filled).error());
  file_ = std::move(fresh);
  sequence_ = payloads.size();
  size_bytes_ = size_bytes;
  reserved_bytes_ = 0;
  keep_room();
  return {};
}

}  // namespace pawl::job
