// Scenarios: faults that seeds seldom draw together, each with a name. A seed still decides the order of all that happens.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "faults.h"

namespace pawl::sim {

struct Scenario {
  std::string_view name;
  std::string_view what;  // for people
  ClusterOptions options;
  std::vector<InjectedFault> faults;
};
[[nodiscard]] std::span<const Scenario> scenarios();
[[nodiscard]] const Scenario* scenario_named(std::string_view name);  // nullptr: there is none

}  // namespace pawl::sim
