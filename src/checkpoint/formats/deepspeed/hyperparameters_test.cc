// What optimizers' param groups say, by the parameters' names: of torch.save and DeepSpeed; and what is not told.
#include "checkpoint/names/hyperparameters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>

#include "checkpoint/containers/pickle_writer.h"
#include "checkpoint/formats/deepspeed/deepspeed.h"
#include "checkpoint/formats/deepspeed/universal.h"
#include "checkpoint/formats/fixtures.h"
#include "checkpoint/formats/given_names.h"
#include "checkpoint/formats/torch/rank_files.h"

namespace pawl::checkpoint {
namespace {

namespace fs = std::filesystem;
using fixtures::json;

std::map<std::string, json> by_name(const CheckpointView& view) {
  std::map<std::string, json> out;
  const json values = json::parse(view.values, nullptr, false);
  if (!values.is_object()) return out;
  for (json group : values["param_groups"]) {
    const json names = group["params"];
    group.erase("params");
    for (const json& name : names) EXPECT_TRUE(out.emplace(name.get<std::string>(), group).second) << name;
  }
  return out;
}

// Most jobs of the fixtures let only matrices decay, by 0.1; a few have one group, by 0.01. Whether it is one of most.
bool expect_decay(const CheckpointView& view, const std::string& about) {
  const std::map<std::string, json> told = by_name(view);
  const bool is_one_group =
      std::ranges::all_of(told, [&](const auto& each) { return each.second["weight_decay"] == 0.01; });
  std::size_t with_state = 0;
  for (const StoredTensor& tensor : view.tensors) {
    if (tensor.role != "exp_avg") continue;
    ++with_state;
    const auto found = told.find(tensor.name);
    if (found == told.end()) {
      ADD_FAILURE() << about << ": " << tensor.name << " in " << view.values;
      continue;
    }
    const double decay = is_one_group ? 0.01 : tensor.shape.size() >= 2 ? 0.1 : 0.0;
    EXPECT_EQ(found->second["weight_decay"], decay) << about << ": " << tensor.name;
    EXPECT_EQ(found->second["betas"].size(), 2u) << about;
  }
  EXPECT_EQ(told.size(), with_state) << about;
  return !is_one_group;
}

TEST(Hyperparameters, OfEveryZeroStage) {
  std::size_t seen = 0;
  for (const std::string& set : fixtures::sets())
    for (const auto& entry : fs::directory_iterator(set + "/deepspeed")) {
      if (!fs::exists(entry.path() / "ckpt" / "latest")) continue;
      const Result<CheckpointView> view = fixtures::read_named(
          [&](const ReadOptions& options) { return view_deepspeed((entry.path() / "ckpt").string(), options); });
      ASSERT_TRUE(view.has_value()) << view.error().what;
      if (entry.path().filename() == "zero1_w4_elastic") {
        EXPECT_EQ(view->values, "");  // elastic files have no groups
        continue;
      }
      seen += expect_decay(*view, entry.path().string()) ? 1 : 0;
    }
  EXPECT_GE(seen, 5u);
}

TEST(Hyperparameters, OfUniversalFolders) {
  std::size_t seen = 0;
  for (const std::string& set : fixtures::sets())
    for (const auto& entry : fs::directory_iterator(set + "/deepspeed")) {
      if (!fs::exists(entry.path() / "universal")) continue;
      const Result<CheckpointView> view = view_universal((entry.path() / "universal").string());
      if (!view.has_value() || view->values.empty()) continue;
      seen += expect_decay(*view, entry.path().string()) ? 1 : 0;
    }
  EXPECT_GE(seen, 1u);
}

TEST(Hyperparameters, OfTorchSaveInOneFileAndDealtToRanks) {
  const std::string folder = fixtures::small_set() + "/torch/G6_ddp_zero_w3";
  const fixtures::GivenNames names(fixtures::names_of_groups(folder));
  const Result<CheckpointView> one = view_torch_file(folder + "/consolidated.pt", names.options());
  ASSERT_TRUE(one.has_value()) << one.error().what;
  EXPECT_TRUE(expect_decay(*one, "consolidated"));
  ReadOptions of_ranks = names.options();
  of_ranks.tag = "rank#.pt";
  const Result<CheckpointView> dealt = view_rank_files(folder, of_ranks);
  ASSERT_TRUE(dealt.has_value()) << dealt.error().what;
  EXPECT_TRUE(expect_decay(*dealt, "dealt"));
  EXPECT_EQ(by_name(*one), by_name(*dealt));
  EXPECT_EQ(json::parse(dealt->values)["param_groups"].size(), 2u);  // three ranks say the same
}

TEST(Hyperparameters, OfOptimizersThatWereMadeWithNames) {
  const Result<CheckpointView> view = view_torch_file(fixtures::small_set() + "/torch/K_ranks/named/all.pt");
  ASSERT_TRUE(view.has_value()) << view.error().what;
  const std::map<std::string, json> told = by_name(*view);
  EXPECT_EQ(told.size(), 6u) << view->values;  // a.bias has no state
  EXPECT_EQ(told.at("b.weight")["lr"], 0.1);
  EXPECT_FALSE(told.at("b.weight").contains("param_names"));
}

// --- What is told of one group, and what is not.

class Groups : public testing::Test {
 protected:
  // [{"lr": 0.5, ...}, {...}], with what `more` adds to the first.
  template <typename More>
  std::vector<HyperGroup> read(const More& more) {
    PickleWriter to;
    to.empty_list();
    to.mark();
    to.empty_dict();
    to.mark();
    to.string("lr");
    to.real(0.5);
    more(to);
    to.set_items();
    to.append_items();
    const Result<Pickle> pickle = parse_pickle(to.finish());
    EXPECT_TRUE(pickle.has_value());
    return pickle ? read_hyper_groups(*pickle, pickle->root()) : std::vector<HyperGroup>();
  }
  // A view with state for the parameters a and b.
  static CheckpointView view() {
    CheckpointView out;
    for (const char* name : {"a", "b"})
      for (const char* role : {"weight", "exp_avg"}) {
        StoredTensor& tensor = out.tensors.emplace_back();
        tensor.name = name;
        tensor.role = role;
      }
    out.tensors.emplace_back().name = "frozen";
    return out;
  }
};

TEST_F(Groups, OnlyPlainValuesAreTakenAndOthersAreNamed) {
  std::vector<HyperGroup> groups = read([](PickleWriter& to) {
    to.string("betas");
    to.real(0.9);
    to.integer(1);
    to.tuple(2);
    to.string("foreach");
    to.none();
    to.string("fused");
    to.boolean(true);
    to.string("kind");
    to.string("he\"ad");
    to.string("name");
    to.string("decaying");
    to.string("_ds_source_param_group_id");
    to.integer(3);
    to.string("scheduler");
    to.global("os", "system");
    to.string("called");
    to.global("os", "system");
    to.string("true");
    to.tuple(1);
    to.reduce();
    to.string("endless");
    to.real(std::numeric_limits<double>::infinity());
    to.string("long");
    to.string(std::string(65, 'x'));
    to.string("inner");
    to.empty_dict();
    to.string("params");
    to.empty_list();
  });
  ASSERT_EQ(groups.size(), 1u);
  groups[0].parameters = {"b", "nobody", "frozen"};
  CheckpointView told = view();
  add_hyper_groups(groups, told);
  EXPECT_EQ(json::parse(told.values),
            json::parse(R"({"param_groups": [{"params": ["b"], "betas": [0.9, 1], "foreach": null, "fused": true,
                                              "lr": 0.5, "kind": "he\"ad"}]})"));
  ASSERT_EQ(told.notes.size(), 1u);
  EXPECT_NE(told.notes[0].find("called, endless, inner, long, scheduler are"), std::string::npos) << told.notes[0];
}

