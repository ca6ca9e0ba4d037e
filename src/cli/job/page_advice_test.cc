#include "cli/job/page_advice.h"

#include <gtest/gtest.h>

namespace pawl::job {
namespace {

constexpr std::uint64_t kPage = std::uint64_t{2} << 20;

TEST(AdviceOnPages, ReservedOnesAreTakenFirst) {
  const PageAdvice advice = advise_on_pages({kPage, 64 * kPage, 32 * kPage, false, "never"});
  EXPECT_TRUE(advice.huge);
  EXPECT_NE(advice.found.find("64 of 128 MiB reserved are free"), std::string::npos) << advice.found;
  EXPECT_EQ(advice.remedy, "");
}

TEST(AdviceOnPages, TransparentOnesAreNext) {
  const PageAdvice advice = advise_on_pages({kPage, 0, 0, true, "advise"});
  EXPECT_TRUE(advice.huge);
  EXPECT_NE(advice.found.find("transparent ones (shared memory: advise)"), std::string::npos) << advice.found;
}

TEST(AdviceOnPages, SmallOnesHaveARemedyToCopy) {
  const PageAdvice advice = advise_on_pages({kPage, 8 * kPage, 0, false, "never"});
  EXPECT_FALSE(advice.huge);
  EXPECT_NE(advice.found.find("0 of 16 MiB reserved are free, shared memory: never"), std::string::npos)
      << advice.found;
  for (const char* command : {"sysctl -w vm.nr_hugepages=N, N = 512 for each GiB",
                              "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled"})
    EXPECT_NE(advice.remedy.find(command), std::string::npos) << advice.remedy;
}

TEST(AdviceOnPages, AKernelWithoutEitherIsNotToldToReserveAny) {
  const PageAdvice advice = advise_on_pages({});
  EXPECT_FALSE(advice.huge);
  EXPECT_EQ(advice.remedy.find("nr_hugepages"), std::string::npos) << advice.remedy;
}

}  // namespace
}  // namespace pawl::job
