#include "raw.h"

#include <fcntl.h>
#include <liburing.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pawl::bench {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kHugePage = 2 << 20;
constexpr std::uint64_t kChunk = 1 << 20;
constexpr std::uint64_t kReadChunk = 512 << 10;  // the fastest of 256 KiB to 2 MiB, by some hundredths
constexpr unsigned kDepth = 16;

std::uint64_t paged(std::uint64_t size) {
  return (size + kPage - 1) / kPage * kPage;
}

int opened(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC, 0600);
  if (fd < 0) give_up("open " + path);
  return fd;
}

void in_threads(unsigned threads, const std::function<void(unsigned)>& body) {
  std::vector<std::thread> all;
  for (unsigned i = 0; i < threads; ++i) all.emplace_back(body, i);
  for (std::thread& thread : all) thread.join();
}

struct Chunk {
  std::size_t file = 0;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  std::uint64_t to = 0;
};

// Of one thread: every so many-th chunk, so that all work side by side in all files.
std::vector<Chunk> chunks_of(const std::vector<RawFile>& files, std::uint64_t size, unsigned thread, unsigned threads,
                             bool packed) {
  std::vector<Chunk> out;
  std::uint64_t base = 0, number = 0;
  for (std::size_t f = 0; f < files.size(); ++f) {
    for (std::uint64_t at = 0; at < files[f].size_bytes; at += size, ++number) {
      if (number % threads == thread) out.push_back({f, at, std::min(size, files[f].size_bytes - at), base + at});
    }
    base += packed ? files[f].size_bytes : paged(files[f].size_bytes);
  }
  return out;
}

std::vector<int> open_all(const std::vector<RawFile>& files, int flags) {
  std::vector<int> fds;
  for (const RawFile& file : files) fds.push_back(opened(file.path, flags));
  return fds;
}

void close_all(const std::vector<int>& fds) {
  for (const int fd : fds) ::close(fd);
}

void pread_all(int fd, std::byte* to, std::uint64_t size, std::uint64_t offset) {
  while (size > 0) {
    const ssize_t got = ::pread(fd, to, size, static_cast<off_t>(offset));
    if (got <= 0) give_up("read");
    to += got;
    offset += static_cast<std::uint64_t>(got);
    size -= static_cast<std::uint64_t>(got);
  }
}

void pwrite_all(int fd, const std::byte* from, std::uint64_t size, std::uint64_t offset) {
  while (size > 0) {
    const ssize_t done = ::pwrite(fd, from, size, static_cast<off_t>(offset));
    if (done <= 0) give_up("write");
    from += done;
    offset += static_cast<std::uint64_t>(done);
    size -= static_cast<std::uint64_t>(done);
  }
}

int new_target(const std::string& path, std::uint64_t size, int flags) {
  const int fd = opened(path, O_RDWR | O_CREAT | O_EXCL | flags);
  if (::fallocate(fd, 0, 0, static_cast<off_t>(size)) != 0) give_up("fallocate " + path);
  return fd;
}

std::uint64_t total(const std::vector<RawFile>& files, bool rounded) {
  std::uint64_t sum = 0;
  for (const RawFile& file : files) sum += rounded ? paged(file.size_bytes) : file.size_bytes;
  return sum;
}

}  // namespace

void give_up(const std::string& what) {
  std::perror(what.c_str());
  std::exit(1);
}

void read_direct(const std::vector<RawFile>& files, std::span<std::byte> to, unsigned threads) {
  const std::vector<int> fds = open_all(files, O_RDONLY | O_DIRECT);
  in_threads(threads, [&](unsigned thread) {
    io_uring ring{};
    if (io_uring_queue_init(kDepth, &ring, 0) != 0) give_up("io_uring");
    const std::vector<Chunk> chunks = chunks_of(files, kReadChunk, thread, threads, false);
    std::size_t next = 0, done = 0;
    while (done < chunks.size()) {
      while (next < chunks.size() && next - done < kDepth) {
        io_uring_sqe* entry = io_uring_get_sqe(&ring);
        const Chunk& chunk = chunks[next++];
        io_uring_prep_read(entry, fds[chunk.file], to.data() + chunk.to, static_cast<unsigned>(paged(chunk.size)),
                           chunk.offset);
        io_uring_sqe_set_data64(entry, chunk.size);
      }
      if (io_uring_submit_and_wait(&ring, 1) < 0) give_up("io_uring");
      io_uring_cqe* entry = nullptr;
      while (io_uring_peek_cqe(&ring, &entry) == 0) {
        if (entry->res < 0 || static_cast<std::uint64_t>(entry->res) < io_uring_cqe_get_data64(entry)) give_up("read");
        io_uring_cqe_seen(&ring, entry);
        ++done;
      }
    }
    io_uring_queue_exit(&ring);
  });
  close_all(fds);
}