TEST_F(Groups, TheLastOfSeveralUnderOneNameCounts) {
  const std::vector<HyperGroup> groups = read([](PickleWriter& to) {
    to.string("lr");
    to.global("os", "system");
  });
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_FALSE(groups[0].values.contains("lr"));
}

TEST_F(Groups, AParameterThatTwoClaimDifferentlyIsAReasonToTellNothing) {
  const HyperGroup quick = {.parameters = {"a"}, .values = {{"lr", "0.5"}}};
  HyperGroup slow = {.parameters = {"a", "b"}, .values = {{"lr", "0.25"}}};
  CheckpointView none = view();
  add_hyper_groups({quick, slow}, none);
  EXPECT_EQ(none.values, "");
  ASSERT_EQ(none.notes.size(), 1u);
  EXPECT_NE(none.notes[0].find("different things of a"), std::string::npos) << none.notes[0];
  slow.values = quick.values;
  CheckpointView both = view();
  add_hyper_groups({quick, slow}, both);
  EXPECT_EQ(by_name(both).size(), 2u);
  EXPECT_TRUE(both.notes.empty());
}

TEST_F(Groups, KeepTheirPlacesWhereAnyIsTold) {
  const std::vector<HyperGroup> groups = {{.parameters = {"frozen"}, .values = {{"lr", "1"}}},
                                          {.parameters = {"b"}},
                                          {.parameters = {"a"}, .values = {{"lr", "2"}}}};
  CheckpointView told = view();
  add_hyper_groups(groups, told);
  EXPECT_EQ(told.values, R"({"param_groups":[{"params":[],"lr":1},{"params":["b"]},{"params":["a"],"lr":2}]})");
  CheckpointView none = view();
  add_hyper_groups({groups[0], groups[1]}, none);
  EXPECT_EQ(none.values, "");
}

TEST_F(Groups, AFileThatSaysOneThingVeryOftenSaysNothing) {
  for (const int times : {1, 100'000}) {
    PickleWriter to;
    to.empty_list();
    to.mark();
    to.empty_dict();
    to.mark();
    for (int i = 0; i < 8; ++i) {
      to.string(std::string(1, static_cast<char>('a' + i)));
      to.string(std::string(64, '\1'));
    }
    to.set_items();
    const std::uint32_t dict = to.memoize();
    for (int i = 1; i < times; ++i) to.recall(dict);
    for (int i = 0; i < 20 * times; ++i) {  // values enough for that
      to.none();
      to.pop();
    }
    to.append_items();
    const Result<Pickle> pickle = parse_pickle(to.finish());
    ASSERT_TRUE(pickle.has_value()) << pickle.error().what;
    EXPECT_EQ(read_hyper_groups(*pickle, pickle->root()).size(), times == 1 ? 1u : 0u);
  }
}

TEST_F(Groups, ANumberIsOfTheOnlyGroupThatListsIt) {
  PickleWriter to;
  to.empty_list();
  to.mark();
  for (const int second : {1, 2}) {
    to.empty_dict();
    to.mark();
    to.string("params");
    to.empty_list();
    to.mark();
    to.integer(second);
    to.integer(3);
    to.append_items();
    to.set_items();
  }
  to.append_items();
  const Result<Pickle> pickle = parse_pickle(to.finish());
  ASSERT_TRUE(pickle.has_value());
  const auto found = groups_of_numbers(*pickle, pickle->root(), 4);
  EXPECT_EQ(found, (std::vector<std::optional<std::size_t>>{std::nullopt, 0, 1, std::nullopt}));
}

}  // namespace
}  // namespace pawl::checkpoint
