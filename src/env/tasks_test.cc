#include "env/tasks.h"

#include "env/tasks_conformance.h"

namespace pawl {
namespace {

INSTANTIATE_TEST_SUITE_P(Real, TasksConformance, ::testing::Values(TestedTasks{&real_tasks(), &real_clock()}));

}  // namespace
}  // namespace pawl
