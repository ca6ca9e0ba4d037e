#include "job/daemon/orders.h"

#include <algorithm>
#include <optional>

#include "base/text.h"

namespace pawl::job {

// The node of `<prefix><node>`.
static std::optional<NodeId> node_after(std::string_view prefix, std::string_view key) {
  std::uint32_t node = 0;
  if (!key.starts_with(prefix) || !parse_number(key.substr(prefix.size()), node)) return std::nullopt;
  return NodeId(node);
}

void Orders::apply(const std::string& key, const std::string* value, Revision) {
  if (const auto node = node_after(keys_.cordons(), key)) {
    std::erase(cordoned_, *node);
    if (value != nullptr) cordoned_.insert(std::ranges::upper_bound(cordoned_, *node), *node);
  }
}

void Orders::apply_all(const Listing& listing) {
  cordoned_.clear();
  for (const KeyValue& kv : listing.kvs) apply(kv.key, &kv.value, kv.mod_revision);
}

}  // namespace pawl::job
