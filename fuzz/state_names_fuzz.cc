// Keys of a training state, one a line, their steps divided by "/"; and the same text as a person's parameter names.
#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>

#include "checkpoint/names/parameter_order.h"
#include "checkpoint/names/state_names.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size);

namespace {

using namespace pawl;

using namespace pawl::checkpoint;

std::vector<StateKey> keys_of(std::string_view text) {
  std::vector<StateKey> keys;
  std::set<std::vector<std::string>> seen;
  while (!text.empty() && keys.size() < 256) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    StateKey key;
    key.is_tensor = !line.starts_with('!');
    if (!key.is_tensor) line.remove_prefix(1);
    for (;;) {
      key.path.emplace_back(line.substr(0, line.find('/')));
      if (line.find('/') == std::string_view::npos) break;
      line.remove_prefix(line.find('/') + 1);
    }
    if (seen.insert(key.path).second) keys.push_back(std::move(key));
  }
  return keys;
}

void check_names(const std::vector<StateKey>& keys, const StateNameOptions& options) {
  const StateNames names = name_states(keys, options);
  if (names.names.size() != keys.size()) std::abort();
  std::set<std::pair<std::string, std::string>> seen;
  for (std::size_t i = 0; i < keys.size(); ++i)
    if (keys[i].is_tensor && !names.names[i].is_object &&
        !seen.emplace(names.names[i].name, names.names[i].role).second)
      std::abort();
}

}  // namespace

int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::vector<StateKey> keys = keys_of(text);
  // Two paths may be one stored name ("a.b" and "a", "b"); that tensors keep apart is promised of different names.
  std::set<std::string> stored;
  bool differ = true;
  for (const StateKey& key : keys) differ = stored.insert(stored_name(key.path)).second && differ;
  if (differ) {
    check_names(keys, {});
    check_names(keys, {.trust_model_words = true});
    std::vector<StateKey> told = keys;
    for (StateKey& key : told) key.model = "model";
    check_names(told, {});
  }
  const Result<ParameterNames> names = parse_parameter_names(text);
  if (!names) {
    if (names.error().what.empty() || names.error().code == Code::broken) std::abort();
    return 0;
  }
  std::vector<ParameterNames> lists = names->optimizers;
  lists.push_back(*names);
  for (const ParameterNames& list : lists) {
    std::set<std::string> seen;
    for (const auto& section : list.sections)
      for (const ParameterNames::Entry& entry : section)
        if (entry.name.empty() || !seen.insert(entry.name).second) std::abort();
  }
  std::vector<StateKey> told = keys;
  if (tell_models(*names, told) && differ) check_names(told, {});
  return 0;
}
