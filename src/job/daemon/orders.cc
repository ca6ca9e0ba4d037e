#include "job/daemon/orders.h"

#include <algorithm>
#include <optional>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/text.h"

namespace pawl::job {

// The node of `<prefix><node>`.
static std::optional<NodeId> node_after(std::string_view prefix, std::string_view key) {
  std::uint32_t node = 0;
  if (!key.starts_with(prefix) || !parse_number(key.substr(prefix.size()), node)) return std::nullopt;
  return NodeId(node);
}

static std::uint64_t count_in(const nlohmann::json& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  return found != object.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
}

void Orders::apply(const std::string& key, const std::string* value, Revision revision) {
  if (!key.starts_with(keys_.orders()) && !key.starts_with(keys_.pause())) return;  // most keys
  const auto json = nlohmann::json::parse(value != nullptr ? *value : "{}", nullptr, false);
  if (const auto node = node_after(keys_.cordons(), key)) {
    std::erase(cordoned_, *node);
    if (value != nullptr) cordoned_.insert(std::ranges::upper_bound(cordoned_, *node), *node);
  } else if (const auto leaving = node_after(keys_.drains(), key)) {
    std::erase_if(drains_.leaving, [&](NodeLife life) { return life.node == *leaving; });
    if (value == nullptr) return;
    drains_.leaving.push_back({*leaving, Incarnation(count_in(json, "incarnation"))});
    std::ranges::sort(drains_.leaving);
  } else if (key == keys_.pause()) {
    drains_.pause.reset();
    if (value == nullptr) return;
    const NodeLife life{NodeId(static_cast<std::uint32_t>(count_in(json, "node"))),
                        Incarnation(count_in(json, "incarnation"))};
    drains_.pause = Pause{Generation(count_in(json, "generation")), life, Step(count_in(json, "step")), revision};
  } else if (key.starts_with(keys_.pause_acks()) && value != nullptr) {
    if (const auto node = node_after(key.substr(0, key.rfind('/') + 1), key))
      drains_.paused[*node] = static_cast<Revision>(count_in(json, "pause"));
  }
}

void Orders::apply_all(const Listing& listing) {
  cordoned_.clear();
  drains_ = {};
  std::vector<const KeyValue*> in_turn;  // as they were written: acknowledgements of two generations may be here
  for (const KeyValue& kv : listing.kvs) in_turn.push_back(&kv);
  std::ranges::sort(in_turn, {}, [](const KeyValue* kv) { return kv->mod_revision; });
  for (const KeyValue* kv : in_turn) apply(kv->key, &kv->value, kv->mod_revision);
}

}  // namespace pawl::job
