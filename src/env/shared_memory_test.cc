#include "env/shared_memory.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

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
