// A checkpoint's folder out of a fuzzer's bytes, in memory, and what must hold of any view of it.
//
// The bytes are files one after another: the name's length (1 byte), the name ("zero/gain/fp32.pt"), how many chunks (2
// bytes), and the chunks: so many bytes as they are (length in 2 bytes), then so many zeros (in 4). All little-endian.
// tools/fuzz-pack writes that of a folder: tensors' own bytes become zeros, so that seeds stay small.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/reshape/stored_file.h"
#include "checkpoint/view/checkpoint_view.h"
#include "checkpoint/view/pieces.h"
#include "env/files.h"

namespace pawl::fuzz {

using namespace checkpoint;

inline constexpr std::string_view kRoot = "/checkpoint";

class FolderFile final : public File {
 public:
  explicit FolderFile(std::string_view bytes) : bytes_(bytes) {}
  Status write_at(std::uint64_t, std::span<const std::byte>) override { std::abort(); }
  Result<std::size_t> read_at(std::uint64_t offset_bytes, std::span<std::byte> buffer) override {
    if (offset_bytes >= bytes_.size()) return std::size_t{0};
    const std::string_view from = bytes_.substr(offset_bytes, buffer.size());
    std::memcpy(buffer.data(), from.data(), from.size());
    return from.size();
  }
  Status sync() override { return {}; }
  Status truncate(std::uint64_t) override { std::abort(); }
  Result<std::uint64_t> size() override { return std::uint64_t{bytes_.size()}; }
  Status close() override { return {}; }

 private:
  std::string_view bytes_;
};

// A reader must not write, and must not look outside the folder.
class FolderFiles final : public Files {
 public:
  explicit FolderFiles(std::string_view input) {
    std::size_t total = 0;
    while (!input.empty() && files_.size() < 64) {
      const std::size_t length = number(input, 1);
      std::string name(kRoot);
      name += '/';
      name += take(input, length);
      std::string content;
      for (std::size_t chunks = number(input, 2); chunks > 0 && !input.empty(); --chunks) {
        content += take(input, number(input, 2));
        const std::size_t zeros = std::min<std::size_t>(number(input, 4), 1 << 18);
        if ((total += zeros) > 1 << 20) break;
        content.append(zeros, '\0');
      }
      if (is_name(name)) files_[name] = std::move(content);
    }
  }

  Result<std::unique_ptr<File>> open(const std::string& path, OpenOptions options) override {
    if (options.write || options.create) std::abort();
    const auto at = files_.find(checked(path));
    if (at == files_.end()) return Error{Code::not_found, path + ": no such file"};
    return std::unique_ptr<File>(std::make_unique<FolderFile>(at->second));
  }
  Status rename(const std::string&, const std::string&) override { std::abort(); }
  Status remove(const std::string&) override { std::abort(); }
  Result<std::vector<std::string>> list(const std::string& directory) override {
    const std::string prefix = checked(directory) + "/";
    std::vector<std::string> names;
    for (auto at = files_.lower_bound(prefix); at != files_.end() && at->first.starts_with(prefix); ++at) {
      const std::string name = at->first.substr(prefix.size(), at->first.find('/', prefix.size()) - prefix.size());
      if (!name.empty() && (names.empty() || names.back() != name)) names.push_back(name);
    }
    std::ranges::sort(names);
    names.erase(std::unique(names.begin(), names.end()), names.end());
    if (names.empty()) return Error{Code::not_found, directory + ": no such folder"};
    return names;
  }
  Status sync_directory(const std::string&) override { std::abort(); }
  bool exists(const std::string& path) override {
    const auto below = files_.lower_bound(checked(path) + "/");
    return files_.contains(path) || (below != files_.end() && below->first.starts_with(path + "/"));
  }

  [[nodiscard]] std::uint64_t size_of(const std::string& path) const {
    const auto at = files_.find(path);
    return at == files_.end() ? 0 : at->second.size();
  }

 private:
  // A disk lists no other ones.
  static bool is_name(std::string_view path) {
    for (const std::string_view part : {"//", "/./", "/../"})
      if ((std::string(path) + "/").find(part) != std::string::npos) return false;
    return path.find('\0') == std::string_view::npos;
  }
  static std::string_view take(std::string_view& input, std::size_t count) {
    const std::string_view out = input.substr(0, count);
    input.remove_prefix(out.size());
    return out;
  }
  static std::size_t number(std::string_view& input, std::size_t bytes) {
    std::size_t out = 0;
    const std::string_view from = take(input, bytes);
    for (std::size_t i = 0; i < from.size(); ++i) out |= std::size_t{static_cast<unsigned char>(from[i])} << 8 * i;
    return out;
  }
  static std::string checked(const std::string& path) {
    const bool is_inside = path == kRoot || path.starts_with(std::string(kRoot) + "/") || path == "/";
    if (!is_inside || path.find("/../") != std::string::npos || path.ends_with("/..")) std::abort();
    return path;
  }
  std::map<std::string, std::string> files_;
};

inline std::uint64_t accepted = 0;

// A view that a reader gave keeps what checkpoint_view.h promises, and what it points to can be decoded or is refused.
inline void check(const Result<CheckpointView>& result, const FolderFiles& folder, Files& files) {
  if (!result) {
    if (result.error().what.empty() || result.error().code == Code::broken) std::abort();
    return;
  }
  ++accepted;
  CheckpointView view = *result;
  std::vector<std::uint64_t> sizes;
  for (const StoredFile& file : view.files) {
    sizes.push_back(file.codec == StoredFile::Codec::none ? folder.size_of(file.path) : 0);
    const bool is_encoded = file.codec != StoredFile::Codec::none && file.codec != StoredFile::Codec::content;
    if (is_encoded && file.decoded_bytes <= 1 << 16) (void)open_stored(file, files);
  }
  const Status status = check_view(view, sizes);
  if (!status) {
    std::fprintf(stderr, "%s\n", status.error().what.c_str());
    std::abort();
  }
}

}  // namespace pawl::fuzz

// How many inputs were read to the end: replay.cc wants some of the seeds among them.
extern "C" __attribute__((used)) inline std::uint64_t FuzzerAccepted() {
  return pawl::fuzz::accepted;
}
