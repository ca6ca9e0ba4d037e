// universal_floors: one raw operation of this machine, and how long it took: the floors of bench/universal.
//
//   universal_floors copy direct|buffered|kernel TARGET FILE...   all bytes into one new file, synced
//   universal_floors read direct|buffered|mapped FILE...          into memory that was touched before
//   universal_floors write TARGET BYTES                           noise from memory into a new file, O_DIRECT, synced
//   universal_floors evict FILE...                                out of the page cache; fails where pages stay
//
// Prints seconds of the operation alone. Fails with a sentence and 1; 2: wrong use.
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "reshape/raw.h"

namespace pawl::bench {
namespace {

constexpr std::uint64_t kPage = 4096;

std::span<std::byte> touched_memory(std::uint64_t size) {
  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) give_up("memory");
  (void)::madvise(data, size, MADV_HUGEPAGE);
  std::memset(data, 1, size);
  return {static_cast<std::byte*>(data), size};
}

// Noise of some mebibytes, again and again: nobody compresses across that.
std::span<std::byte> noise(std::uint64_t size) {
  const std::span<std::byte> memory = touched_memory((size + kPage - 1) / kPage * kPage);
  std::mt19937_64 random(6);
  const std::uint64_t window = std::min<std::uint64_t>(memory.size(), 64 << 20);
  for (std::uint64_t at = 0; at + 8 <= window; at += 8) {
    const std::uint64_t word = random();
    std::memcpy(memory.data() + at, &word, 8);
  }
  for (std::uint64_t at = window; at < memory.size(); at += window)
    std::memcpy(memory.data() + at, memory.data(), std::min<std::uint64_t>(window, memory.size() - at));
  return memory;
}

std::vector<RawFile> files_of(int count, char** names) {
  std::vector<RawFile> files;
  for (int i = 0; i < count; ++i) {
    struct stat found {};
    if (::stat(names[i], &found) != 0) give_up(names[i]);
    files.push_back({names[i], static_cast<std::uint64_t>(found.st_size)});
  }
  return files;
}

int timed(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  std::printf("%.6f\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  return 0;
}

int copy(const std::string& how, const std::string& target, const std::vector<RawFile>& files, unsigned threads) {
  if (how == "direct") return timed([&] { copy_direct(files, target, threads); });
  if (how == "buffered") return timed([&] { copy_buffered(files, target, threads); });
  if (how == "kernel") return timed([&] { copy_in_kernel(files, target); });
  return 2;
}

int read(const std::string& how, const std::vector<RawFile>& files, unsigned threads) {
  std::uint64_t size = 0;
  for (const RawFile& file : files) size += (file.size_bytes + kPage - 1) / kPage * kPage;
  const std::span<std::byte> to = touched_memory(size);
  if (how == "direct") return timed([&] { read_direct(files, to, threads); });
  if (how == "buffered") return timed([&] { read_buffered(files, to, threads); });
  if (how == "mapped") return timed([&] { read_mapped(files, to, threads); });
  return 2;
}

int run(int argc, char** argv) {
  const unsigned threads = std::max(1u, std::thread::hardware_concurrency());
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "copy" && argc > 4) return copy(argv[2], argv[3], files_of(argc - 4, argv + 4), threads);
  if (what == "read" && argc > 3) return read(argv[2], files_of(argc - 3, argv + 3), threads);
  if (what == "write" && argc == 4) {
    const std::span<std::byte> memory = noise(std::strtoull(argv[3], nullptr, 10));
    return timed([&] { write_direct(memory, argv[2], threads); });
  }
  if (what == "evict") {
    for (int i = 2; i < argc; ++i) evict(argv[i]);
    return 0;
  }
  return 2;
}

}  // namespace
}  // namespace pawl::bench

int main(int argc, char** argv) {
  const int code = pawl::bench::run(argc, argv);
  if (code == 2)
    std::fputs(
        "usage: universal_floors copy direct|buffered|kernel TARGET FILE... | read direct|buffered|mapped FILE... |\n"
        "       write TARGET BYTES | evict FILE...\n",
        stderr);
  return code;
}
