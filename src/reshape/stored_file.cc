#include "reshape/stored_file.h"

#include <zlib.h>
#include <zstd.h>

#include <limits>
#include <utility>

#include "base/text.h"

namespace pawl {
namespace {

Error damaged(std::string what) {
  return Error{Code::corrupt, std::move(what)};
}

// Memory that this object owns.
class OwnedBytes final : public ByteSource {
 public:
  explicit OwnedBytes(std::string bytes) : bytes_(std::move(bytes)), view_(bytes_) {}
  [[nodiscard]] std::uint64_t size_bytes() const override { return bytes_.size(); }
  [[nodiscard]] Status read(std::uint64_t offset_bytes, std::span<std::byte> buffer) override {
    return view_.read(offset_bytes, buffer);
  }

 private:
  std::string bytes_;
  MemoryBytes view_;
};

Result<std::string> decode(const StoredFile& file, std::string_view encoded) {
  return file.codec == StoredFile::Codec::zstd ? decode_zstd(encoded, file.decoded_bytes)
                                               : decode_deflate(encoded, file.decoded_bytes);
}

}  // namespace

Result<std::uint64_t> zstd_decoded_bytes(std::string_view head) {
  const unsigned long long size = ZSTD_getFrameContentSize(head.data(), head.size());
  if (size == ZSTD_CONTENTSIZE_ERROR) return damaged("no zstd frame");
  if (size == ZSTD_CONTENTSIZE_UNKNOWN) return damaged("a zstd frame that does not say its size");
  return std::uint64_t{size};
}

Result<std::string> decode_zstd(std::string_view encoded, std::uint64_t decoded_bytes) {
  // A frame can't be smaller than a 2^17th of what it holds: each of its blocks has at least three bytes for 128 KiB.
  if (decoded_bytes / (std::uint64_t{1} << 17) > encoded.size())
    return damaged(text(encoded.size(), " bytes can't decode to ", decoded_bytes));
  std::string out(decoded_bytes, '\0');
  const std::size_t got = ZSTD_decompress(out.data(), out.size(), encoded.data(), encoded.size());
  if (ZSTD_isError(got) != 0) return damaged(text("zstd: ", ZSTD_getErrorName(got)));
  if (got != decoded_bytes) return damaged(text("zstd: ", got, " bytes decoded of ", decoded_bytes));
  return out;
}

Result<std::string> decode_deflate(std::string_view encoded, std::uint64_t decoded_bytes) {
  if (decoded_bytes / 1100 > encoded.size() + 1)  // deflate packs at most 1032 to one
    return damaged(text(encoded.size(), " bytes can't decode to ", decoded_bytes));
  std::string out(decoded_bytes, '\0');
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) return Error{Code::full, "zlib: no memory"};
  std::size_t taken = 0, made = 0;
  int status = Z_OK;
  char spare = 0;  // where bytes beyond the promised ones would go
  bool has_more = false;
  constexpr std::size_t kStep = std::numeric_limits<uInt>::max();
  while (status == Z_OK) {
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(encoded.data() + taken));
    stream.avail_in = static_cast<uInt>(std::min(encoded.size() - taken, kStep));
    const bool is_full = made == out.size();
    stream.next_out = reinterpret_cast<Bytef*>(is_full ? &spare : out.data() + made);
    stream.avail_out = is_full ? 1 : static_cast<uInt>(std::min(out.size() - made, kStep));
    const uInt in = stream.avail_in, room = stream.avail_out;
    status = inflate(&stream, Z_NO_FLUSH);
    taken += in - stream.avail_in;
    has_more = is_full && stream.avail_out == 0;
    if (has_more) break;
    if (!is_full) made += room - stream.avail_out;
    if (status == Z_BUF_ERROR || (in == stream.avail_in && room == stream.avail_out && status == Z_OK)) break;
  }
  inflateEnd(&stream);
  if (status != Z_STREAM_END || has_more || made != out.size() || taken != encoded.size())
    return damaged(text("deflate: the stream does not decode to ", decoded_bytes, " bytes"));
  return out;
}

Result<std::unique_ptr<ByteSource>> open_stored(const StoredFile& file, Files& files) {
  if (file.codec == StoredFile::Codec::content)
    return std::unique_ptr<ByteSource>(std::make_unique<MemoryBytes>(file.content));
  PAWL_ASSIGN(std::unique_ptr<ByteSource> source, open_bytes(file.path, files));
  if (file.codec == StoredFile::Codec::none) return source;
  Result<std::string> encoded = read_text(*source, file.offset_bytes, file.length_bytes);
  if (!encoded) return std::move(encoded).error().within(file.path);
  Result<std::string> decoded = decode(file, *encoded);
  if (!decoded) return std::move(decoded).error().within(text(file.path, " at ", file.offset_bytes));
  return std::unique_ptr<ByteSource>(std::make_unique<OwnedBytes>(std::move(*decoded)));
}

}  // namespace pawl
