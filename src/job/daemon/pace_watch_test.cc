#include "job/daemon/pace_watch.h"

#include <gtest/gtest.h>

#include "job/daemon/test_node.h"
#include "job/transport/messages.h"
#include "pawl/pawl.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

class Paces : public testing::Test {
 protected:
  explicit Paces(std::uint32_t self = 0) : node(3, self) {
    node.run_in(JobPhase::running);
    TrainerProcess& process = trainers.places()[0];
    process.seat = Seat(self);
    process.seated = Generation(1);
  }
  // A window: 100 looks in 20 steps, `own` of 5 looks at a step in compute.
  void window(std::uint64_t own) {
    TrainerPage& page = *trainer.page();
    for (int look = 0; look <= 100; ++look) {
      page.step.store(step + static_cast<std::uint64_t>(look / 5));
      page.phase.store(static_cast<std::uint64_t>(look % 5) < own ? PAWL_PHASE_COMPUTE : PAWL_PHASE_ALLREDUCE);
      watch.tick();
      node.clock.sleep(10ms);
    }
    step += 20;
  }
  PaceSummary of(std::uint32_t seat, std::uint64_t own_us) {
    PaceSummary summary;
    add(summary, SeatPace{Seat(seat), own_us});
    return summary;
  }

  TestNode node;
  std::unique_ptr<Loop> loop = *Loop::make(real_environment());
  Trainers trainers{*loop, 1, "test", nullptr, no_handlers()};
  TestTrainer trainer{*loop, trainers.places()[0]};
  Events events{node.context};
  std::vector<std::pair<NodeId, Frame>> sent;
  std::uint64_t step = 1;
  PaceWatch watch{node.context, trainers, events, {.send = [this](NodeId to, const Frame& frame) {
                    sent.emplace_back(to, frame);
                  }}};
};

class PacesOfALeaf : public Paces {
 protected:
  PacesOfALeaf() : Paces(2) {}
};

TEST_F(PacesOfALeaf, GoToTheParentWhenAWindowIsFull) {
  window(2);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].first, NodeId(0));
  const auto message = message_in<PaceMessage>(sent[0].second);
  ASSERT_TRUE(message);
  EXPECT_EQ(message->generation, Generation(1));
  const auto paces = parse_paces(message->paces);
  ASSERT_EQ(paces->slowest.size(), 1u);
  EXPECT_NEAR(static_cast<double>(paces->slowest[0].own_us), 20'000, 1'000) << "two looks of 10 ms";
}

TEST_F(Paces, TheRootNamesWhoHoldsUpTheOthers) {
  const auto round = [&](std::uint64_t slow_us) {
    watch.on_paces(NodeId(1), Generation(1), to_text(of(1, slow_us)));
    watch.on_paces(NodeId(2), Generation(1), to_text(of(2, 20'000)));
    window(2);
  };
  round(40'000);
  EXPECT_TRUE(watch.stragglers().empty());
  round(40'000);
  ASSERT_EQ(watch.stragglers().size(), 1u);
  EXPECT_EQ(watch.stragglers()[0].seat, Seat(1));
  round(20'000);
  EXPECT_TRUE(watch.stragglers().empty());
  EXPECT_TRUE(sent.empty());
}

TEST_F(Paces, ThoseOfAnotherGenerationAndNonsenseAreDropped) {
  window(2);
  watch.on_paces(NodeId(1), Generation(7), to_text(of(1, 90'000)));
  watch.on_paces(NodeId(2), Generation(1), "nonsense");
  window(2);
  window(2);
  EXPECT_TRUE(watch.stragglers().empty());
}

}  // namespace
}  // namespace pawl::job
