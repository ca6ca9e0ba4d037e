#include "job/daemon/orders.h"

#include <algorithm>
#include <vector>

#include "base/json_access.h"

namespace pawl::job {

void Orders::apply(const std::string& key, const std::string* value, Revision revision) {
  if (!key.starts_with(keys_.orders()) && !key.starts_with(keys_.pause())) return;  // most keys
  const json order = json::parse(value != nullptr ? *value : "{}", nullptr, false);
  NodeId node;
  if (id_after(keys_.cordons(), key, node)) {
    std::erase(cordoned_, node);
    if (value != nullptr) cordoned_.insert(std::ranges::upper_bound(cordoned_, node), node);
  } else if (id_after(keys_.drains(), key, node)) {
    std::erase_if(drains_.leaving, [node](NodeLife life) { return life.node == node; });
    if (value == nullptr) return;
    drains_.leaving.push_back({node, Incarnation(number_in(order, "incarnation"))});
    std::ranges::sort(drains_.leaving);
  } else if (key == keys_.pause()) {
    drains_.pause.reset();
    if (value == nullptr) return;
    const NodeLife life{NodeId(static_cast<std::uint32_t>(number_in(order, "node"))),
                        Incarnation(number_in(order, "incarnation"))};
    drains_.pause = Pause{Generation(number_in(order, "generation")), life, Step(number_in(order, "step")), revision};
  } else if (key.starts_with(keys_.pause_acks()) && value != nullptr) {
    if (id_after(key.substr(0, key.rfind('/') + 1), key, node))
      drains_.paused[node] = static_cast<Revision>(number_in(order, "pause"));
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
