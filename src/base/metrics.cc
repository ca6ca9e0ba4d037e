#include "base/metrics.h"

#include <algorithm>
#include <tuple>

namespace pawl {

template <class Value>
Value& Metrics::find_or_make(Entries<Value>& entries, const std::string& name, const std::string& help,
                             const MetricLabels& labels) {
  std::lock_guard lock(mutex_);
  auto& entry = entries[{name, labels}];
  if (!entry) {
    entry = std::make_unique<Entry<Value>>();
    entry->help = help;
  }
  return entry->value;
}

Counter& Metrics::counter(const std::string& name, const std::string& help, const MetricLabels& labels) {
  return find_or_make(counters_, name, help, labels);
}

Gauge& Metrics::gauge(const std::string& name, const std::string& help, const MetricLabels& labels) {
  return find_or_make(gauges_, name, help, labels);
}

std::vector<Metric> Metrics::snapshot() const {
  std::vector<Metric> metrics;
  const auto take = [&](const auto& entries, MetricKind kind) {
    for (const auto& [key, entry] : entries)
      metrics.push_back({key.first, entry->help, key.second, kind, static_cast<std::int64_t>(entry->value.value())});
  };
  {
    std::lock_guard lock(mutex_);
    take(counters_, MetricKind::counter);
    take(gauges_, MetricKind::gauge);
  }
  std::sort(metrics.begin(), metrics.end(),
            [](const Metric& a, const Metric& b) { return std::tie(a.name, a.labels) < std::tie(b.name, b.labels); });
  return metrics;
}

}  // namespace pawl
