// Events: what `pawl events` shows, as keys in the control. For people; nothing is decided from them.
#pragma once

#include <chrono>
#include <string>

#include "job/daemon/node_context.h"

namespace pawl::job {

// What is told is written so much later: it must not stand in the way of what is decided.
inline constexpr Duration kEventDelay = std::chrono::milliseconds(20);

class Events {
 public:
  explicit Events(NodeContext& context) : context_(context) {}
  // `fields_json`: an object. Kind, node, times and (if it is missing) generation are added.
  void tell(const std::string& kind, const std::string& fields_json = "{}");

 private:
  NodeContext& context_;
};

}  // namespace pawl::job