void read_buffered(const std::vector<RawFile>& files, std::span<std::byte> to, unsigned threads) {
  const std::vector<int> fds = open_all(files, O_RDONLY);
  in_threads(threads, [&](unsigned thread) {
    for (const Chunk& chunk : chunks_of(files, 4 * kChunk, thread, threads, false))
      pread_all(fds[chunk.file], to.data() + chunk.to, chunk.size, chunk.offset);
  });
  close_all(fds);
}

void read_mapped(const std::vector<RawFile>& files, std::span<std::byte> to, unsigned threads) {
  const std::vector<int> fds = open_all(files, O_RDONLY);
  std::vector<const std::byte*> maps;
  for (std::size_t f = 0; f < files.size(); ++f) {
    void* map = ::mmap(nullptr, files[f].size_bytes, PROT_READ, MAP_SHARED, fds[f], 0);
    if (map == MAP_FAILED) give_up("mmap");
    (void)::madvise(map, files[f].size_bytes, MADV_SEQUENTIAL);
    maps.push_back(static_cast<const std::byte*>(map));
  }
  in_threads(threads, [&](unsigned thread) {
    for (const Chunk& chunk : chunks_of(files, 4 * kChunk, thread, threads, false))
      std::memcpy(to.data() + chunk.to, maps[chunk.file] + chunk.offset, chunk.size);
  });
  for (std::size_t f = 0; f < files.size(); ++f) ::munmap(const_cast<std::byte*>(maps[f]), files[f].size_bytes);
  close_all(fds);
}

void copy_direct(const std::vector<RawFile>& files, const std::string& path, unsigned threads) {
  const std::vector<int> fds = open_all(files, O_RDONLY | O_DIRECT);
  const int out = new_target(path, total(files, true), O_DIRECT);
  in_threads(threads, [&](unsigned thread) {
    io_uring ring{};
    if (io_uring_queue_init(2 * kDepth, &ring, 0) != 0) give_up("io_uring");
    void* memory = std::aligned_alloc(kHugePage, kDepth * kChunk);
    (void)::madvise(memory, kDepth * kChunk, MADV_HUGEPAGE);  // as ours: a request has fewer pieces
    const std::vector<Chunk> chunks = chunks_of(files, kChunk, thread, threads, false);
    std::vector<unsigned> free;
    std::vector<std::size_t> chunk_in(kDepth);
    std::vector<bool> is_writing(kDepth);
    for (unsigned i = 0; i < kDepth; ++i) free.push_back(i);
    const auto ask = [&](unsigned slot) {
      io_uring_sqe* entry = io_uring_get_sqe(&ring);
      const Chunk& chunk = chunks[chunk_in[slot]];
      std::byte* buffer = static_cast<std::byte*>(memory) + slot * kChunk;
      const auto size = static_cast<unsigned>(paged(chunk.size));
      if (is_writing[slot]) {
        io_uring_prep_write(entry, out, buffer, size, chunk.to);
      } else {
        io_uring_prep_read(entry, fds[chunk.file], buffer, size, chunk.offset);
      }
      io_uring_sqe_set_data64(entry, slot);
    };
    std::size_t next = 0, done = 0;
    while (done < chunks.size()) {
      while (next < chunks.size() && !free.empty()) {
        const unsigned slot = free.back();
        free.pop_back();
        chunk_in[slot] = next++;
        is_writing[slot] = false;
        ask(slot);
      }
      if (io_uring_submit_and_wait(&ring, 1) < 0) give_up("io_uring");
      io_uring_cqe* entry = nullptr;
      while (io_uring_peek_cqe(&ring, &entry) == 0) {
        const auto slot = static_cast<unsigned>(io_uring_cqe_get_data64(entry));
        if (entry->res < 0 || static_cast<std::uint64_t>(entry->res) < chunks[chunk_in[slot]].size) give_up("copy");
        io_uring_cqe_seen(&ring, entry);
        if (is_writing[slot]) {
          ++done;
          free.push_back(slot);
        } else {
          is_writing[slot] = true;
          ask(slot);
        }
      }
    }
    std::free(memory);
    io_uring_queue_exit(&ring);
  });
  if (::fdatasync(out) != 0) give_up("sync");
  ::close(out);
  close_all(fds);
}

void copy_buffered(const std::vector<RawFile>& files, const std::string& path, unsigned threads) {
  const std::vector<int> fds = open_all(files, O_RDONLY);
  const int out = new_target(path, total(files, false), 0);
  in_threads(threads, [&](unsigned thread) {
    std::vector<std::byte> buffer(4 * kChunk);
    for (const Chunk& chunk : chunks_of(files, buffer.size(), thread, threads, true)) {
      pread_all(fds[chunk.file], buffer.data(), chunk.size, chunk.offset);
      pwrite_all(out, buffer.data(), chunk.size, chunk.to);
    }
  });
  if (::fdatasync(out) != 0) give_up("sync");
  ::close(out);
  close_all(fds);
}

