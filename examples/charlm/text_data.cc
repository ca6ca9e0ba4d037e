#include "text_data.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>

namespace charlm {
namespace {

namespace fs = std::filesystem;

bool looks_like_text(const std::vector<std::uint8_t>& bytes, std::size_t from) {
  const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(from);
  const auto last = first + std::min<std::ptrdiff_t>(bytes.end() - first, 4096);
  return std::find(first, last, std::uint8_t{0}) == last;
}

// Appends the file's bytes as far as there is room. False, with errno: it can't be read.
bool append_file(const std::string& path, std::vector<std::uint8_t>& bytes) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  std::size_t size = bytes.size();
  ssize_t got = 0;
  do {
    bytes.resize(std::min(kTextBytesMax, size + (256u << 10)));
    got = read(file, bytes.data() + size, bytes.size() - size);
    if (got > 0) size += static_cast<std::size_t>(got);
  } while (got > 0 || (got < 0 && errno == EINTR));
  const int cause = errno;
  bytes.resize(size);
  close(file);
  errno = cause;
  return got == 0;
}

std::vector<std::string> files_below(const fs::path& folder, std::string_view extension) {
  std::vector<std::string> files;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, fs::directory_options::skip_permission_denied, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    std::error_code ignored;
    if (!entry->is_regular_file(ignored)) continue;
    if (!extension.empty() && entry->path().extension() != extension) continue;
    files.push_back(entry->path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

void append_folder(const fs::path& folder, std::string_view extension, std::vector<std::uint8_t>& bytes) {
  for (const std::string& file : files_below(folder, extension)) {
    if (bytes.size() >= kTextBytesMax) return;
    const std::size_t before = bytes.size();
    if (!append_file(file, bytes) || !looks_like_text(bytes, before)) bytes.resize(before);
  }
}

// The first of these that has enough.
void load_default(std::size_t bytes_min, Text* text) {
  std::vector<std::string> pythons;
  for (const char* library : {"/usr/lib", "/usr/local/lib"}) {
    std::error_code error;
    fs::directory_iterator entry(library, error);
    for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
      if (entry->path().filename().string().starts_with("python3")) pythons.push_back(entry->path().string());
    }
  }
  std::sort(pythons.begin(), pythons.end());
  for (const std::string& python : pythons) append_folder(python, ".py", text->bytes);
  text->source = "the Python standard library's sources";
  if (text->bytes.size() >= std::max<std::size_t>(bytes_min, 64u << 10)) return;
  for (const char* shared : {"/usr/share/common-licenses", "/usr/share/dict", "/usr/share/perl", "/usr/share/doc"}) {
    append_folder(shared, "", text->bytes);
  }
  text->source = "text below /usr/share";
}

}  // namespace

std::uint64_t fnv1a(const void* data, std::size_t size) {
  const auto* bytes = static_cast<const std::uint8_t*>(data);
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (std::size_t i = 0; i < size; ++i) hash = (hash ^ bytes[i]) * 0x100000001b3ull;
  return hash;
}

Outcome load_text(const std::string& path, std::size_t bytes_min, Text* text) {
  text->bytes.clear();
  text->bytes.reserve(kTextBytesMax);
  text->source = path;
  std::error_code error;
  if (path.empty()) {
    load_default(bytes_min, text);
  } else if (fs::is_directory(path, error)) {
    append_folder(path, "", text->bytes);
  } else if (!append_file(path, text->bytes)) {
    return Outcome::refused("--data " + path + ": " + std::strerror(errno));
  }
  if (text->bytes.size() < bytes_min) {
    return Outcome::refused((path.empty() ? std::string("no text found on this machine: name some with --data FILE|DIR")
                                          : "--data " + path + " has too little text") +
                            " (" + std::to_string(text->bytes.size()) + " bytes, at least " +
                            std::to_string(bytes_min) + " are needed)");
  }
  text->hash = fnv1a(text->bytes.data(), text->bytes.size());
  return {};
}

}  // namespace charlm
