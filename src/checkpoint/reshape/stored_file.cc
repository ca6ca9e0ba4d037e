#include "checkpoint/reshape/stored_file.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <span>
#include <utility>

#include "base/text.h"
#include "checkpoint/reshape/cast.h"

namespace pawl::checkpoint {
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

Result<std::string> round_to(ElementType type, std::string_view numbers, std::uint64_t decoded_bytes) {
  if (numbers.size() % 4 != 0 || numbers.size() / 2 != decoded_bytes)
    return damaged(text(numbers.size(), " bytes of float32 can't be rounded to ", decoded_bytes));
  std::string out(decoded_bytes, '\0');
  (void)cast(ElementType::float32, std::as_bytes(std::span(numbers)), type, std::as_writable_bytes(std::span(out)));
  return out;
}

}  // namespace

Result<std::string> decode_stored(const StoredFile& file, std::string_view encoded) {
  switch (file.codec) {
    case StoredFile::Codec::zstd:
      return decode_zstd(encoded, file.decoded_bytes);
    case StoredFile::Codec::deflate:
      return decode_deflate(encoded, file.decoded_bytes);
    case StoredFile::Codec::bfloat16:
      return round_to(ElementType::bfloat16, encoded, file.decoded_bytes);
    case StoredFile::Codec::float16:
      return round_to(ElementType::float16, encoded, file.decoded_bytes);
    case StoredFile::Codec::none:
    case StoredFile::Codec::content:
      break;
  }
  return Error{Code::broken, "what is not encoded was to be decoded"};
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

Result<ZstdEnds> zstd_ends(ByteSource& encoded, std::uint64_t decoded_bytes_max, std::size_t end_bytes_max) {
  const std::unique_ptr<ZSTD_DCtx, std::size_t (*)(ZSTD_DCtx*)> context(ZSTD_createDCtx(), ZSTD_freeDCtx);
  if (context == nullptr) return Error{Code::full, "zstd: no memory"};
  ZstdEnds ends;
  std::string out(ZSTD_DStreamOutSize(), '\0');
  std::size_t status = 1;  // 0 at the end of the frame
  for (std::uint64_t at = 0; at < encoded.size_bytes() && status != 0;) {
    const std::uint64_t step = std::min<std::uint64_t>(encoded.size_bytes() - at, ZSTD_DStreamInSize());
    PAWL_ASSIGN(const std::string bytes, read_text(encoded, at, step));
    ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
    bool is_full = true;  // there may be more to come of what was read
    while (status != 0 && (in.pos < in.size || is_full)) {
      ZSTD_outBuffer to{out.data(), out.size(), 0};
      status = ZSTD_decompressStream(context.get(), &to, &in);
      if (ZSTD_isError(status) != 0)
        return damaged(text("zstd: offset ", at + in.pos, ": ", ZSTD_getErrorName(status)));
      is_full = to.pos == to.size;
      ends.size_bytes += to.pos;
      if (ends.size_bytes > decoded_bytes_max)
        return damaged(text("zstd: it decodes to more than ", decoded_bytes_max, " bytes"));
      const std::size_t head = std::min(to.pos, end_bytes_max - ends.head.size());
      ends.head.append(out, 0, head);
      ends.tail.append(out, head, to.pos - head);
      if (ends.tail.size() > 2 * end_bytes_max) ends.tail.erase(0, ends.tail.size() - end_bytes_max);
    }
    at += in.pos;
    if (status == 0 && at != encoded.size_bytes()) return damaged(text("zstd: bytes after the frame's end at ", at));
  }
  if (status != 0) return damaged("zstd: the frame is cut");
  if (ends.tail.size() > end_bytes_max) ends.tail.erase(0, ends.tail.size() - end_bytes_max);
  return ends;
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
  Result<std::string> decoded = decode_stored(file, *encoded);
  if (!decoded) return std::move(decoded).error().within(text(file.path, " at ", file.offset_bytes));
  return std::unique_ptr<ByteSource>(std::make_unique<OwnedBytes>(std::move(*decoded)));
}

std::optional<double> number_in(const StoredTensor& tensor, const CheckpointView& view, Files& files) {
  if (tensor.pieces.empty() || element_count(tensor.shape).value_or(0) != 1) return std::nullopt;
  const StoredPiece& piece = tensor.pieces[0];
  const Result<std::unique_ptr<ByteSource>> source = open_stored(view.files[piece.file], files);
  if (!source) return std::nullopt;
  Result<std::string> bytes = read_text(**source, piece.offset_bytes, size_bits(tensor.type) / 8);
  if (!bytes) return std::nullopt;
  if (piece.swapped) std::ranges::reverse(*bytes);
  return number_of(tensor.type, *bytes);
}

}  // namespace pawl::checkpoint
