// Opening a StoredFile: the decoded bytes that a view's pieces lie in.
//
// Plain files are read where they are. An encoded range is decoded whole, once, into memory. Writers encode each tensor
// by itself, so that is one tensor's bytes. Bytes that don't decode to exactly what the view says are `corrupt`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "checkpoint/view/checkpoint_view.h"
#include "env/byte_source.h"
#include "env/files.h"

namespace pawl::checkpoint {

// `file` outlives what is returned. Errors name the path.
[[nodiscard]] Result<std::unique_ptr<ByteSource>> open_stored(const StoredFile& file, Files& files = real_files());

// The number that a tensor of one element holds: a step, a learning rate. Nothing where it is another tensor, or can't be
// read.
[[nodiscard]] std::optional<double> number_in(const StoredTensor& tensor, const CheckpointView& view,
                                              Files& files = real_files());

// The bytes of the file's one range, decoded as it says. Fails: `corrupt`; `broken` where nothing is encoded.
[[nodiscard]] Result<std::string> decode_stored(const StoredFile& file, std::string_view encoded);

// A frame of zstd, or a raw deflate stream, that must decode to `decoded_bytes`; nothing is allocated beyond that.
// Fails: `corrupt`.
[[nodiscard]] Result<std::string> decode_zstd(std::string_view encoded, std::uint64_t decoded_bytes);
[[nodiscard]] Result<std::string> decode_deflate(std::string_view encoded, std::uint64_t decoded_bytes);

// What one zstd frame decodes to, of which only both ends are kept: for frames that don't say their size, and readers
// that only need where things lie in them: each at most `end_bytes_max`. In memory: the ends and the frame's window.
// Fails: `corrupt` unless `encoded` is one whole frame of at most `decoded_bytes_max`; `io`.
struct ZstdEnds {
  std::uint64_t size_bytes = 0;
  std::string head;
  std::string tail;  // empty where the head is all
};
[[nodiscard]] Result<ZstdEnds> zstd_ends(ByteSource& encoded, std::uint64_t decoded_bytes_max,
                                         std::size_t end_bytes_max);

}  // namespace pawl::checkpoint
