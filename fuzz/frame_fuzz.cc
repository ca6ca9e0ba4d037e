// Frames and their fields as they come off a socket, cut into pieces anywhere.
#include <algorithm>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "job/transport/frame.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size);

namespace {

using pawl::job::Frame;

struct Decoded {
  std::vector<Frame> frames;
  bool corrupt = false;
};

Decoded decode(std::string_view stream, std::size_t piece_bytes) {
  Decoded decoded;
  pawl::job::FrameReader reader;
  while (!stream.empty() && !decoded.corrupt) {
    const std::string_view piece = stream.substr(0, piece_bytes);
    stream.remove_prefix(piece.size());
    reader.append(std::as_bytes(std::span(piece)));
    for (;;) {
      Frame frame;
      const pawl::Result<bool> more = reader.next(frame);
      decoded.corrupt = !more;
      if (!more || !*more) break;
      decoded.frames.push_back(std::move(frame));
    }
  }
  return decoded;
}

void read_fields(std::string_view payload) {
  pawl::job::Reader reader(payload);
  std::size_t read_bytes = 0;
  while (reader.ok() && !reader.done()) {
    switch (reader.u8() % 3) {
      case 0:
        reader.u32();
        break;
      case 1:
        reader.u64();
        break;
      default:
        read_bytes += reader.str().size();
    }
  }
  if (read_bytes > payload.size()) std::abort();  // more came out than went in
}

}  // namespace

int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view stream(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Decoded whole = decode(stream, stream.size());
  const Decoded pieces = decode(stream, 1 + data[0]);
  // Where the stream is cut must not matter.
  if (whole.corrupt != pieces.corrupt || whole.frames.size() != pieces.frames.size()) std::abort();
  std::string again;
  for (std::size_t i = 0; i < whole.frames.size(); ++i) {
    if (whole.frames[i].payload != pieces.frames[i].payload) std::abort();
    read_fields(whole.frames[i].payload);
    again += pawl::job::encode_frame(whole.frames[i]);
  }
  if (!stream.starts_with(again)) std::abort();
  return 0;
}
