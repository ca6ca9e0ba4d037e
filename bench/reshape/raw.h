// The floors of bench/reshape: what the machine can do with the same bytes and nothing to think about.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace pawl::bench {

struct RawFile {
  std::string path;
  std::uint64_t size_bytes = 0;
};

[[noreturn]] void give_up(const std::string& what);

// Files to the memory, one after another; each takes its size rounded up to a page. With that many threads.
void read_direct(const std::vector<RawFile>& files, std::span<std::byte> to, unsigned threads);
void read_buffered(const std::vector<RawFile>& files, std::span<std::byte> to, unsigned threads);
void read_mapped(const std::vector<RawFile>& files, std::span<std::byte> to, unsigned threads);

// All bytes of the files into one new file, on the disk when this returns.
void copy_direct(const std::vector<RawFile>& files, const std::string& to, unsigned threads);
void copy_buffered(const std::vector<RawFile>& files, const std::string& to, unsigned threads);
void copy_in_kernel(const std::vector<RawFile>& files, const std::string& to);

// Memory into one new file, past the page cache, on the disk when this returns. Both begin on pages.
void write_direct(std::span<const std::byte> from, const std::string& to, unsigned threads);

// memory to memory: pages interleaved past the cache, or one memcpy for each thread.
void copy_tuned(std::span<const std::byte> from, std::span<std::byte> to, unsigned threads);
void copy_plain(std::span<const std::byte> from, std::span<std::byte> to, unsigned threads);

// Out of the page cache, checked with mincore.
void evict(const std::string& path);

}  // namespace pawl::bench
