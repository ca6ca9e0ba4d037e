#include "env/shared_memory.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "env/files.h"
#include "env/shared_memory_conformance.h"

namespace pawl {
namespace {

INSTANTIATE_TEST_SUITE_P(Real, SharedMemoryConformance, ::testing::Values(&real_shared_memory()));

TEST(Segment, OutlivesItsMappingsAndItsMaker) {
  Result<Fd> segment = create_segment("pawl_test", 4096);
  const pid_t child = fork();
  if (child == 0) {  // writes, and dies without a word
    Result<Mapping> mapping = map_segment(segment->get(), 4096);
    mapping->data()[0] = std::byte{7};
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  Result<Mapping> mapping = map_segment(segment->get(), 4096);
  EXPECT_EQ(mapping->data()[0], std::byte{7});
}

TEST(Segment, CanNeitherShrinkNorGrow) {
  Result<Fd> segment = create_segment("pawl_test", 8192);
  EXPECT_NE(ftruncate(segment->get(), 4096), 0);
  EXPECT_NE(ftruncate(segment->get(), 16384), 0);
  EXPECT_NE(fcntl(segment->get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(Segment, TooLittleMemoryIsAnErrorNowThatSaysHowMuch) {
  const std::uint64_t available = available_memory_bytes();
  ASSERT_GT(available, 0U);
  const Result<Fd> segment = create_segment("pawl_test", available + (std::uint64_t{64} << 30));
  ASSERT_FALSE(segment);
  EXPECT_EQ(segment.error().code, Code::full);
  EXPECT_NE(segment.error().what.find("needs"), std::string::npos);
  EXPECT_NE(segment.error().what.find("are available"), std::string::npos);
}

[[maybe_unused]] long faults_of_this_thread() {
  struct rusage used {};
  getrusage(RUSAGE_THREAD, &used);
  return used.ru_minflt;
}

// Allocated is not enough: the first who maps a page that is not zeroed waits for it, a GiB of them for seconds.
TEST(Segment, IsZeroedWhenItIsMade) {
  const std::size_t size = (std::size_t{40} << 20) + 4096;  // some pieces and a bit
  Result<Fd> segment = create_segment("pawl_test", size);
  ASSERT_TRUE(segment);
  Result<Mapping> mapping = map_segment(segment->get(), size);
  std::vector<unsigned char> ready(size / 4096);
  ASSERT_EQ(mincore(mapping->data(), size, ready.data()), 0);
  EXPECT_TRUE(std::ranges::all_of(ready, [](unsigned char page) { return (page & 1) != 0; }));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // whose notes about memory cause faults as well
TEST(Segment, PopulatedHasNoFaultsLeft) {
  const std::size_t size = (std::size_t{40} << 20) + 4096;
  Result<Fd> segment = create_segment("pawl_test", size);
  Result<Mapping> mapping = map_segment(segment->get(), size, {.populate = true});
  ASSERT_TRUE(mapping);
  const long before = faults_of_this_thread();
  for (std::size_t at = 0; at < size; at += 4096) mapping->data()[at] = std::byte{1};
  EXPECT_LT(faults_of_this_thread() - before, 100);  // of 10241 pages
}
#endif

TEST(SharedMemory, ASegmentIsOfOneKindOfPages) {
  constexpr std::uint64_t mib = 1 << 20;
  const AvailableMemory both{100 * mib, 100 * mib, 2 * mib};
  EXPECT_EQ(bytes_for_segments(both, 60 * mib), 160 * mib) << "one of reserved pages, one of small ones";
  EXPECT_EQ(bytes_for_segments(both, 120 * mib), 100 * mib) << "none fits into the reserved ones";
  EXPECT_EQ(bytes_for_segments(both, 50 * mib), 200 * mib);
  EXPECT_EQ(bytes_for_segments(both, mib), 100 * mib) << "too much would be lost by rounding up";
  EXPECT_EQ(bytes_for_segments({100 * mib}, mib), 100 * mib);
  EXPECT_EQ(bytes_for_segments({~std::uint64_t{0}, 100 * mib, 2 * mib}, 50 * mib), ~std::uint64_t{0});
}

TEST(SharedMemory, WhatIsMadeSlowlyLeavesMemoryToOthers) {
  const std::atomic<bool> unwanted = false;
  SegmentOptions options{.slowly_until = &unwanted, .left_bytes_min = std::uint64_t{1} << 50};
  const Result<Fd> greedy = create_segment("test", 64 << 20, options, HugePages{});
  ASSERT_FALSE(greedy);
  EXPECT_EQ(greedy.error().code, Code::full);
  EXPECT_NE(greedy.error().what.find("left to the other programs"), std::string::npos) << greedy.error().what;
  options.left_bytes_min = 1;
  EXPECT_TRUE(create_segment("test", 1 << 20, options, HugePages{}));
}

// The machine's reserved huge pages, more of them for as long as this lives. They are everybody's: only who may set their
// number has some to test with.
class ReservedHugePages {
 public:
  explicit ReservedHugePages(std::uint64_t bytes) : lock_(open(kPath, O_RDONLY | O_CLOEXEC)) {
    (void)flock(lock_.get(), LOCK_EX);  // two of these would each put the other's number back
    before_ = read_file(kPath).value_or("");
    const HugePages now = find_huge_pages();
    if (now.page_bytes == 0 || before_.empty()) return;
    (void)write(std::to_string(now.reserved_bytes / now.page_bytes + bytes / now.page_bytes));
    enough_ = find_huge_pages().free_bytes >= bytes;
  }
  ~ReservedHugePages() {
    if (!before_.empty()) (void)write(before_);
  }
  [[nodiscard]] bool enough() const { return enough_; }

 private:
  static constexpr const char* kPath = "/proc/sys/vm/nr_hugepages";
  static bool write(const std::string& number) {
    const Fd fd(open(kPath, O_WRONLY | O_CLOEXEC));
    return fd.valid() && ::write(fd.get(), number.data(), number.size()) == static_cast<ssize_t>(number.size());
  }
  const Fd lock_;
  std::string before_;
  bool enough_ = false;
};

constexpr std::uint64_t kOddBytes = (std::uint64_t{32} << 20) + 4096;  // no whole number of huge pages

TEST(HugeSegment, IsOfReservedPagesWhereTheSystemHasThem) {
  const ReservedHugePages reserved(std::uint64_t{40} << 20);
  if (!reserved.enough()) GTEST_SKIP() << "privilege: cannot reserve huge pages (vm.nr_hugepages)";
  const std::uint64_t free_before = find_huge_pages().free_bytes;
  {
    Result<Fd> segment = create_segment("pawl_test", kOddBytes);
    ASSERT_TRUE(segment) << segment.error().what;
    EXPECT_EQ(pages_of(segment->get()), Pages::huge);
    const std::uint64_t size = *segment_size_bytes(segment->get());
    EXPECT_EQ(size % find_huge_pages().page_bytes, 0U);
    EXPECT_EQ(find_huge_pages().free_bytes, free_before - size) << "not all its pages are there yet";
    EXPECT_NE(ftruncate(segment->get(), static_cast<off_t>(2 * size)), 0);
    // By its whole size, as whoever is handed it does, and by what was asked for.
    Result<Mapping> whole = map_segment(segment->get(), size, {.populate = true});
    Result<Mapping> part = map_segment(segment->get(), kOddBytes);
    ASSERT_TRUE(whole && part);
    part->data()[kOddBytes - 1] = std::byte{7};
    EXPECT_EQ(whole->data()[kOddBytes - 1], std::byte{7});
    EXPECT_EQ(part->size_bytes(), kOddBytes);
  }
  EXPECT_EQ(find_huge_pages().free_bytes, free_before) << "a mapping was left behind";
}

// As when another process takes them after we have looked.
TEST(HugeSegment, IsOfOtherPagesIfTheyCantBeHadAfterAll) {
  HugePages told = find_huge_pages();
  if (told.page_bytes == 0) GTEST_SKIP() << "this kernel has no huge pages to reserve";
  told.free_bytes = told.reserved_bytes + (std::uint64_t{1} << 40);
  const std::uint64_t size = (find_huge_pages().free_bytes / told.page_bytes + 16) * told.page_bytes;
  Result<Fd> segment = create_segment("pawl_test", size, {}, told);
  ASSERT_TRUE(segment) << segment.error().what;
  EXPECT_NE(pages_of(segment->get()), Pages::huge);
  EXPECT_EQ(*segment_size_bytes(segment->get()), size);
}

TEST(HugeSegment, IsNotForWhatWouldWasteThem) {
  HugePages told = find_huge_pages();
  if (told.page_bytes == 0) GTEST_SKIP() << "this kernel has no huge pages to reserve";
  told.free_bytes = std::uint64_t{1} << 40;
  Result<Fd> segment = create_segment("pawl_test", kOddBytes / 8, {}, told);
  ASSERT_TRUE(segment);
  EXPECT_NE(pages_of(segment->get()), Pages::huge);
  EXPECT_EQ(*segment_size_bytes(segment->get()), kOddBytes / 8);
}

// A peer that hands us a descriptor of which it can take pages away could end us with SIGBUS.
TEST(Segment, RefusesMemoryThatIsNotSealed) {
  const Fd loose(memfd_create("pawl_loose", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(loose.get(), 4096), 0);
  EXPECT_EQ(map_segment(loose.get(), 4096).error().code, Code::invalid);
  const Fd no_memory(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_EQ(map_segment(no_memory.get(), 4096).error().code, Code::invalid);
}

TEST(Mapping, MovesAndEnds) {
  Result<Fd> segment = create_segment("pawl_test", 4096);
  Mapping mapping = *map_segment(segment->get(), 4096);
  std::byte* const data = mapping.data();
  Mapping moved = std::move(mapping);
  EXPECT_EQ(moved.data(), data);
  EXPECT_EQ(mapping.data(), nullptr);  // NOLINT: what a moved-from Mapping is, is part of its contract
  moved.reset();
  EXPECT_EQ(moved.size_bytes(), 0U);
  unsigned char resident = 0;
  EXPECT_NE(mincore(data, 4096, &resident), 0);  // nothing is mapped there any more
}

}  // namespace
}  // namespace pawl
