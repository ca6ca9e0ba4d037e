#include "env/byte_source.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"

namespace pawl {
namespace {

Status inside(std::uint64_t offset_bytes, std::uint64_t count, std::uint64_t size_bytes) {
  if (offset_bytes <= size_bytes && count <= size_bytes - offset_bytes) return {};
  return Error{Code::corrupt, text("bytes ", offset_bytes, " + ", count, " pass the end at ", size_bytes)};
}

class FileBytes final : public ByteSource {
 public:
  FileBytes(std::string path, std::unique_ptr<File> file, std::uint64_t size_bytes)
      : path_(std::move(path)), file_(std::move(file)), size_bytes_(size_bytes) {}
  [[nodiscard]] std::uint64_t size_bytes() const override { return size_bytes_; }
  [[nodiscard]] Status read(std::uint64_t offset_bytes, std::span<std::byte> buffer) override {
    if (Status fits = inside(offset_bytes, buffer.size(), size_bytes_); !fits)
      return std::move(fits).error().within(path_);
    PAWL_ASSIGN(const std::size_t got, file_->read_at(offset_bytes, buffer));
    if (got != buffer.size()) return Error{Code::corrupt, text(path_, ": shorter than when it was opened")};
    return {};
  }
  void will_need(std::uint64_t offset_bytes, std::uint64_t size_bytes) override {
    file_->will_need(offset_bytes, size_bytes);
  }

 private:
  std::string path_;
  std::unique_ptr<File> file_;
  std::uint64_t size_bytes_;
};

}  // namespace

Result<std::string> read_text(ByteSource& source, std::uint64_t offset_bytes, std::uint64_t size_bytes) {
  PAWL_TRY(inside(offset_bytes, size_bytes, source.size_bytes()));
  std::string out(size_bytes, '\0');
  PAWL_TRY(source.read(offset_bytes, std::as_writable_bytes(std::span(out))));
  return out;
}

bool is_plain_file_name(std::string_view name) {
  if (name.empty() || name.size() > 255 || name == "." || name == "..") return false;
  return std::ranges::none_of(
      name, [](char c) { return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

Result<std::unique_ptr<ByteSource>> open_bytes(const std::string& path, Files& files) {
  PAWL_ASSIGN(std::unique_ptr<File> file, files.open(path, {}));
  PAWL_ASSIGN(const std::uint64_t size, file->size());
  return std::unique_ptr<ByteSource>(std::make_unique<FileBytes>(path, std::move(file), size));
}

Result<std::string> read_head(const std::string& path, std::uint64_t count, Files& files) {
  PAWL_ASSIGN(const std::unique_ptr<ByteSource> source, open_bytes(path, files));
  return read_text(*source, 0, std::min(source->size_bytes(), count));
}

Status MemoryBytes::read(std::uint64_t offset_bytes, std::span<std::byte> buffer) {
  PAWL_TRY(inside(offset_bytes, buffer.size(), bytes_.size()));
  if (!buffer.empty()) std::memcpy(buffer.data(), bytes_.data() + offset_bytes, buffer.size());
  return {};
}

Result<RangeBytes> RangeBytes::open(ByteSource& whole, std::uint64_t offset_bytes, std::uint64_t size_bytes) {
  PAWL_TRY(inside(offset_bytes, size_bytes, whole.size_bytes()));
  return RangeBytes(whole, offset_bytes, size_bytes);
}

Status RangeBytes::read(std::uint64_t offset_bytes, std::span<std::byte> buffer) {
  PAWL_TRY(inside(offset_bytes, buffer.size(), size_bytes_));
  return whole_->read(offset_bytes_ + offset_bytes, buffer);
}

}  // namespace pawl
