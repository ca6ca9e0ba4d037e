#include "env/s3/digests.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/check.h"

namespace pawl::s3 {
namespace {

template <class Digest>
Digest digest_with(const EVP_MD* kind, std::span<const std::byte> bytes) {
  Digest out{};
  unsigned size = 0;
  const int done = EVP_Digest(bytes.data(), bytes.size(), out.data(), &size, kind, nullptr);
  PAWL_CHECK(done == 1 && size == out.size(), "libcrypto computes no ", EVP_MD_get0_name(kind));
  return out;
}

}  // namespace

Sha256 sha256(std::span<const std::byte> bytes) {
  return digest_with<Sha256>(EVP_sha256(), bytes);
}

Md5 md5(std::span<const std::byte> bytes) {
  return digest_with<Md5>(EVP_md5(), bytes);
}

Sha256 hmac_sha256(std::string_view key, std::string_view message) {
  Sha256 out{};
  unsigned size = 0;
  const unsigned char* done =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(message.data()), message.size(), out.data(), &size);
  PAWL_CHECK(done != nullptr && size == out.size(), "libcrypto computes no HMAC");
  return out;
}

std::string hex(std::span<const unsigned char> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const unsigned char byte : bytes) {
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

std::string base64(std::span<const unsigned char> bytes) {
  std::string out((bytes.size() + 2) / 3 * 4 + 1, '\0');  // EVP_EncodeBlock writes a zero behind
  const int size =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()), bytes.data(), static_cast<int>(bytes.size()));
  out.resize(static_cast<std::size_t>(size));
  return out;
}

std::string base64_of(std::uint32_t crc) {
  const std::array<unsigned char, 4> bytes{static_cast<unsigned char>(crc >> 24), static_cast<unsigned char>(crc >> 16),
                                           static_cast<unsigned char>(crc >> 8), static_cast<unsigned char>(crc)};
  return base64(bytes);
}

}  // namespace pawl::s3
