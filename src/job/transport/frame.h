// Frames: how every message of pawl travels on a stream socket, and how its fields are written.
//
// A frame is a 24-byte header {u32 length of the payload, u16 kind, u16 zero, u64 id, u32 CRC32C of the payload, u32
// CRC32C of the 20 bytes before} and the payload, little endian. The header is proven before its length is believed,
// the payload before anybody sees it: what was damaged on the way is `corrupt`, and the stream is closed and made anew.
// On a local socket a frame may leave its sums out (both 0), so that a script can ask without knowing CRC32C.
// The kinds, and the payload of each, are in job/transport/messages.h. Pure but for the blocking calls at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "env/clock.h"
#include "env/network.h"

namespace pawl::job {

inline constexpr std::size_t kFrameHeaderBytes = 24;
inline constexpr std::uint32_t kFramePayloadMax = 64u << 20;

struct Frame {
  std::uint16_t kind = 0;
  std::uint64_t id = 0;  // of a request; its answer carries the same
  std::string payload;
};

enum class FrameSums { required, optional };  // optional: on a local socket

struct FrameHeader {
  std::uint32_t length = 0;
  std::uint16_t kind = 0;
  std::uint64_t id = 0;
  std::uint32_t payload_crc32c = 0;
  bool summed = true;  // false: the sender left its sums out
};
void encode_header(FrameHeader header, std::span<std::byte, kFrameHeaderBytes> out);
// Fails: `corrupt` if its sum differs (or is left out where it must not be), the length passes kFramePayloadMax, or the
// zero field isn't.
[[nodiscard]] Result<FrameHeader> decode_header(std::span<const std::byte, kFrameHeaderBytes> in,
                                                FrameSums sums = FrameSums::required);
// Fails: `corrupt` if `payload` is not what the header's sum is of.
[[nodiscard]] Status check_payload(const FrameHeader& header, std::string_view payload);
[[nodiscard]] std::string encode_frame(const Frame& frame);

// Bytes in, whole frames out. For non-blocking sockets.
class FrameReader {
 public:
  explicit FrameReader(FrameSums sums = FrameSums::required, std::uint32_t payload_max = kFramePayloadMax)
      : sums_(sums), payload_max_(payload_max) {}
  void append(std::span<const std::byte> bytes) {
    buffer_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  // True and a frame, false if none is whole yet. Fails: `corrupt`, also where a payload is longer than it may be; the
  // stream is then of no more use.
  [[nodiscard]] Result<bool> next(Frame& frame);

 private:
  FrameSums sums_;
  std::uint32_t payload_max_;
  std::string buffer_;
  std::size_t consumed_ = 0;
};

// Fields of a payload, in order. Integers little endian; strings as u32 length and bytes.
class Writer {
 public:
  Writer& u8(std::uint8_t v) { return raw(&v, 1); }
  Writer& u32(std::uint32_t v) { return raw(&v, sizeof v); }
  Writer& u64(std::uint64_t v) { return raw(&v, sizeof v); }
  Writer& str(std::string_view v) {
    u32(static_cast<std::uint32_t>(v.size()));
    return raw(v.data(), v.size());
  }
  [[nodiscard]] std::string take() { return std::move(out_); }

 private:
  Writer& raw(const void* p, std::size_t n) {
    out_.append(static_cast<const char*>(p), n);
    return *this;
  }
  std::string out_;
};

// Reads what Writer wrote. After a short or oversized field ok() is false and every further value is zero or empty.
class Reader {
 public:
  explicit Reader(std::string_view in) : in_(in) {}
  std::uint8_t u8() {
    std::uint8_t v = 0;
    raw(&v, sizeof v);
    return v;
  }
  std::uint32_t u32() {
    std::uint32_t v = 0;
    raw(&v, sizeof v);
    return v;
  }
  std::uint64_t u64() {
    std::uint64_t v = 0;
    raw(&v, sizeof v);
    return v;
  }
  std::string str();
  std::string rest();  // all that is left, as it is
  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] bool done() const { return ok_ && in_.empty(); }  // everything read, nothing left

 private:
  void raw(void* p, std::size_t n);
  std::string_view in_;
  bool ok_ = true;
};

// Blocking, whole frames, on a stream socket. Fails: `unreachable` on EOF or a reset, `timeout`, `corrupt` as
// decode_header and check_payload. After an error the stream is only good for closing.
[[nodiscard]] Status send_frame(int fd, const Frame& frame, Deadline deadline = Deadline::never());
[[nodiscard]] Result<Frame> receive_frame(int fd, Deadline deadline = Deadline::never());
[[nodiscard]] Status send_frame(Stream& stream, const Frame& frame, Deadline deadline = Deadline::never());
[[nodiscard]] Result<Frame> receive_frame(Stream& stream, Deadline deadline = Deadline::never());
// The rest of a frame whose header has been received.
[[nodiscard]] Result<Frame> receive_payload(Stream& stream, const FrameHeader& header,
                                            Deadline deadline = Deadline::never());

}  // namespace pawl::job
