#include "job/transport/frame.h"

#include <cstring>

#include "base/crc32c.h"
#include "base/text.h"

namespace pawl::job {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire is little endian and so are the hosts we support");

namespace {

constexpr std::size_t kSummedBytes = 20;  // of the header, before its own sum

std::uint32_t payload_sum(std::string_view payload) {
  return crc32c(std::as_bytes(std::span(payload)));
}

// Never 0, which says "left out".
std::uint32_t header_sum(const std::byte* header) {
  const std::uint32_t sum = crc32c(std::span(header, kSummedBytes));
  return sum == 0 ? ~std::uint32_t{0} : sum;
}

}  // namespace

void encode_header(FrameHeader header, std::span<std::byte, kFrameHeaderBytes> out) {
  std::memset(out.data(), 0, out.size());
  std::memcpy(out.data(), &header.length, 4);
  std::memcpy(out.data() + 4, &header.kind, 2);
  std::memcpy(out.data() + 8, &header.id, 8);
  std::memcpy(out.data() + 16, &header.payload_crc32c, 4);
  const std::uint32_t sum = header_sum(out.data());
  std::memcpy(out.data() + kSummedBytes, &sum, 4);
}

Result<FrameHeader> decode_header(std::span<const std::byte, kFrameHeaderBytes> in, FrameSums sums) {
  FrameHeader header;
  std::uint16_t zero = 0;
  std::uint32_t sum = 0;
  std::memcpy(&header.length, in.data(), 4);
  std::memcpy(&header.kind, in.data() + 4, 2);
  std::memcpy(&zero, in.data() + 6, 2);
  std::memcpy(&header.id, in.data() + 8, 8);
  std::memcpy(&header.payload_crc32c, in.data() + 16, 4);
  std::memcpy(&sum, in.data() + kSummedBytes, 4);
  header.summed = sum != 0 || header.payload_crc32c != 0 || sums == FrameSums::required;
  if (header.summed && sum != header_sum(in.data()))
    return Error{Code::corrupt, "not a frame of pawl, or damaged on the way"};
  if (zero != 0 || header.length > kFramePayloadMax) return Error{Code::corrupt, "not a frame of pawl"};
  return header;
}

Status check_payload(const FrameHeader& header, std::string_view payload) {
  if (!header.summed || payload_sum(payload) == header.payload_crc32c) return {};
  return Error{Code::corrupt, text("a message of kind ", header.kind, " was damaged on the way: its checksum differs")};
}

std::string encode_frame(const Frame& frame) {
  std::string out(kFrameHeaderBytes, '\0');
  encode_header({static_cast<std::uint32_t>(frame.payload.size()), frame.kind, frame.id, payload_sum(frame.payload)},
                std::span<std::byte, kFrameHeaderBytes>(reinterpret_cast<std::byte*>(out.data()), kFrameHeaderBytes));
  return out += frame.payload;
}

Result<bool> FrameReader::next(Frame& frame) {
  const std::size_t have = buffer_.size() - consumed_;
  if (have < kFrameHeaderBytes) return false;
  const auto* begin = reinterpret_cast<const std::byte*>(buffer_.data() + consumed_);
  PAWL_ASSIGN(FrameHeader header,
              decode_header(std::span<const std::byte, kFrameHeaderBytes>(begin, kFrameHeaderBytes), sums_));
  if (header.length > payload_max_) return Error{Code::corrupt, "a message that is longer than any of pawl's here"};
  if (have < kFrameHeaderBytes + header.length) return false;
  frame.kind = header.kind;
  frame.id = header.id;
  frame.payload.assign(buffer_, consumed_ + kFrameHeaderBytes, header.length);
  PAWL_TRY(check_payload(header, frame.payload));
  consumed_ += kFrameHeaderBytes + header.length;
  if (consumed_ == buffer_.size()) {
    buffer_.clear();
    consumed_ = 0;
  } else if (consumed_ > (1u << 20)) {
    buffer_.erase(0, consumed_);
    consumed_ = 0;
  }
  return true;
}

std::string Reader::str() {
  const std::uint32_t size = u32();
  if (!ok_ || size > in_.size()) {
    ok_ = false;
    return {};
  }
  std::string value(in_.substr(0, size));
  in_.remove_prefix(size);
  return value;
}

std::string Reader::rest() {
  std::string value(in_);
  in_ = {};
  return value;
}

void Reader::raw(void* p, std::size_t n) {
  if (!ok_ || n > in_.size()) {
    ok_ = false;
    return;
  }
  std::memcpy(p, in_.data(), n);
  in_.remove_prefix(n);
}

Status send_frame(int fd, const Frame& frame, Deadline deadline) {
  const std::string bytes = encode_frame(frame);
  return send_all(fd, std::span(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()), deadline);
}

Result<Frame> receive_frame(int fd, Deadline deadline) {
  std::byte head[kFrameHeaderBytes];
  PAWL_TRY(receive_all(fd, head, deadline));
  PAWL_ASSIGN(FrameHeader header, decode_header(std::span<const std::byte, kFrameHeaderBytes>(head)));
  Frame frame{header.kind, header.id, std::string(header.length, '\0')};
  PAWL_TRY(
      receive_all(fd, std::span(reinterpret_cast<std::byte*>(frame.payload.data()), frame.payload.size()), deadline));
  PAWL_TRY(check_payload(header, frame.payload));
  return frame;
}

Status send_frame(Stream& stream, const Frame& frame, Deadline deadline) {
  const std::string bytes = encode_frame(frame);
  return stream.send_all({std::as_bytes(std::span(bytes))}, deadline);
}

Result<Frame> receive_frame(Stream& stream, Deadline deadline) {
  std::byte head[kFrameHeaderBytes];
  PAWL_TRY(stream.receive_all(head, deadline));
  PAWL_ASSIGN(FrameHeader header, decode_header(std::span<const std::byte, kFrameHeaderBytes>(head)));
  return receive_payload(stream, header, deadline);
}

Result<Frame> receive_payload(Stream& stream, const FrameHeader& header, Deadline deadline) {
  Frame frame{header.kind, header.id, std::string(header.length, '\0')};
  PAWL_TRY(stream.receive_all(std::as_writable_bytes(std::span(frame.payload)), deadline));
  PAWL_TRY(check_payload(header, frame.payload));
  return frame;
}

}  // namespace pawl::job
