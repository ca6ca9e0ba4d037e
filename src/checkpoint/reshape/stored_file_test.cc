#include "checkpoint/reshape/stored_file.h"

#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include "base/text.h"

namespace pawl::checkpoint {
namespace {

std::string sample(std::size_t size) {
  std::string out;
  for (std::size_t i = 0; out.size() < size; ++i) out += text("line ", i * i % 977, '\n');
  out.resize(size);
  return out;
}

std::string zstd_of(const std::string& bytes) {
  std::string out(ZSTD_compressBound(bytes.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), bytes.data(), bytes.size(), 3));
  return out;
}

std::string deflate_of(const std::string& bytes) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

TEST(StoredFile, DecodesWhatWasEncoded) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{70000}}) {
    const std::string bytes = sample(size);
    EXPECT_EQ(*decode_zstd(zstd_of(bytes), size), bytes);
    EXPECT_EQ(*decode_deflate(deflate_of(bytes), size), bytes);
  }
}

TEST(StoredFile, RefusesOtherSizesAndEveryTruncation) {
  const std::string bytes = sample(3000);
  const std::string zstd = zstd_of(bytes), deflated = deflate_of(bytes);
  for (const std::uint64_t size : {2999u, 3001u, 0u}) {
    EXPECT_FALSE(decode_zstd(zstd, size).has_value()) << size;
    EXPECT_FALSE(decode_deflate(deflated, size).has_value()) << size;
  }
  for (std::size_t length = 0; length < zstd.size(); ++length)
    EXPECT_FALSE(decode_zstd(std::string_view(zstd).substr(0, length), 3000).has_value()) << length;
  for (std::size_t length = 0; length < deflated.size(); ++length)
    EXPECT_FALSE(decode_deflate(std::string_view(deflated).substr(0, length), 3000).has_value()) << length;
  // A giant promise is refused before anything is allocated.
  EXPECT_FALSE(decode_zstd(zstd, std::uint64_t{1} << 60).has_value());
  EXPECT_FALSE(decode_deflate(deflated, std::uint64_t{1} << 60).has_value());
}

TEST(StoredFile, ContentNeedsNoFile) {
  StoredFile file{"a.pt", StoredFile::Codec::content, 0, 0, 0, "abcd"};
  Result<std::unique_ptr<ByteSource>> source = open_stored(file);
  ASSERT_TRUE(source.has_value());
  EXPECT_EQ(*read_text(**source, 0, 4), "abcd");
}

}  // namespace
}  // namespace pawl::checkpoint
