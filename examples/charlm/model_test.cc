#include "model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "optimizer.h"

namespace charlm {
namespace {

std::vector<std::uint8_t> some_text(std::size_t size) {
  std::vector<std::uint8_t> text(size);
  for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<std::uint8_t>(random_at(5, i) % 7 + 'a');
  return text;
}

std::vector<float> random_matrix(std::size_t size, std::uint64_t key) {
  std::vector<float> matrix(size);
  for (std::size_t i = 0; i < size; ++i) matrix[i] = to_symmetric(random_at(key, i));
  return matrix;
}

TEST(Kernels, MultiplyEqualsTheThreeLoopsBitForBit) {
  const MatrixSize sizes[] = {{1, 1, 1}, {4, 8, 16}, {5, 9, 3}, {13, 31, 64}, {64, 256, 32}, {3, 7, 129}};
  Workspace workspace;
  for (const MatrixSize size : sizes) {
    const auto left = random_matrix(size.rows * size.inner, 1);
    const auto right = random_matrix(size.inner * size.columns, 2);
    const MatrixView views[] = {{left.data(), size.inner, 1}, {left.data(), 1, size.rows}};
    for (const MatrixView view : views) {
      std::vector<float> result(size.rows * size.columns, NAN), expected(result.size());
      multiply(size, view, right.data(), result.data(), workspace);
      for (std::size_t r = 0; r < size.rows; ++r) {
        for (std::size_t c = 0; c < size.columns; ++c) {
          volatile float sum = 0.0f;  // rounded after each operation, in this order
          for (std::size_t k = 0; k < size.inner; ++k) {
            const float factor = view.data[r * view.row_stride + k * view.column_stride];
            volatile float product = factor * right[k * size.columns + c];
            sum = sum + product;
          }
          expected[r * size.columns + c] = sum;
        }
      }
      EXPECT_EQ(0, std::memcmp(result.data(), expected.data(), result.size() * sizeof(float)));
    }
  }
}

TEST(Kernels, TransposeTwiceIsTheSame) {
  const auto matrix = random_matrix(33 * 18, 3);
  std::vector<float> once(matrix.size()), twice(matrix.size());
  transpose(matrix.data(), 33, 18, once.data());
  EXPECT_EQ(once[5 * 33 + 7], matrix[7 * 18 + 5]);
  transpose(once.data(), 18, 33, twice.data());
  EXPECT_EQ(twice, matrix);
}

TEST(Kernels, ExponentialAndLogarithmAreCloseToTheReal) {
  for (double x = -86.9; x <= 0.0; x += 0.0137) {
    const auto argument = static_cast<float>(x);
    EXPECT_NEAR(exponential(argument) / std::exp(static_cast<double>(argument)), 1.0, 3e-7) << x;
  }
  EXPECT_EQ(exponential(-100.0f), 0.0f);
  EXPECT_EQ(exponential(0.0f), 1.0f);
  for (double x = 1e-6; x < 1e6; x *= 1.0137) {
    EXPECT_NEAR(logarithm(x), std::log(x), 1e-14 * (1 + std::fabs(std::log(x))));
  }
}

class Gradient : public ::testing::Test {
 protected:
  Gradient() : model_({24, 0.1}), text_(some_text(400)), weights_(model_.parameter_count() + 5) {
    model_.initialize(3, weights_);
    for (std::uint64_t i = 0; i < 12; ++i) samples_.push_back(random_at(9, i) % (text_.size() - kContext));
  }
  double loss_at(const std::vector<float>& weights, std::vector<float>* gradients) {
    std::vector<float> unused(weights.size(), NAN);
    Xoshiro dropout = Xoshiro::seeded(11);  // the same units are dropped each time
    model_.derive(weights);
    return model_.forward_backward(weights, text_, samples_, 1.0f, dropout, gradients != nullptr ? *gradients : unused);
  }
  Model model_;
  std::vector<std::uint8_t> text_;
  std::vector<float> weights_;
  std::vector<std::uint64_t> samples_;
};

// For each parameter tensor, along its own gradient (where an error of scale shows) and along random directions (where
// an error of place shows): the slope of the loss is what the backward pass says.
TEST_F(Gradient, AgreesWithFiniteDifferences) {
  std::vector<float> gradients(weights_.size(), NAN);
  loss_at(weights_, &gradients);
  for (const Parameter& parameter : model_.parameters()) {
    double squares = 0.0;
    for (std::size_t i = 0; i < parameter.count; ++i) squares += std::pow(gradients[parameter.offset + i], 2);
    const double norm = std::sqrt(squares);
    ASSERT_GT(norm, 1e-3) << parameter.name;
    for (std::uint64_t trial = 0; trial < 4; ++trial) {
      // Half of the gradient's direction is always kept, so that the slope stands out from the rounding.
      std::vector<double> direction(parameter.count);
      for (std::size_t i = 0; i < parameter.count; ++i) {
        const double along = gradients[parameter.offset + i] / norm;
        direction[i] = trial == 0 ? along : along * (1.0 + to_symmetric(random_at(trial, i)));
      }
      const double step = 2e-3;
      auto ahead = weights_, behind = weights_;
      double slope = 0.0;
      for (std::size_t i = 0; i < parameter.count; ++i) {
        const std::size_t at = parameter.offset + i;
        ahead[at] += static_cast<float>(step * direction[i]);
        behind[at] -= static_cast<float>(step * direction[i]);
        slope += gradients[at] * (static_cast<double>(ahead[at]) - behind[at]);
      }
      const double measured = loss_at(ahead, nullptr) - loss_at(behind, nullptr);
      EXPECT_NEAR(measured / slope, 1.0, 0.01) << parameter.name << " trial " << trial;
    }
  }
  for (std::size_t i = model_.parameter_count(); i < gradients.size(); ++i) EXPECT_EQ(gradients[i], 0.0f);  // padding
}

// And single weights: the first, the last, and some between.
TEST_F(Gradient, AgreesOnSingleWeights) {
  std::vector<float> gradients(weights_.size(), NAN);
  loss_at(weights_, &gradients);
  for (const Parameter& parameter : model_.parameters()) {
    for (std::size_t pick = 0; pick < 12; ++pick) {
      const std::size_t within = pick == 0   ? 0
                                 : pick == 1 ? parameter.count - 1
                                             : random_at(21, pick) % parameter.count;
      const std::size_t at = parameter.offset + within;
      auto ahead = weights_, behind = weights_;
      ahead[at] += 5e-3f;
      behind[at] -= 5e-3f;
      const double slope = (loss_at(ahead, nullptr) - loss_at(behind, nullptr)) / (ahead[at] - behind[at]);
      EXPECT_NEAR(slope, gradients[at], 3e-3 + 0.02 * std::fabs(slope)) << parameter.name << " element " << within;
    }
  }
}

TEST_F(Gradient, DropoutStateDecidesAndMovesOn) {
  std::vector<float> gradients(weights_.size());
  model_.derive(weights_);
  Xoshiro dropout = Xoshiro::seeded(11);
  const double first = model_.forward_backward(weights_, text_, samples_, 1.0f, dropout, gradients);
  const double second = model_.forward_backward(weights_, text_, samples_, 1.0f, dropout, gradients);
  EXPECT_NE(first, second);
  EXPECT_EQ(first, loss_at(weights_, nullptr));  // the same state again: the same bits
}

TEST(Adam, CutsOfTheVectorGiveTheSameBits) {
  const std::size_t size = 37;
  const auto gradients = random_matrix(size, 4);
  auto whole = random_matrix(size, 5), parts = whole;
  AdamState whole_state{std::vector<float>(size), std::vector<float>(size)};
  AdamState low{std::vector<float>(20), std::vector<float>(20)}, high{std::vector<float>(17), std::vector<float>(17)};
  for (std::uint64_t step = 1; step <= 5; ++step) {
    adam_update({}, step, gradients, whole_state, whole);
    adam_update({}, step, std::span(gradients).subspan(0, 20), low, std::span(parts).subspan(0, 20));
    adam_update({}, step, std::span(gradients).subspan(20), high, std::span(parts).subspan(20));
  }
  EXPECT_EQ(whole, parts);
}

// The first update moves every weight by the rate, whatever the gradient's size: that is what the corrections are for.
TEST(Adam, FirstUpdateIsTheRateAgainstTheGradient) {
  AdamOptions options;
  options.learning_rate = 0.01f;
  options.warmup_steps = 0;
  std::vector<float> weights = {1.0f, 1.0f}, gradients = {5.0f, -0.001f};
  AdamState state{std::vector<float>(2), std::vector<float>(2)};
  adam_update(options, 1, gradients, state, weights);
  EXPECT_NEAR(weights[0], 0.99f, 1e-5);
  EXPECT_NEAR(weights[1], 1.01f, 1e-5);
}

}  // namespace
}  // namespace charlm
