#include "checkpoint/names/state_names.h"

#include <gtest/gtest.h>

#include <set>

#include "base/text.h"

namespace pawl::checkpoint {
namespace {

using Path = std::vector<std::string>;

// "name/role" of each path; objects are in brackets.
std::vector<std::string> named(const std::vector<Path>& paths, const StateNameOptions& options = {}) {
  std::vector<StateKey> keys;
  for (const Path& path : paths) keys.push_back({path});
  std::vector<std::string> out;
  for (const StateName& name : name_states(keys, options).names)
    out.push_back(name.is_object ? text('[', name.name, ']') : text(name.name, '/', name.role));
  return out;
}

using Names = std::vector<std::string>;

TEST(StateNames, TheOptimizersParametersTellWhereTheModelIs) {
  for (const std::string model : {"model", "app", "my.net"})
    for (const std::string optimizer : {"optim", "optimizer", "opt.1"})
      EXPECT_EQ(
          named({{model, "layers.0.weight"},
                 {model, "tokens_seen"},
                 {optimizer, "state", "layers.0.weight", "exp_avg"},
                 {optimizer, "state", "layers.0.weight", "step"}}),
          (Names{"layers.0.weight/weight", "tokens_seen/weight", "layers.0.weight/exp_avg", "layers.0.weight/step"}));
}

TEST(StateNames, AStateMayLieDeeperAndBeFlattened) {
  EXPECT_EQ(named({{"state", "model", "w.weight"}, {"state", "optim", "state", "w.weight", "exp_avg"}}),
            (Names{"w.weight/weight", "w.weight/exp_avg"}));
  EXPECT_EQ(named({{"model", "w.weight"}, {"optim", "state.w.weight.exp_avg"}, {"optim", "param_groups.w.weight.lr"}}),
            (Names{"w.weight/weight", "w.weight/exp_avg", "[optim.param_groups.w.weight.lr]"}));
  // Keys of a planner that says nothing of their nesting.
  EXPECT_EQ(named({{"app.model.w.weight"}, {"app.optim.state.w.weight.exp_avg_sq"}}),
            (Names{"w.weight/weight", "w.weight/exp_avg_sq"}));
  // A parameter whose own name has the word in it.
  EXPECT_EQ(named({{"model", "encoder.state.weight"}, {"optim", "state", "encoder.state.weight", "step"}}),
            (Names{"encoder.state.weight/weight", "encoder.state.weight/step"}));
}

TEST(StateNames, AStateOfTheModelsParametersNeedsNoKnownWords) {
  EXPECT_EQ(
      named({{"model", "w.weight"}, {"optim", "state", "w.weight", "d"}, {"optim", "state", "w.weight", "old.0"}}),
      (Names{"w.weight/weight", "w.weight/d", "w.weight/old.0"}));
  EXPECT_EQ(named({{"w.weight"}, {"optim", "state", "w.weight", "d"}}), (Names{"w.weight/weight", "w.weight/d"}));
  EXPECT_EQ(named({{"model", "w.weight"}, {"more", "state", "other", "d"}}),
            (Names{"model.w.weight/weight", "more.state.other.d/weight"}));
  EXPECT_EQ(named({{"model", "state.0.weight"}, {"model", "0"}}),  // flat: a module may be called so
            (Names{"model.state.0.weight/weight", "model.0/weight"}));
}

TEST(StateNames, ATensorThatIsNoParameterLeavesShortNames) {
  const Shape matrix = {4, 4}, random = {5056};
  std::vector<StateKey> keys = {{{"model", "w"}, true, &matrix},
                                {{"named", "state", "w", "exp_avg"}, true, &matrix},
                                {{"numbered", "state", "0", "exp_avg"}, true, &matrix},
                                {{"rng_state"}, true, &random}};
  EXPECT_EQ(name_states(keys).names[0].name, "w");
  keys.push_back({{"other", "w"}, true, &matrix});  // whose the numbers are is to be told from these
  EXPECT_EQ(name_states(keys).names[0].name, "model.w");
}

TEST(StateNames, WhereANumberedParameterHasNoKnownShapeATensorOfAnyShapeMayBeIt) {
  const Shape matrix = {4, 4}, row = {4};
  std::vector<StateKey> keys = {{{"model", "w"}, true, &matrix},
                                {{"named", "state", "w", "exp_avg"}, true, &matrix},
                                {{"numbered", "state", "0", "exp_avg"}, true, &matrix},
                                {{"numbered", "param_groups"}, false},
                                {{"other", "b"}, true, &row}};
  EXPECT_EQ(name_states(keys).names[0].name, "w");
  keys.push_back({{"numbered", "state", "1", "own"}, true, &row});
  EXPECT_EQ(name_states(keys).names[0].name, "model.w");
}

TEST(StateNames, WithoutProofKeysStayAsStored) {
  EXPECT_EQ(named({{"model", "w"}, {"model", "b"}}), (Names{"model.w/weight", "model.b/weight"}));
  EXPECT_EQ(named({{"model.layers.0.weight"}}), (Names{"model.layers.0.weight/weight"}));
  EXPECT_EQ(named({{"model", "w"}, {"ema", "w"}}, {.trust_model_words = true}), (Names{"w/weight", "ema.w/weight"}));
  EXPECT_EQ(named({{"model", "w"}, {"module", "w"}}, {.trust_model_words = true}),
            (Names{"model.w/weight", "module.w/weight"}));
}

TEST(StateNames, RatesOfSchedulersAreNoWeights) {
  EXPECT_EQ(named({{"model", "w"},
                   {"optim", "state", "w", "exp_avg"},
                   {"scheduler", "base_lrs", "0"},
                   {"scheduler", "_last_lr", "0"},
                   {"scheduler", "best"},
                   {"scheduler", "_schedulers", "0", "base_lrs", "0"}}),
            (Names{"w/weight", "w/exp_avg", "[scheduler.base_lrs.0]", "[scheduler._last_lr.0]", "[scheduler.best]",
                   "[scheduler._schedulers.0.base_lrs.0]"}));
  EXPECT_EQ(named({{"w"}, {"_last_lr", "0"}}), (Names{"w/weight", "[_last_lr.0]"}));
}

// A scheduler's root may be that of an optimizer or of a model, too: what is no single number there is not its.
TEST(StateNames, WhatLiesBesideRatesIsNotDropped) {
  const Shape one = {}, many = {4};
  const std::vector<StateKey> keys = {{{"model", "w"}, true, &many},
                                      {{"optimizer", "optimizer", "state", "w", "exp_avg"}, true, &many},
                                      {{"optimizer", "optimizer", "state", "w", "step"}, true, &one},
                                      {{"optimizer", "optimizer", "param_groups", "0", "lr"}, true, &one},
                                      {{"optimizer", "_last_lr", "0"}, true, &one},
                                      {{"optimizer", "best"}, true, &one},
                                      {{"optimizer", "table"}, true, &many}};
  Names out;
  for (const StateName& name : name_states(keys).names)
    out.push_back(name.is_object ? text('[', name.name, ']') : text(name.name, '/', name.role));
  EXPECT_EQ(out, (Names{"w/weight", "w/exp_avg", "w/step", "[optimizer.optimizer.param_groups.0.lr]",
                        "[optimizer._last_lr.0]", "[optimizer.best]", "optimizer.table/weight"}));
}

TEST(StateNames, AParameterMayBeCalledAsRatesAre) {
  EXPECT_EQ(named({{"model", "base_lrs"},
                   {"model", "w"},
                   {"optim", "state", "base_lrs", "exp_avg"},
                   {"optim", "state", "base_lrs", "step"},
                   {"optim", "state", "w", "exp_avg"}}),
            (Names{"base_lrs/weight", "w/weight", "base_lrs/exp_avg", "base_lrs/step", "w/exp_avg"}));
  const Shape many = {4};  // parameters of a list of that name
  const std::vector<StateKey> keys = {{{"model", "base_lrs", "0"}, true, &many}, {{"model", "w"}, true, &many}};
  for (const StateName& name : name_states(keys).names) EXPECT_FALSE(name.is_object) << name.name;
}

TEST(StateNames, OneOfTwoModelsIsNotNamedAsTheOnlyOne) {
  EXPECT_EQ(named({{"G", "w"}, {"D", "w"}, {"optG", "state", "0", "exp_avg"}, {"optD", "state", "w", "exp_avg"}}),
            (Names{"G.w/weight", "D.w/weight", "optG.state.0/exp_avg", "D.w/exp_avg"}));
}

// Lightning with two optimizers of one model, of which one is numbered: there is no second model to tell it from.
TEST(StateNames, OneModelOfANamedAndANumberedOptimizerIsTheOnlyOne) {
  EXPECT_EQ(named({{"state_dict", "layers.0.weight"},
                   {"state_dict", "head.weight"},
                   {"optimizers", "0", "state", "layers.0.weight", "exp_avg"},
                   {"optimizers", "1", "state", "0", "exp_avg"},
                   {"optimizers", "1", "param_groups", "0", "lr"}}),
            (Names{"layers.0.weight/weight", "head.weight/weight", "layers.0.weight/exp_avg",
                   "optimizers.1.state.0/exp_avg", "[optimizers.1.param_groups.0.lr]"}));
}

TEST(StateNames, RootsAreKeptWhereTheyWereGiven) {
  EXPECT_EQ(named({{"model", "w"}, {"optim", "state", "w", "exp_avg"}}, {.keep_roots = true}),
            (Names{"model.w/weight", "model.w/exp_avg"}));
}

TEST(StateNames, ABareStateDictsNamesAreItsOwn) {
  EXPECT_EQ(named({{"model.embed.weight"}, {"optim", "state", "model.embed.weight", "exp_avg"}}),
            (Names{"model.embed.weight/weight", "model.embed.weight/exp_avg"}));
  EXPECT_EQ(named({{"state", "a.weight", "exp_avg"}, {"state", "a.weight", "step"}}),
            (Names{"a.weight/exp_avg", "a.weight/step"}));
}

TEST(StateNames, WrappersAreDropped) {
  EXPECT_EQ(named({{"module.w.weight"}, {"module.b"}}), (Names{"w.weight/weight", "b/weight"}));
  EXPECT_EQ(named({{"module.w.weight"}, {"b"}}), (Names{"module.w.weight/weight", "b/weight"}));
  EXPECT_EQ(named({{"model", "_orig_mod.w._fsdp_wrapped_module.weight"}, {"optim", "state", "w.weight", "exp_avg"}}),
            (Names{"w.weight/weight", "w.weight/exp_avg"}));
  EXPECT_EQ(named({{"model", "module.w.weight"}, {"optim", "state", "w.weight", "exp_avg"}}),
            (Names{"w.weight/weight", "w.weight/exp_avg"}));
  EXPECT_EQ(named({{"model", "module.w.weight"}, {"optim", "state", "module.w.weight", "exp_avg"}}),
            (Names{"w.weight/weight", "w.weight/exp_avg"}));
  EXPECT_EQ(named({{"module.w"}, {"w"}, {"module._orig_mod.w"}}),
            (Names{"module.w/weight", "w/weight", "module._orig_mod.w/weight"}));
}

TEST(StateNames, NumbersStayNumbers) {
  const std::vector<StateKey> keys = {
      {{"model", "w"}}, {{"optimizer", "state", "0", "exp_avg"}}, {{"optimizer", "state", "10", "exp_avg"}}};
  const StateNames names = name_states(keys);
  EXPECT_TRUE(names.is_indexed);
  EXPECT_EQ(names.names[0].name, "model.w");
  EXPECT_EQ(names.names[1].name, "optimizer.state.0");
  EXPECT_EQ(names.names[1].role, "exp_avg");
  EXPECT_EQ(names.names[2].name, "optimizer.state.10");
  ASSERT_EQ(names.notes.size(), 1u);
  EXPECT_NE(names.notes[0].find("--param-names"), std::string::npos);
}

TEST(StateNames, TwoModelsAreNeverMerged) {
  // Each optimizer finds its own; names that would meet keep what leads to them.
  EXPECT_EQ(named({{"generator", "w"},
                   {"critic", "w"},
                   {"optim_generator", "state", "w", "exp_avg"},
                   {"generator", "only_here"},
                   {"optim_generator", "state", "only_here", "exp_avg"}}),
            (Names{"w/weight", "critic.w/weight", "w/exp_avg", "only_here/weight", "only_here/exp_avg"}));
  EXPECT_EQ(named({{"models", "0", "w"},
                   {"models", "1", "w"},
                   {"optims", "0", "state", "w", "exp_avg"},
                   {"optims", "1", "state", "w", "exp_avg"}}),
            (Names{"models.0.w/weight", "models.1.w/weight", "models.0.w/exp_avg", "models.1.w/exp_avg"}));
  EXPECT_EQ(named({{"models", "0", "a"},
                   {"models", "1", "b"},
                   {"optims", "0", "state", "a", "exp_avg"},
                   {"optims", "1", "state", "b", "exp_avg"}}),
            (Names{"a/weight", "b/weight", "a/exp_avg", "b/exp_avg"}));
}

// Two models with the same names: shapes, then the keys, tell which is an optimizer's. Wrappers are dropped all the same.
TEST(StateNames, OfModelsWithTheSameNamesTheShapesOrTheKeysTell) {
  const Shape small = {2}, large = {3};
  const auto named_with = [](std::vector<StateKey> keys) {
    Names out;
    for (const StateName& name : name_states(keys).names) out.push_back(text(name.name, '/', name.role));
    return out;
  };
  EXPECT_EQ(named_with({{{"one", "module.w"}, true, &small},
                        {{"two", "module.w"}, true, &large},
                        {{"first", "state", "w", "exp_avg"}, true, &large},
                        {{"second", "state", "w", "exp_avg"}, true, &small}}),
            (Names{"one.w/weight", "two.w/weight", "two.w/exp_avg", "one.w/exp_avg"}));
  EXPECT_EQ(named({{"netG", "w"}, {"netD", "w"}, {"optD", "state", "w", "exp_avg"}, {"optG", "state", "w", "exp_avg"}}),
            (Names{"netG.w/weight", "netD.w/weight", "netD.w/exp_avg", "netG.w/exp_avg"}));
  EXPECT_EQ(named({{"ema", "w"}, {"student", "w"}, {"optimizer", "state", "w", "exp_avg"}}),
            (Names{"ema.w/weight", "w/weight", "w/exp_avg"}));
  EXPECT_EQ(named_with({{{"left", "w"}}, {{"right", "w"}}, {{"opt", "state", "w", "exp_avg"}, true, nullptr, "right"}}),
            (Names{"left.w/weight", "w/weight", "w/exp_avg"}));
}

TEST(StateNames, WhereNothingTellsStateKeepsItsStoredName) {
  const std::vector<StateKey> keys = {{{"left", "w"}}, {{"right", "w"}}, {{"opt", "state", "w", "exp_avg"}}};
  const StateNames names = name_states(keys);
  EXPECT_EQ(names.names[2].name, "opt.state.w");
  ASSERT_EQ(names.unnamed.size(), 1u);
  EXPECT_NE(names.unnamed[0].find("may be that of left or of right"), std::string::npos) << names.unnamed[0];
  std::vector<StateKey> told = keys;
  Result<ParameterNames> given = parse_parameter_names("{\"opt\": \"left\"}");
  ASSERT_TRUE(given.has_value());
  ASSERT_TRUE(tell_models(*given, told));
  EXPECT_EQ(name_states(told).names[2].name, "w");
  EXPECT_EQ(name_states(told).names[0].name, "w");
  for (const char* wrong : {"{\"other\": \"left\"}", "{\"opt\": \"middle\"}"})
    EXPECT_FALSE(tell_models(*parse_parameter_names(wrong), told)) << wrong;
}

TEST(StateNames, NamesDifferWhateverTheKeysAre) {
  // Every combination of a few short steps, three at a time: pairs of name and role stay apart.
  const Path steps = {"state", "model", "module", "w", "_orig_mod", "exp_avg", "0", "w.exp_avg", "state.w.step"};
  std::vector<Path> paths;
  for (const std::string& a : steps) {
    paths.push_back({a});
    for (const std::string& b : steps) {
      paths.push_back({a, b});
      for (const std::string& c : steps) paths.push_back({a, b, c});
    }
  }
  std::uint64_t seed = 1;
  for (int round = 0; round < 2000; ++round) {
    std::vector<Path> some;
    for (std::size_t n = 1 + round % 12; n > 0; --n) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      some.push_back(paths[(seed >> 33) % paths.size()]);
    }
    const Names names = named(some, {.trust_model_words = round % 2 == 0});
    ASSERT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size()) << "round " << round;
  }
}

TEST(StateNames, AHundredThousandKeysAndHostileOnesTakeLinearTime) {
  std::vector<StateKey> keys;
  for (int i = 0; i < 50'000; ++i) {
    keys.push_back({{"model", text("layers.", i, ".weight")}});
    keys.push_back({{"optim", "state", text("layers.", i, ".weight"), "exp_avg"}});
  }
  StateNames names = name_states(keys);
  EXPECT_EQ(names.names[99'998].name, "layers.49999.weight");
  EXPECT_EQ(names.names[99'999].name, "layers.49999.weight");
  keys.clear();
  for (int i = 0; i < 20'000; ++i) keys.push_back({{text("r", i), "state", "w", "exp_avg"}});  // as many optimizers
  keys.push_back({{std::string(1 << 20, '.')}});
  names = name_states(keys);
  EXPECT_EQ(names.names.size(), keys.size());
}

}  // namespace
}  // namespace pawl::checkpoint