void copy_in_kernel(const std::vector<RawFile>& files, const std::string& path) {
  const std::vector<int> fds = open_all(files, O_RDONLY);
  const int out = new_target(path, total(files, false), 0);
  off_t to = 0;
  for (std::size_t f = 0; f < files.size(); ++f) {
    off_t from = 0;
    while (static_cast<std::uint64_t>(from) < files[f].size_bytes) {
      const ssize_t done =
          ::copy_file_range(fds[f], &from, out, &to, files[f].size_bytes - static_cast<std::uint64_t>(from), 0);
      if (done <= 0) give_up("copy_file_range");
    }
  }
  if (::fdatasync(out) != 0) give_up("sync");
  ::close(out);
  close_all(fds);
}

void write_direct(std::span<const std::byte> from, const std::string& path, unsigned threads) {
  const std::vector<RawFile> whole{{path, from.size()}};
  const int out = new_target(path, paged(from.size()), O_DIRECT);
  in_threads(threads, [&](unsigned thread) {
    io_uring ring{};
    if (io_uring_queue_init(kDepth, &ring, 0) != 0) give_up("io_uring");
    const std::vector<Chunk> chunks = chunks_of(whole, kChunk, thread, threads, false);
    std::size_t next = 0, done = 0;
    while (done < chunks.size()) {
      while (next < chunks.size() && next - done < kDepth) {
        const Chunk& chunk = chunks[next++];
        io_uring_prep_write(io_uring_get_sqe(&ring), out, from.data() + chunk.offset,
                            static_cast<unsigned>(paged(chunk.size)), chunk.offset);
      }
      if (io_uring_submit_and_wait(&ring, 1) < 0) give_up("io_uring");
      io_uring_cqe* entry = nullptr;
      while (io_uring_peek_cqe(&ring, &entry) == 0) {
        if (entry->res <= 0 || static_cast<std::uint64_t>(entry->res) % kPage != 0) give_up("write");
        io_uring_cqe_seen(&ring, entry);
        ++done;
      }
    }
    io_uring_queue_exit(&ring);
  });
  if (::fdatasync(out) != 0) give_up("sync");
  ::close(out);
}

namespace {

void split(std::span<const std::byte> from, std::span<std::byte> to, unsigned threads,
           void (*copy)(std::byte*, const std::byte*, std::size_t)) {
  const std::size_t part = from.size() / threads / kPage * kPage;
  in_threads(threads, [&](unsigned i) {
    const std::size_t size = i + 1 == threads ? from.size() - i * part : part;
    copy(to.data() + i * part, from.data() + i * part, size);
  });
}

#if defined(__x86_64__)
// A tuned copy: eight pages in turns, past the cache. Both ends begin on pages.
__attribute__((target("avx2"))) void copy_interleaved(std::byte* to, const std::byte* from, std::size_t size) {
  constexpr std::size_t kPages = 8;
  std::size_t at = 0;
  for (; at + kPages * kPage <= size; at += kPages * kPage) {
    for (std::size_t line = 0; line < kPage; line += 64) {
      for (std::size_t page = 0; page < kPages; ++page) {
        const auto* source = reinterpret_cast<const __m256i*>(from + at + page * kPage + line);
        auto* target = reinterpret_cast<__m256i*>(to + at + page * kPage + line);
        const __m256i a = _mm256_load_si256(source), b = _mm256_load_si256(source + 1);
        _mm256_stream_si256(target, a);
        _mm256_stream_si256(target + 1, b);
      }
    }
  }
  _mm_sfence();
  std::memcpy(to + at, from + at, size - at);
}
#endif

void copy_whole(std::byte* to, const std::byte* from, std::size_t size) {
  std::memcpy(to, from, size);
}

}  // namespace

void copy_tuned(std::span<const std::byte> from, std::span<std::byte> to, unsigned threads) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return split(from, to, threads, copy_interleaved);
#endif
  split(from, to, threads, copy_whole);
}

void copy_plain(std::span<const std::byte> from, std::span<std::byte> to, unsigned threads) {
  split(from, to, threads, copy_whole);
}

void evict(const std::string& path) {
  const int fd = opened(path, O_RDONLY);
  struct stat found {};
  ::fstat(fd, &found);
  const auto size = static_cast<std::size_t>(found.st_size);
  std::vector<unsigned char> pages((size + kPage - 1) / kPage);
  for (int attempt = 0; attempt < 20; ++attempt) {
    ::fdatasync(fd);
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    void* map = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED || ::mincore(map, size, pages.data()) != 0) give_up("mincore " + path);
    ::munmap(map, size);
    if (std::ranges::none_of(pages, [](unsigned char page) { return (page & 1) != 0; })) {
      ::close(fd);
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  give_up("pages stay cached of " + path);
}

}  // namespace pawl::bench
