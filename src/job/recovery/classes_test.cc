#include "job/recovery/classes.h"

#include <gtest/gtest.h>

namespace pawl::job {
namespace {

FailureClass class_in(std::string_view how, std::string_view failure, std::span<const FailureSign> users = {}) {
  const FailureSign* sign = sign_of(how, failure, users);
  return sign != nullptr ? sign->failure_class : FailureClass::repeated;  // which no sign has
}

TEST(Signs, ShowInHowATrainerEndedAndInWhatItSaid) {
  EXPECT_EQ(class_in("exited 127", ""), FailureClass::permanent);
  EXPECT_EQ(class_in("exited 78, its output is in x", "pawl: no torch"), FailureClass::permanent);
  EXPECT_EQ(class_in("start x: Permission denied", ""), FailureClass::permanent);
  EXPECT_EQ(class_in("exited 1", "ModuleNotFoundError: No module named 'trian'"), FailureClass::permanent);
  EXPECT_EQ(class_in("exited 1", "RuntimeError: CUDA error: uncorrectable ECC error encountered"), FailureClass::node);
  EXPECT_EQ(class_in("exited 1", "RuntimeError: NCCL error in: x.cpp:70, ncclRemoteError: ..."),
            FailureClass::transient_communication);
  EXPECT_EQ(class_in("exited 1", "OSError: [Errno 28] No space left on device"), FailureClass::trainer_process);
  EXPECT_EQ(class_in("exited 1", "ValueError: what"), FailureClass::repeated);
  EXPECT_EQ(class_in("exited 7", ""), FailureClass::repeated);
  EXPECT_EQ(class_in("exited 1", "PermissionError: [Errno 13] Permission denied: 'x'"), FailureClass::repeated);
}

TEST(Signs, ANumberIsNotFoundInALongerOne) {
  EXPECT_EQ(class_in("exited 1", "it returned 1278"), FailureClass::repeated);
  const std::vector<FailureSign> users = *parse_signs("node exited 12");
  EXPECT_EQ(class_in("exited 12, its output is in x", "", users), FailureClass::node);
  EXPECT_EQ(class_in("exited 120", "", users), FailureClass::repeated);
}

TEST(Signs, UsersComeFirst) {
  const auto users = parse_signs("# ours\n\nnetwork ModuleNotFoundError:\r\nnumerical loss is nan\n");
  ASSERT_TRUE(users) << users.error().what;
  ASSERT_EQ(users->size(), 2u);
  EXPECT_EQ(class_in("exited 1", "ModuleNotFoundError: x", *users), FailureClass::transient_communication);
  EXPECT_EQ(class_in("exited 3", "the loss is nan", *users), FailureClass::numerical);
  EXPECT_EQ(class_in("exited 127", "", *users), FailureClass::permanent);
}

TEST(Signs, ALineThatIsNoneIsRefusedWithItsNumber) {
  for (const char* lines : {"node ok\nnod x", "node ok\nnode", "node ok\nnode ", "node ok\nrepeated x"}) {
    const auto signs = parse_signs(lines);
    ASSERT_FALSE(signs) << lines;
    EXPECT_TRUE(signs.error().what.starts_with("line 2: expected a class")) << signs.error().what;
  }
}

TEST(Failure, IsTheLastExceptionOrTheLastLine) {
  EXPECT_EQ(failure_in(""), "");
  EXPECT_EQ(failure_in("step 3\nout of paper  \n\n"), "out of paper");
  const char* traceback =
      "step 8\n"
      "Traceback (most recent call last):\n"
      "  File \"train.py\", line 3, in <module>\n"
      "    raise KeyError(1)\n"
      "KeyError: 1\n"
      "\n"
      "During handling of the above exception, another exception occurred:\n"
      "\n"
      "Traceback (most recent call last):\n"
      "  File \"train.py\", line 5, in <module>\n"
      "    raise ValueError('x')\n"
      "ValueError: x\n"
      "more of it\n";
  EXPECT_EQ(failure_in(std::string(traceback) + "[W618] a warning while it ends\n"), "ValueError: x");
  EXPECT_EQ(failure_in("[rank1]: Traceback (most recent call last):\n[rank1]:   File \"x\"\n[rank1]: OSError: y\n"),
            "OSError: y");
  EXPECT_EQ(failure_in("Traceback (most recent call last):\n  File \"x\"\n"), "  File \"x\"");  // cut off
  EXPECT_EQ(failure_in(std::string(1000, 'x')).size(), 300u);
}

TEST(Failure, IsTheSameButForAddressesAndProcesses) {
  EXPECT_TRUE(same_failure("E: <T at 0x7f00a1> of process 81234", "E: <T at 0x7eefb2> of process 90001"));
  EXPECT_FALSE(same_failure("IndexError: index 8", "IndexError: index 9"));
  EXPECT_FALSE(same_failure("KeyError: 'a'", "KeyError: 'b'"));
  EXPECT_TRUE(same_failure("", ""));
}

}  // namespace
}  // namespace pawl::job
