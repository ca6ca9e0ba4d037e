#include "job/daemon/events.h"

#include <nlohmann/json.hpp>

namespace pawl::job {

using namespace std::chrono_literals;
using Json = nlohmann::json;

void Events::tell(const std::string& kind, const std::string& fields_json) {
  Json event = Json::parse(fields_json, nullptr, false);
  if (!event.is_object()) event = Json::object();
  const Duration wall = context_.clock->wall();
  event["kind"] = kind;
  event["at_ms"] = static_cast<std::uint64_t>(wall / 1ms);
  event["at_monotonic_ns"] = context_.clock->now().count();
  event["node"] = context_.self.node.value;
  if (!event.contains("generation")) event["generation"] = context_.mirror.generation().value;
  const std::string key = context_.mirror.keys().event(static_cast<std::uint64_t>(wall.count()), context_.self.node);
  context_.after(kEventDelay, [this, key, value = event.dump()] {
    context_.control->tell([key, value](Control& control) { (void)control.put(key, value); });
  });
}

}  // namespace pawl::job
