// Metrics: one registry for everything that a process counts and shows.
//
// Whoever counts asks once for a Counter or a Gauge and keeps the reference: it stays valid as long as the registry.
// Counting takes no lock. Names end in their unit (`_bytes`, `_seconds`), those of counters in `_total` after it.
// snapshot() is what a status, an exporter or a test reads. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace pawl {

class Counter {  // only grows
 public:
  void add(std::uint64_t count = 1) { value_.fetch_add(count, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

class Gauge {  // as it is just now
 public:
  void set(std::int64_t value) { value_.store(value, std::memory_order_relaxed); }
  void add(std::int64_t change) { value_.fetch_add(change, std::memory_order_relaxed); }
  [[nodiscard]] std::int64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> value_{0};
};

using MetricLabels = std::map<std::string, std::string>;

enum class MetricKind : std::uint8_t { counter, gauge };

struct Metric {
  std::string name;
  std::string help;  // one sentence for people
  MetricLabels labels;
  MetricKind kind = MetricKind::counter;
  std::int64_t value = 0;
};

class Metrics {
 public:
  // The one with this name and these labels; made when it is first asked for, with `help`.
  [[nodiscard]] Counter& counter(const std::string& name, const std::string& help, const MetricLabels& labels = {});
  [[nodiscard]] Gauge& gauge(const std::string& name, const std::string& help, const MetricLabels& labels = {});
  // All of them, ordered by name, then by labels.
  [[nodiscard]] std::vector<Metric> snapshot() const;

 private:
  template <class Value>
  struct Entry {
    std::string help;
    Value value;
  };
  template <class Value>
  using Entries = std::map<std::pair<std::string, MetricLabels>, std::unique_ptr<Entry<Value>>>;
  template <class Value>
  [[nodiscard]] Value& find_or_make(Entries<Value>& entries, const std::string& name, const std::string& help,
                                    const MetricLabels& labels);

  mutable std::mutex mutex_;  // of the maps, not of what is counted
  Entries<Counter> counters_;
  Entries<Gauge> gauges_;
};

}  // namespace pawl
