// ByteSource: bytes that a reader looks at: a file, a part of one, or memory.
//
// A reader asks for what it needs and never for more than there is. Errors name the source. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "env/files.h"

namespace pawl {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  [[nodiscard]] virtual std::uint64_t size_bytes() const = 0;
  // Fills the buffer. Fails: `corrupt` if that passes the end; `io`.
  [[nodiscard]] virtual Status read(std::uint64_t offset_bytes, std::span<std::byte> buffer) = 0;
  // Begins to fetch bytes that will be read, where they may be far away. Advice: nothing fails.
  virtual void will_need(std::uint64_t /*offset_bytes*/, std::uint64_t /*size_bytes*/) {}
};

// As read, into a string. Fails before it allocates if the bytes aren't there.
[[nodiscard]] Result<std::string> read_text(ByteSource& source, std::uint64_t offset_bytes, std::uint64_t size_bytes);

// Whether a name that a file gives to another names one in its own folder: no way up, no folder, no control character.
[[nodiscard]] bool is_plain_file_name(std::string_view name);

// A file; its size is taken now.
[[nodiscard]] Result<std::unique_ptr<ByteSource>> open_bytes(const std::string& path, Files& files = real_files());

// The first bytes of a file: `count`, or fewer where it has fewer.
[[nodiscard]] Result<std::string> read_head(const std::string& path, std::uint64_t count, Files& files = real_files());

// Memory that outlives this object.
class MemoryBytes final : public ByteSource {
 public:
  explicit MemoryBytes(std::string_view bytes) : bytes_(bytes) {}
  [[nodiscard]] std::uint64_t size_bytes() const override { return bytes_.size(); }
  [[nodiscard]] Status read(std::uint64_t offset_bytes, std::span<std::byte> buffer) override;

 private:
  std::string_view bytes_;
};

// A part of another source, which outlives this object.
class RangeBytes final : public ByteSource {
 public:
  // Fails: `corrupt` unless the part lies inside.
  [[nodiscard]] static Result<RangeBytes> open(ByteSource& whole, std::uint64_t offset_bytes, std::uint64_t size_bytes);
  [[nodiscard]] std::uint64_t size_bytes() const override { return size_bytes_; }
  [[nodiscard]] Status read(std::uint64_t offset_bytes, std::span<std::byte> buffer) override;

 private:
  RangeBytes(ByteSource& whole, std::uint64_t offset_bytes, std::uint64_t size_bytes)
      : whole_(&whole), offset_bytes_(offset_bytes), size_bytes_(size_bytes) {}
  ByteSource* whole_;
  std::uint64_t offset_bytes_;
  std::uint64_t size_bytes_;
};

}  // namespace pawl
