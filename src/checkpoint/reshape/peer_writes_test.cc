// The executor with memory of peers among its targets, against the same execution into memory of this process. The peer
// is this process itself, which the system tells no apart; other processes are in env/peer_memory_test.cc and in
// test/torch/test_load_same_machine.py.
//
// PAWL_CASES: how many random cases (default 60). PAWL_SEED: the first seed; a failure prints its own.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>

#include "base/text.h"
#include "checkpoint/reshape/execute.h"
#include "checkpoint/reshape/slabs.h"
#include "env/peer_memory.h"
#include "env/temporary_directory.h"

namespace pawl::checkpoint {
namespace {

using Bytes = std::vector<std::byte>;
using Random = std::mt19937_64;

std::uint64_t below(Random& random, std::uint64_t limit) {
  return std::uniform_int_distribution<std::uint64_t>(0, limit - 1)(random);
}

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* const value = std::getenv(name);
  return value != nullptr ? std::strtoull(value, nullptr, 10) : otherwise;
}

constexpr std::uint64_t kRows = 96, kColumns = 700;

// One tensor [rows, columns] in a file, in memory, or as several versions in both; its parts to three buffers.
struct Case {
  ElementType from = ElementType::float32, to = ElementType::float32;
  bool swapped = false;
  std::uint32_t versions = 1;
  bool in_memory = false;
  std::vector<PlannedCopy> copies;
  std::uint64_t buffer_bytes = 0;
};

Case make_case(Random& random) {
  constexpr std::array kTypes{ElementType::float32, ElementType::bfloat16, ElementType::float16};
  Case out;
  out.from = kTypes[below(random, 3)];
  out.to = kTypes[below(random, 3)];
  out.versions = below(random, 4) == 0 ? 2 : 1;
  out.swapped = below(random, 5) == 0;
  out.in_memory = below(random, 4) == 0;
  const std::uint64_t pitch = kColumns + below(random, 3) * 5;
  out.buffer_bytes = kRows * pitch * size_bits(out.to) / 8;
  std::vector<std::uint64_t> edges{0, 1 + below(random, kColumns - 2), kColumns};
  edges.insert(edges.begin() + 1, below(random, edges[1]));
  for (std::uint32_t buffer = 0; buffer + 1 < edges.size(); ++buffer) {
    const std::uint64_t begin = edges[buffer], size = edges[buffer + 1] - begin;
    if (size == 0) continue;
    PlannedCopy copy;
    copy.from = out.from;
    copy.to = out.to;
    copy.box.dimensions = 2;
    copy.box.begin = {0, begin};
    copy.box.size = {kRows, size};
    const bool is_turned = below(random, 6) == 0;  // column-major there
    copy.target.buffer = buffer;
    copy.target.stride = is_turned ? PerDimension{1, kRows} : PerDimension{pitch, 1};
    for (std::uint32_t version = 0; version < out.versions; ++version) {
      PlannedEnd end;
      end.buffer = version;
      end.offset = begin;
      end.stride = {kColumns, 1};
      copy.sources.push_back(end);
    }
    out.copies.push_back(copy);
  }
  return out;
}

TEST(PeerWritesTest, execute_gives_peers_what_it_would_give_this_process) {
  PeerMemory peers;
  const std::vector<std::string> tickets{peers.ticket()};
  if (!peers.join(tickets, 0)) GTEST_SKIP() << "privilege: process_vm_writev is refused here";
  const TemporaryDirectory folder;
  const std::uint64_t first = from_environment("PAWL_SEED", 1), cases = from_environment("PAWL_CASES", 60);
  for (std::uint64_t seed = first; seed < first + cases; ++seed) {
    Random random(seed);
    const Case it = make_case(random);
    const std::uint64_t bytes = kRows * kColumns * size_bits(it.from) / 8;
    std::vector<Bytes> versions(it.versions, Bytes(bytes));
    for (Bytes& version : versions)
      for (std::byte& one : version) one = static_cast<std::byte>(random() % 0x3d);  // small finite numbers, any type
    std::vector<StoredFile> files(it.in_memory ? 0 : it.versions);
    for (std::uint32_t i = 0; i < files.size(); ++i) {
      files[i].path = join_path(folder.path(), text("file", i));
      std::ofstream(files[i].path, std::ios::binary)
          .write(reinterpret_cast<const char*>(versions[i].data()), static_cast<std::streamsize>(bytes));
    }
    const CopySource source{&files, [&](std::uint32_t, std::uint32_t buffer) -> BufferPlace {
                              BufferPlace place{.file = buffer, .size_bytes = bytes, .swapped = it.swapped};
                              if (it.in_memory) place.memory = versions[buffer].data();
                              return place;
                            }};
    const auto run = [&](bool with_peers) {
      std::vector<Bytes> buffers(3, Bytes(it.buffer_bytes));
      CopyTarget target;
      target.peers = with_peers ? &peers : nullptr;
      target.place = [&](std::uint32_t, std::uint32_t buffer) -> BufferPlace {
        BufferPlace place{.memory = buffers[buffer].data(), .size_bytes = it.buffer_bytes};
        if (with_peers && buffer != 1) place.peer = 0;
        return place;
      };
      ExecuteOptions options;
      options.threads = 2;
      options.memory_bytes = 1 << (18 + below(random, 6));
      const Result<ExecuteReport> done = execute(stream_of(it.copies), source, target, options);
      EXPECT_TRUE(done.has_value()) << (done ? "" : done.error().what);
      return std::pair(std::move(buffers), done ? done->overflowed : decltype(done->overflowed){});
    };
    const auto expected = run(false);
    EXPECT_TRUE(run(true) == expected) << "PAWL_SEED=" << seed;
    EXPECT_NE(expected.first[1], Bytes(it.buffer_bytes)) << "something is written";
  }
}

// What lies between the runs of one half are the other half's: nothing is read for both, however many gaps are allowed.
TEST(PeerWritesTest, halves_of_rows_are_read_once) {
  constexpr std::uint64_t kLong = 11008, kMany = 600;  // rows of 44 kB
  const std::vector<StoredFile> files(1);
  const CopySource source{
      &files, [](std::uint32_t, std::uint32_t) -> BufferPlace { return {.size_bytes = kMany * kLong * 4}; }};
  Bytes memory(kMany * kLong * 4);
  CopyTarget target;
  target.place = [&](std::uint32_t, std::uint32_t) -> BufferPlace {
    return {.memory = memory.data(), .size_bytes = memory.size()};
  };
  const auto batch = std::make_shared<Batch>();
  Slab slab;
  for (std::uint32_t half = 0; half < 2; ++half) {
    PlannedCopy copy;
    copy.box.dimensions = 2;
    copy.box.begin = {0, half * kLong / 2};
    copy.box.size = {kMany, kLong / 2};
    copy.sources = {{0, 0, half * kLong / 2, {kLong, 1}}};
    copy.target = {0, half, half * kLong / 2, {kLong, 1}};
    copy.from = copy.to = ElementType::float32;
    ASSERT_TRUE(append_placed_copy(copy, source, target, *batch));
    slab.parts.push_back({half, copy.box});
  }
  slab.batch = batch;
  ReadAllowance allowance(1);
  allowance.need(1 << 30);
  std::vector<ReadPiece> pieces;
  for (std::uint32_t half = 0; half < 2; ++half) append_read_pieces(slab, half, 0, 256 << 10, allowance, pieces);
  const std::vector<ReadRange> ranges = join_read_pieces(pieces, 512 << 10, allowance);
  std::uint64_t end = 0;
  for (const ReadRange& range : ranges) {
    EXPECT_EQ(range.begin, end);
    end = range.end;
  }
  EXPECT_EQ(end, memory.size());
  EXPECT_LE(ranges.size(), memory.size() / (256 << 10)) << "and in long requests";
}

TEST(PeerWritesTest, execute_says_that_a_peer_has_left) {
  PeerMemory peers;
  const std::vector<std::string> tickets{peers.ticket()};
  if (!peers.join(tickets, 0)) GTEST_SKIP() << "privilege: process_vm_writev is refused here";
  Random random(1);
  Case it = make_case(random);
  while (!it.in_memory) it = make_case(random);
  std::vector<Bytes> versions(2, Bytes(kRows * kColumns * 4));
  Bytes buffer(it.buffer_bytes);
  const std::vector<StoredFile> files;
  const CopySource source{&files, [&](std::uint32_t, std::uint32_t number) -> BufferPlace {
                            return {.memory = versions[number].data(), .size_bytes = versions[number].size()};
                          }};
  CopyTarget target;
  target.peers = &peers;
  target.place = [&](std::uint32_t, std::uint32_t) -> BufferPlace {
    return {.memory = buffer.data(), .size_bytes = buffer.size(), .peer = 0};
  };
  ASSERT_TRUE(peers.close(std::chrono::seconds(1)));
  const Result<ExecuteReport> left = execute(stream_of(it.copies), source, target);
  ASSERT_FALSE(left.has_value());
  EXPECT_EQ(left.error().code, Code::unreachable) << left.error().what;
  target.peers = nullptr;
  const Result<ExecuteReport> without = execute(stream_of(it.copies), source, target);
  ASSERT_FALSE(without.has_value());
  EXPECT_EQ(without.error().code, Code::invalid);
  EXPECT_EQ(buffer, Bytes(it.buffer_bytes));
}

}  // namespace
}  // namespace pawl::checkpoint
