#include "checkpoint/reshape/decoded_files.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/text.h"
#include "checkpoint/reshape/stored_file.h"
#include "env/byte_source.h"

namespace pawl::checkpoint {

bool DecodedFiles::drop_one() {
  auto oldest = entries_.end();
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    const bool is_free = entry->second.bytes && entry->second.bytes.use_count() == 1;
    if (is_free && (oldest == entries_.end() || entry->second.used < oldest->second.used)) oldest = entry;
  }
  if (oldest == entries_.end()) return false;
  held_ -= oldest->second.bytes->size();
  entries_.erase(oldest);
  return true;
}

// Of an address: the version that all others read.
Result<std::string> DecodedFiles::read_encoded(std::uint32_t number) {
  const StoredFile& file = (*files_)[number];
  if (!is_address(file.path)) {
    PAWL_ASSIGN(const std::unique_ptr<ByteSource> source, open_bytes(file.path));
    Result<std::string> encoded = read_text(*source, file.offset_bytes, file.length_bytes);
    if (!encoded) return std::move(encoded).error().within(file.path);
    return encoded;
  }
  PAWL_ASSIGN(const std::shared_ptr<OpenFile> source, opened_.get(number));
  std::string encoded(file.length_bytes, '\0');
  PAWL_ASSIGN(const std::size_t got,
              source->address()->read_at(file.offset_bytes, std::as_writable_bytes(std::span(encoded))));
  if (got != encoded.size()) return Error{Code::corrupt, text(file.path, ": it ends at ", file.offset_bytes + got)};
  return encoded;
}

Result<DecodedFiles::Bytes> DecodedFiles::decode(std::uint32_t number) {
  const StoredFile& file = (*files_)[number];
  PAWL_ASSIGN(const std::string encoded, read_encoded(number));
  Result<std::string> decoded = decode_stored(file, encoded);
  if (!decoded) return std::move(decoded).error().within(text(file.path, " at ", file.offset_bytes));
  return std::make_shared<const std::string>(std::move(*decoded));
}

Result<DecodedFiles::Bytes> DecodedFiles::get(std::uint32_t number) {
  using namespace std::chrono_literals;
  const StoredFile& file = (*files_)[number];
  const std::uint64_t need = file.decoded_bytes + file.length_bytes;
  if (need < file.decoded_bytes || need > bytes_max_)
    return Error{Code::full, text(file.path, " at ", file.offset_bytes, ": decoding takes ", file.length_bytes, " + ",
                                  file.decoded_bytes, " bytes of memory, and ", bytes_max_,
                                  " may be used: give at least twice as much as it takes")};
  std::unique_lock lock(mutex_);
  for (;;) {
    if (stopped_()) return Error{Code::cancelled, text(file.path, ": not decoded")};
    const auto found = entries_.find(number);
    if (found != entries_.end() && found->second.bytes) {
      found->second.used = ++clock_;
      return found->second.bytes;
    }
    if (found == entries_.end() && held_ + need <= bytes_max_) break;
    if (found == entries_.end() && drop_one()) continue;
    changed_.wait_for(lock, 5ms);  // nobody says when he lets go of one
  }
  held_ += need;
  held_max_ = std::max(held_max_, held_);
  entries_[number] = {};
  lock.unlock();
  Result<Bytes> bytes = decode(number);
  lock.lock();
  held_ -= bytes ? file.length_bytes : need;
  read_ += file.length_bytes;
  if (bytes) {
    entries_[number] = {*bytes, ++clock_};
  } else {
    entries_.erase(number);
  }
  changed_.notify_all();
  return bytes;
}

std::uint64_t DecodedFiles::held_bytes_max() {
  const std::lock_guard lock(mutex_);
  return held_max_;
}

std::uint64_t DecodedFiles::read_bytes() {
  const std::lock_guard lock(mutex_);
  return read_;
}

}  // namespace pawl::checkpoint
