#include "checkpoint/names/model_pairs.h"

#include <gtest/gtest.h>

namespace pawl::checkpoint {
namespace {

TEST(ModelPairs, AreCalledAlike) {
  EXPECT_TRUE(are_paired("optG", "netG"));
  EXPECT_TRUE(are_paired("g_optim", "g"));
  EXPECT_TRUE(are_paired("optimizer_D_state_dict", "D.state_dict"));
  EXPECT_TRUE(are_paired("optims.0", "models.0"));
  EXPECT_TRUE(are_paired("critic.optimizer", "critic.model"));
  EXPECT_TRUE(are_paired("optimizer", "model"));
  EXPECT_TRUE(are_paired("", ""));
  EXPECT_TRUE(are_paired("g_opt", "generator"));
  EXPECT_TRUE(are_paired("disc_optimizer", "discriminator"));
  EXPECT_FALSE(are_paired("optims.1", "models.10"));
  EXPECT_FALSE(are_paired("optG", "netD"));
  EXPECT_FALSE(are_paired("g_optim", "g_ema"));
  EXPECT_FALSE(are_paired("optimizer", "ema_model"));
  EXPECT_FALSE(are_paired("optims.1", "models.0"));
}

TEST(ModelPairs, AnAverageIsTrainedByNoOptimizer) {
  EXPECT_TRUE(is_average("ema"));
  EXPECT_TRUE(is_average("g_ema"));
  EXPECT_TRUE(is_average("modelEMA.state_dict") || is_average("model_ema.module"));
  EXPECT_TRUE(is_average("swaModel"));
  EXPECT_FALSE(is_average("schema"));
  EXPECT_FALSE(is_average("model"));
}

}  // namespace
}  // namespace pawl::checkpoint
