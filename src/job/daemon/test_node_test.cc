// The tests' own clock does what every clock must.
#include "job/daemon/test_node.h"

#include "env/clock_conformance.h"

namespace pawl::job {
namespace {

std::shared_ptr<Clock> make_manual() {
  return std::make_shared<ManualClock>();
}
INSTANTIATE_TEST_SUITE_P(Manual, ClockConformance, ::testing::Values(&make_manual));

}  // namespace
}  // namespace pawl::job
