#include "record.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "text_data.h"

namespace charlm {
namespace {

using Ull = unsigned long long;

[[gnu::format(printf, 1, 2)]] std::string formatted(const char* format, ...) {
  char buffer[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer, sizeof buffer, format, arguments);
  va_end(arguments);
  return buffer;
}

std::uint64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec);
}

// Field 22 of /proc/self/stat: in clock ticks since boot. The command's name before it may hold blanks.
std::uint64_t own_start_time() {
  char line[1024] = {};
  const int file = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t got = read(file, line, sizeof line - 1);
  close(file);
  const char* at = got > 0 ? std::strrchr(line, ')') : nullptr;
  for (int field = 2; at != nullptr && field < 22; ++field) at = std::strchr(at + 1, ' ');
  return at == nullptr ? 0 : std::strtoull(at + 1, nullptr, 10);
}

Outcome write_all(int file, const void* data, std::size_t size, const std::string& path) {
  while (size > 0) {
    const ssize_t written = write(file, data, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Outcome::refused("--record: write " + path + ": " + std::strerror(errno));
    data = static_cast<const char*>(data) + written;
    size -= static_cast<std::size_t>(written);
  }
  return {};
}

struct Piece {
  const void* data;
  std::size_t size;
};

Outcome write_file(const std::string& path, int flags, const std::vector<Piece>& pieces) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0644);
  if (file < 0) return Outcome::refused("--record: open " + path + ": " + std::strerror(errno));
  Outcome outcome;
  for (const Piece& piece : pieces) {
    if (outcome.ok()) outcome = write_all(file, piece.data, piece.size, path);
  }
  close(file);
  return outcome;
}

Outcome replace_file(const std::string& path, const std::vector<Piece>& pieces) {
  const std::string partial = path + formatted(".%d", static_cast<int>(getpid()));
  CHARLM_TRY(write_file(partial, O_TRUNC, pieces));
  if (rename(partial.c_str(), path.c_str()) != 0) {
    return Outcome::refused("--record: rename " + partial + ": " + std::strerror(errno));
  }
  return {};
}

Outcome make_folders(const std::string& folder) {
  for (std::size_t at = folder.find('/', 1);; at = folder.find('/', at + 1)) {
    const std::string part = folder.substr(0, at);
    if (mkdir(part.c_str(), 0755) != 0 && errno != EEXIST) {
      return Outcome::refused("--record: make " + part + ": " + std::strerror(errno));
    }
    if (at == std::string::npos) return {};
  }
}

}  // namespace

Outcome Record::begin(const std::string& folder) {
  folder_ = folder;
  if (folder_.empty()) return {};
  std::uint64_t nonce = 0;
  if (getrandom(&nonce, sizeof nonce, 0) != sizeof nonce) return Outcome::refused("--record: no random number");
  pid_ = static_cast<int>(getpid());
  process_ = formatted("\"pid\":%d,\"nonce\":\"%016llx\"", pid_, static_cast<Ull>(nonce));
  CHARLM_TRY(make_folders(folder_));
  const std::string line = formatted("{%s,\"start_time\":%llu,\"started_ns\":%llu}\n", process_.c_str(),
                                     static_cast<Ull>(own_start_time()), static_cast<Ull>(monotonic_ns()));
  return replace_file(folder_ + formatted("/start.%d.json", pid_), {{line.data(), line.size()}});
}

Outcome Record::write_step(std::uint32_t seat, const StepRecord& step) {
  if (folder_.empty()) return {};
  std::uint64_t bits;
  std::memcpy(&bits, &step.loss, sizeof bits);
  const std::string line = formatted(
      "{\"step\":%llu,\"loss\":%.6f,\"loss_bits\":\"%016llx\",\"samples_hash\":\"%016llx\",%s,\"updates\":%llu,"
      "\"t_ns\":%llu,\"fence_wait_ns\":%llu}\n",
      static_cast<Ull>(step.step), step.loss, static_cast<Ull>(bits), static_cast<Ull>(step.samples_hash),
      process_.c_str(), static_cast<Ull>(step.updates), static_cast<Ull>(monotonic_ns()),
      static_cast<Ull>(step.fence_wait_ns));
  return write_file(folder_ + formatted("/loss.%u.%d.jsonl", seat, pid_), O_APPEND, {{line.data(), line.size()}});
}

Outcome Record::write_final(std::uint32_t seat, const FinalRecord& final, const std::vector<HeldTensor>& tensors) {
  if (folder_.empty()) return {};
  std::string text = formatted(
      "{\"seat\":%u,%s,\"step\":%llu,\"updates\":%llu,\"samples\":%llu,\"samples_hash\":\"%016llx\","
      "\"rng_hash\":\"%016llx\",\"tensors\":[",
      seat, process_.c_str(), static_cast<Ull>(final.step), static_cast<Ull>(final.updates),
      static_cast<Ull>(final.samples), static_cast<Ull>(final.samples_hash), static_cast<Ull>(final.rng_hash));
  std::vector<Piece> pieces;
  std::size_t offset = 0;
  for (const HeldTensor& tensor : tensors) {
    text += formatted(
        "%s\n{\"name\":\"%s\",\"role\":\"%s\",\"lifetime\":\"%s\",\"offset_bytes\":%zu,\"size_bytes\":%zu,"
        "\"hash\":\"%016llx\"}",
        pieces.empty() ? "" : ",", tensor.name.c_str(), tensor.role.c_str(), tensor.lifetime.c_str(), offset,
        tensor.size_bytes, static_cast<Ull>(fnv1a(tensor.data, tensor.size_bytes)));
    pieces.push_back({tensor.data, tensor.size_bytes});
    offset += tensor.size_bytes;
  }
  text += "\n]}\n";
  CHARLM_TRY(replace_file(folder_ + formatted("/final.%u.bin", seat), pieces));
  return replace_file(folder_ + formatted("/final.%u.json", seat), {{text.data(), text.size()}});
}

}  // namespace charlm
