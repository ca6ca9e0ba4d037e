// StoredFile, opened: the decoded bytes that a view's pieces lie in.
//
// Plain files are read where they are. Encoded ranges are decoded whole, once, into memory: their writers make one for
// each tensor, so that is one tensor's bytes. Bytes that don't decode to exactly what the view says are `corrupt`.
#pragma once

#include <memory>

#include "base/result.h"
#include "env/byte_source.h"
#include "env/files.h"
#include "reshape/checkpoint_view.h"

namespace pawl {

// `file` outlives what is returned. Errors name the path.
[[nodiscard]] Result<std::unique_ptr<ByteSource>> open_stored(const StoredFile& file, Files& files = real_files());

// A frame of zstd, or a raw deflate stream, that must decode to `decoded_bytes`; nothing is allocated beyond that.
// Fails: `corrupt`.
[[nodiscard]] Result<std::string> decode_zstd(std::string_view encoded, std::uint64_t decoded_bytes);
[[nodiscard]] Result<std::string> decode_deflate(std::string_view encoded, std::uint64_t decoded_bytes);
// What a zstd frame says that it decodes to. Fails: `corrupt` where it is none, or does not say.
[[nodiscard]] Result<std::uint64_t> zstd_decoded_bytes(std::string_view head);

}  // namespace pawl
