#include "job/trainer/capture_window.h"

#include <gtest/gtest.h>

namespace pawl::job {
namespace {

using Stage = CaptureWindow::Stage;

TEST(CaptureWindow, BeginsAnewWhateverBecameOfTheLastOne) {
  CaptureWindow window;
  window.begin(Step(4));
  window.last_chance = window.volatile_ready = true;
  window.why_cancelled = "a recovery is pending";
  window.make_void("a recovery is pending");
  window.begin(Step(5));
  EXPECT_EQ(window.stage, Stage::choosing);
  EXPECT_EQ(window.number, 2u);
  EXPECT_FALSE(window.last_chance || window.volatile_ready);
  EXPECT_EQ(window.why_cancelled, "");
  EXPECT_EQ(window.result.step, Step(5));
  EXPECT_FALSE(window.result.captured);
  EXPECT_EQ(window.result.why_void, "");
}

TEST(CaptureWindow, CanBeCancelledUntilItIsResolved) {
  CaptureWindow window;
  EXPECT_FALSE(window.can_be_cancelled());
  window.begin(Step(1));
  for (const Stage stage : {Stage::choosing, Stage::copying, Stage::finishing}) {
    window.stage = stage;
    EXPECT_TRUE(window.can_be_cancelled());
  }
  window.seal(64);
  EXPECT_FALSE(window.can_be_cancelled());
}

TEST(CaptureWindow, AHelperHelpsEachWindowOnceAndOnlyWhileItIsCopied) {
  CaptureWindow window;
  window.begin(Step(1));
  EXPECT_FALSE(window.wants_helper(0, 0));  // there is no slot yet
  window.stage = Stage::copying;
  EXPECT_TRUE(window.wants_helper(0, 0));
  EXPECT_FALSE(window.wants_helper(0, window.number));
  window.stage = Stage::finishing;
  EXPECT_FALSE(window.wants_helper(0, 0));
}

TEST(CaptureWindow, FinishesWhenVolatileStateIsThereAndNoHelperCopies) {
  CaptureWindow window;
  window.begin(Step(1));
  EXPECT_FALSE(window.may_finish(false));
  EXPECT_TRUE(window.may_finish(true));  // cancelled: nothing will be staged
  window.volatile_ready = true;
  EXPECT_TRUE(window.may_finish(false));
  window.helping = 1;  // it writes the slot, also after the window was cancelled
  EXPECT_FALSE(window.may_finish(false));
  EXPECT_FALSE(window.may_finish(true));
}

TEST(CaptureWindow, ThatIsComparedEndsOnceItIsSettled) {
  CaptureWindow window;
  window.begin(Step(1));
  EXPECT_TRUE(window.may_end(false));
  window.begin(Step(2), true);
  EXPECT_FALSE(window.may_end(false));
  EXPECT_TRUE(window.may_end(true));  // cancelled: it is void in any case
  window.settled = true;
  EXPECT_TRUE(window.may_end(false));
  window.result.written = 3;
  window.begin(Step(3), true);
  EXPECT_FALSE(window.may_end(false));
  EXPECT_FALSE(window.result.written.has_value());
}

TEST(CaptureWindow, IsSealedOrVoid) {
  CaptureWindow window;
  window.begin(Step(1));
  window.seal(64);
  EXPECT_EQ(window.stage, Stage::resolved);
  EXPECT_TRUE(window.result.captured);
  EXPECT_EQ(window.result.captured_bytes, 64u);
  window.begin(Step(2));
  window.make_void("no slot was free");
  EXPECT_EQ(window.stage, Stage::resolved);
  EXPECT_FALSE(window.result.captured);
  EXPECT_EQ(window.result.captured_bytes, 0u);
  EXPECT_EQ(window.result.why_void, "no slot was free");
}

TEST(CaptureWindow, WantsAsManyHelpersAsItBeganWith) {
  CaptureWindow window;
  window.begin(Step(1), false, 2);
  window.stage = CaptureWindow::Stage::copying;
  EXPECT_TRUE(window.wants_helper(1, 0));
  EXPECT_FALSE(window.wants_helper(2, 0));
}

}  // namespace
}  // namespace pawl::job
