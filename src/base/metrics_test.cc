#include "base/metrics.h"

#include <gtest/gtest.h>

#include <thread>

namespace pawl {
namespace {

TEST(Metrics, AreTheSameForTheSameNameAndLabels) {
  Metrics metrics;
  Counter& sent = metrics.counter("wire_sent_bytes_total", "Bytes sent.");
  EXPECT_EQ(&sent, &metrics.counter("wire_sent_bytes_total", "Bytes sent."));
  EXPECT_NE(&sent, &metrics.counter("wire_sent_bytes_total", "Bytes sent.", {{"to", "1"}}));
  sent.add(3);
  sent.add();
  EXPECT_EQ(sent.value(), 4U);
}

TEST(Metrics, SnapshotListsAllInOrder) {
  Metrics metrics;
  metrics.gauge("memory_bytes", "Memory in use.").set(7);
  metrics.gauge("memory_bytes", "Memory in use.").add(-2);
  metrics.counter("exits_total", "Trainers that ended.", {{"seat", "1"}}).add();
  metrics.counter("exits_total", "Trainers that ended.", {{"seat", "0"}}).add(2);
  const std::vector<Metric> all = metrics.snapshot();
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0].name, "exits_total");
  EXPECT_EQ(all[0].labels, (MetricLabels{{"seat", "0"}}));
  EXPECT_EQ(all[0].value, 2);
  EXPECT_EQ(all[0].kind, MetricKind::counter);
  EXPECT_EQ(all[1].labels, (MetricLabels{{"seat", "1"}}));
  EXPECT_EQ(all[2].name, "memory_bytes");
  EXPECT_EQ(all[2].help, "Memory in use.");
  EXPECT_EQ(all[2].value, 5);
  EXPECT_EQ(all[2].kind, MetricKind::gauge);
}

TEST(Metrics, CountFromManyThreads) {
  Metrics metrics;
  Counter& counted = metrics.counter("counted_total", "Counted.");
  std::thread threads[4];
  for (std::thread& thread : threads)
    thread = std::thread([&] {
      for (int i = 0; i < 1000; ++i) counted.add();
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(metrics.snapshot().at(0).value, 4000);
}

}  // namespace
}  // namespace pawl
