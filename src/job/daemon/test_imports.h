// A node in a recovery, for tests: its imports fetch for real, from sources that are the test's.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "base/text.h"
#include "job/daemon/imports.h"
#include "job/daemon/test_node.h"
#include "job/daemon/test_wire.h"

namespace pawl::job {

// Node 0 with seat 0, in the recovery to generation 2, which resumes from `resume`. Another node leads.
class ImportingNode : public testing::Test {
 protected:
  ImportingNode(std::uint32_t nodes, Step resume) : node(nodes, 0, world.environment) {
    node.context.post = [this](std::function<void()> task) { posted.post(std::move(task)); };
    for (std::uint32_t i = 0; i < nodes; ++i) node.state.seats[i].address = text("127.0.0.1:10", i);
    node.state.generation = Generation(2);
    node.state.resume = resume;
    node.state.ran = Generation(1);
    process.seat = Seat(0);
  }
  ~ImportingNode() override {
    imports.end();
    EXPECT_TRUE(posted.run_until([this] { return world.tasks.all_ended(); }));
  }
  // The state that this node's report would lead to; nullopt: it has reported nothing.
  std::optional<JobState> reported() {
    node.mover.drive();
    if (node.control.swaps.empty()) return std::nullopt;
    return *parse_job_state(node.control.swaps.back().value);
  }

  TestWorld world;
  TestNode node;
  PostedTasks posted;
  std::unique_ptr<Loop> loop = *Loop::make(real_environment());
  Memory memory{real_shared_memory(), nobody_keeps()};
  Trainers trainers{*loop, 1, "test", nullptr, no_handlers()};
  TrainerProcess& process = trainers.places()[0];
  TestTrainer trainer{*loop, process};
  SeatArenas arenas{node.context, memory};
  std::atomic<std::uint64_t> progress{0};
  Streams streams{node.context, memory,   arenas,
                  node.holds,   progress, {.hello = [](Purpose) { return Hello{}; }, .on_held = [] {}}};
  Imports imports{node.context, trainers, arenas, streams, node.mover, node.events, [](Purpose purpose) {
                    Hello hello;
                    hello.job = "test";
                    hello.purpose = purpose;
                    return hello;
                  }};
};

}  // namespace pawl::job
