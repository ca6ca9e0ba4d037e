#include "checkpoint/formats/deepspeed/pipeline.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/text.h"

namespace pawl::checkpoint::deepspeed {
namespace {

constexpr std::string_view kTied = "tied_modules.";

struct TiedModule {
  std::string prefix;
  std::map<std::string, Shape> tensors;  // by key
  bool is_taken = false;
};

// In the order in which they first appear.
std::vector<TiedModule> tied_modules(const NamedShapes& parameters) {
  std::vector<TiedModule> out;
  for (const auto& [name, shape] : parameters) {
    if (!name.starts_with(kTied)) continue;
    const std::size_t dot = name.find('.', kTied.size());
    if (dot == std::string::npos) continue;
    const std::string prefix = name.substr(0, dot + 1);
    auto found = std::ranges::find(out, prefix, &TiedModule::prefix);
    if (found == out.end()) found = out.insert(out.end(), {prefix, {}, false});
    found->tensors.emplace(name.substr(dot + 1), shape);
  }
  return out;
}

// All that is trained of the module lies in the layer's file. Files have more: buffers, frozen parameters.
bool fits(const TiedModule& module, const PipelineLayer& layer) {
  std::map<std::string_view, const Shape*> held;
  for (const auto& [key, shape] : layer.tensors) held[key] = &shape;
  return std::ranges::all_of(module.tensors, [&](const auto& tensor) {
    const auto found = held.find(tensor.first);
    return found != held.end() && *found->second == tensor.second;
  });
}

}  // namespace

bool layer_number(const std::string& name, std::uint32_t& number) {
  const std::size_t dot = name.find('.');
  return dot != std::string::npos && dot <= 7 && parse_number(std::string_view(name).substr(0, dot), number);
}

std::vector<LayerPrefix> layer_prefixes(const std::vector<PipelineLayer>& layers, const NamedShapes& parameters) {
  std::set<std::uint32_t> numbered;
  for (const auto& [name, shape] : parameters)
    if (std::uint32_t number = 0; layer_number(name, number)) numbered.insert(number);
  std::vector<TiedModule> tied = tied_modules(parameters);
  std::vector<LayerPrefix> out;
  for (const PipelineLayer& layer : layers) {
    LayerPrefix& prefix = out.emplace_back(LayerPrefix{text(layer.number, '.')});
    if (numbered.contains(layer.number) || layer.tensors.empty()) continue;
    const auto free = std::ranges::find_if(tied, [&](const TiedModule& m) { return !m.is_taken && fits(m, layer); });
    const auto again = std::ranges::find_if(tied, [&](const TiedModule& m) { return fits(m, layer); });
    if (again == tied.end()) continue;  // nothing in it is trained
    prefix.is_second_use = free == tied.end();
    TiedModule& module = prefix.is_second_use ? *again : *free;
    module.is_taken = true;
    prefix.prefix = module.prefix;
  }
  return out;
}

}  // namespace pawl::checkpoint::deepspeed
