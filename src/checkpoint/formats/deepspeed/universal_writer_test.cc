// Universal folders as we write them: read back by our own reader against the goldens of the jobs, bit for bit. What
// DeepSpeed makes of them is test/torch/peers/test_deepspeed_universal.py's.
#include "checkpoint/formats/deepspeed/universal_writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "checkpoint/containers/torch_file.h"
#include "checkpoint/formats/deepspeed/deepspeed.h"
#include "checkpoint/formats/deepspeed/golden_steps.h"
#include "checkpoint/formats/deepspeed/universal.h"
#include "checkpoint/formats/given_names.h"
#include "checkpoint/formats/golden_check.h"
#include "env/temporary_directory.h"

namespace pawl::checkpoint {
namespace {

namespace fs = std::filesystem;
using fixtures::json;

// Each once: the whole set has those of the small one too.
std::vector<std::string> jobs() {
  std::map<std::string, std::string> out;
  for (const std::string& set : fixtures::sets())
    for (const auto& entry : fs::directory_iterator(set + "/deepspeed"))
      if (fs::exists(entry.path() / "ckpt" / "latest"))
        out.emplace(entry.path().filename().string(), entry.path().string());
  std::vector<std::string> paths;
  for (const auto& [name, path] : out) paths.push_back(path);
  return paths;
}

// A universal folder in the making, gone with the test.
class Written {
 public:
  explicit Written(const CheckpointView& view, const WriteOptions& options = {}) {
    Result<UniversalOutput> planned = plan_universal(view, options);
    EXPECT_TRUE(planned) << planned.error().what;
    if (!planned) return;
    output_ = std::move(*planned);
    Result<PartialOutput> partial = PartialOutput::begin(root_.path("out"), partial_options(output_.plan, false));
    EXPECT_TRUE(partial) << partial.error().what;
    if (!partial) return;
    partial_ = std::make_unique<PartialOutput>(std::move(*partial));
    OutputOptions how;
    how.execution.sync = false;
    how.execution.direct = false;
    const Result<ExecuteReport> report = write_output(output_.plan, output_.view, *partial_, how);
    EXPECT_TRUE(report) << report.error().what;
    folder_ = parent_path(partial_->path_of("latest_universal"));
  }
  [[nodiscard]] const std::string& folder() const { return folder_; }
  [[nodiscard]] const UniversalOutput& output() const { return output_; }
  [[nodiscard]] CheckpointView read_back() const {
    Result<CheckpointView> view = view_universal(folder_);
    EXPECT_TRUE(view) << view.error().what;
    return view ? std::move(*view) : CheckpointView();
  }

 private:
  const TemporaryDirectory root_;
  std::string folder_;
  UniversalOutput output_;
  std::unique_ptr<PartialOutput> partial_;
};

CheckpointView read_job(const std::string& fixture) {
  Result<CheckpointView> view =
      fixtures::read_named([&](const ReadOptions& options) { return view_deepspeed(fixture + "/ckpt", options); });
  EXPECT_TRUE(view) << view.error().what;
  return view ? std::move(*view) : CheckpointView();
}

// Weights that the folder can't have: of tensor-parallel ranks with different copies there is the mean of the masters,
// and only where model_states has no weights; and a parameter that the job left out itself.
std::set<std::string> lacking(const std::string& fixture) {
  std::set<std::string> out;
  if (fs::path(fixture).filename() == "zero2_w2_no_frozen") out.insert("wpe.weight/weight");
  const json golden = fixtures::golden(fixture);
  for (const auto& [name, parameter] : golden["params"].items())
    if (parameter.value("layout", json::array()) == json::array({"avg"})) out.insert(name + "/weight");
  return out;
}

TEST(UniversalWriter, EqualsGoldenOfEveryJob) {
  std::size_t compared = 0, folders = 0;
  for (const std::string& fixture : jobs()) {
    SCOPED_TRACE(fixture);
    const Written written(read_job(fixture));
    CheckpointView view = written.read_back();
    const std::set<std::string> without = lacking(fixture);
    std::erase_if(view.tensors,
                  [&](const StoredTensor& tensor) { return without.contains(tensor.name + "/" + tensor.role); });
    compared += fixtures::expect_golden(view, fixture + "/golden.safetensors", without);
    ++folders;
  }
  EXPECT_GE(folders, 5u);
  EXPECT_GT(compared, 300u);
}

TEST(UniversalWriter, StepsAreTheJobs) {
  for (const std::string& fixture : jobs()) {
    if (fixture.find(fixtures::small_set()) != 0) continue;
    SCOPED_TRACE(fixture);
    const Written written(read_job(fixture));
    fixtures::expect_golden_steps(written.read_back(), fixtures::golden(fixture));
  }
}

// The job's own files of model_states are there byte for byte, and a small twin for the stages that open another name.
TEST(UniversalWriter, ModelStatesAreCarriedOverAndHaveTwins) {
  for (const std::string name : {"zero2_w1_empty", "zero3_w2_bf16"}) {
    const std::string fixture = fixtures::small_set() + "/deepspeed/" + name;
    const Written written(read_job(fixture));
    const std::string& tag = written.folder();
    EXPECT_EQ(fixtures::content(tag + "/latest_universal"), ".");
    const std::string source = fixture + "/ckpt/" + fixtures::content(fixture + "/ckpt/latest");
    std::size_t carried = 0;
    for (const auto& entry : fs::directory_iterator(source)) {
      const std::string file = entry.path().filename().string();
      if (!file.ends_with("_model_states.pt")) continue;
      EXPECT_TRUE(fixtures::content(tag + "/" + file) == fixtures::content(entry.path().string())) << file;
      ++carried;
    }
    EXPECT_GE(carried, 1u);
    const std::string twin =
        name == "zero2_w1_empty" ? "zero_pp_rank_0_mp_rank_00_model_states.pt" : "mp_rank_00_model_states.pt";
    const Result<TorchFile> file = TorchFile::open(tag + "/" + twin);
    ASSERT_TRUE(file) << file.error().what;
    EXPECT_NE(file->pickle().find(file->pickle().root(), kTwinKey), Pickle::kNothing);
    EXPECT_NE(file->pickle().find(file->pickle().root(), "global_steps"), Pickle::kNothing);
    const Result<TorchFile> optimizer = TorchFile::open(tag + "/zero/optimizer_state.pt");
    ASSERT_TRUE(optimizer) << optimizer.error().what;
    const Pickle& pickle = optimizer->pickle();
    EXPECT_FALSE(pickle.items(pickle.find(pickle.root(), "param_groups")).empty());
    const Pickle::Value inner = pickle.find(pickle.root(), "optimizer_state_dict");
    EXPECT_FALSE(pickle.items(pickle.find(inner, "param_groups")).empty());
  }
}

// A second conversion of what the first one made loses nothing.
TEST(UniversalWriter, ConvertsItsOwnFolders) {
  const std::string fixture = fixtures::small_set() + "/deepspeed/zero3_w2_bf16";
  const Written first(read_job(fixture));
  const Written second(first.read_back());
  EXPECT_GT(fixtures::expect_golden(second.read_back(), fixture + "/golden.safetensors"), 40u);
}

// A view of no DeepSpeed: everything that DeepSpeed needs is made.
CheckpointView strange_view() {
  CheckpointView view;
  view.format = "PyTorch DCP";
  const auto add = [&](std::string name, std::string role, ElementType type, Shape shape, std::string bytes) {
    StoredTensor tensor{std::move(name), std::move(role), type, std::move(shape)};
    tensor.pieces = {whole_piece(tensor.shape, static_cast<std::uint32_t>(view.files.size()), 0)};
    view.files.push_back({.path = "nowhere", .codec = StoredFile::Codec::content, .content = std::move(bytes)});
    view.tensors.push_back(std::move(tensor));
  };
  const std::string half(4, '\x3f');
  add("trained", "weight", ElementType::bfloat16, {2}, half);
  add("trained", "exp_avg", ElementType::float32, {2}, "abcdefgh");
  add("trained", "exp_avg_sq", ElementType::float32, {2}, "12345678");
  add("trained", "step", ElementType::float32, {}, std::string("\0\0\x40\x41", 4));  // 12
  add("frozen", "weight", ElementType::bfloat16, {2}, half);
  add("counter", "buffer", ElementType::int64, {}, std::string("\7\0\0\0\0\0\0\0", 8));
  view.tensors.back().pieces.clear();
  view.tensors.back().shape = {0};
  return view;
}

TEST(UniversalWriter, MakesWhatAnotherSourceLacks) {
  const CheckpointView source = strange_view();
  const Written written(source);
  const Result<TorchFile> states = TorchFile::open(written.folder() + "/mp_rank_00_model_states.pt");
  ASSERT_TRUE(states) << states.error().what;
  EXPECT_EQ(states->pickle().integer(states->pickle().find(states->pickle().root(), "global_steps")), 12);
  const CheckpointView view = written.read_back();
  for (const std::string& problem : view.problems) ADD_FAILURE() << problem;
  fixtures::Contents wanted(source), got(view);
  std::size_t same = 0;
  for (const StoredTensor& tensor : source.tensors)
    for (const StoredTensor& found : view.tensors) {
      if (found.name != tensor.name || found.role != tensor.role) continue;
      EXPECT_EQ(found.type, tensor.type) << tensor.name << '/' << tensor.role;
      EXPECT_EQ(found.shape, tensor.shape) << tensor.name << '/' << tensor.role;
      EXPECT_TRUE(fixtures::whole_of(found, got) == fixtures::whole_of(tensor, wanted))
          << tensor.name << '/' << tensor.role;
      ++same;
    }
  EXPECT_EQ(same, source.tensors.size());
  const auto& notes = written.output().plan.notes;
  EXPECT_TRUE(std::ranges::any_of(notes, [](const auto& note) { return note.starts_with("hyperparameters"); }));
}

// The value of `key` in group `number` of a list under param_groups.
std::string hyperparameter(const Pickle& pickle, Pickle::Value holder, std::size_t number, std::string_view key) {
  const Pickle::Value group = pickle.items(pickle.find(holder, "param_groups"))[number];
  const Pickle::Value value = pickle.find(group, key);
  if (value == Pickle::kNothing) return "nothing";
  if (pickle.is(value, PickleKind::string)) return std::string(pickle.text(value));
  if (pickle.is(value, PickleKind::tuple)) return std::to_string(pickle.items(value).size()) + " of a tuple";
  if (pickle.is(value, PickleKind::real)) return std::to_string(pickle.real(value));
  return "another kind";
}

TEST(UniversalWriter, TakesOverTheParamGroupsOfAStore) {
  CheckpointView view = strange_view();
  view.values = R"({"user": {"param_groups": 1}, "param_groups": [
    {"params": ["a"], "lr": 0.003, "betas": [0.9, 0.95], "name": "decayed", "foreach": null},
    {"params": ["b"], "lr": 1.5e-3, "betas": [0.9, 0.95], "name": "rest", "foreach": null}]})";
  const Written written(view);
  const std::string path = written.folder() + "/zero/optimizer_state.pt";
  const Result<TorchFile> file = TorchFile::open(path);
  ASSERT_TRUE(file) << file.error().what;
  const Pickle& pickle = file->pickle();
  const Pickle::Value stage3 = pickle.find(pickle.root(), "optimizer_state_dict");
  EXPECT_EQ(hyperparameter(pickle, pickle.root(), 0, "lr"), "0.003000");
  EXPECT_EQ(hyperparameter(pickle, pickle.root(), 1, "lr"), "0.001500");
  EXPECT_EQ(hyperparameter(pickle, pickle.root(), 1, "name"), "rest");
  EXPECT_EQ(hyperparameter(pickle, pickle.root(), 1, "betas"), "2 of a tuple");
  EXPECT_EQ(hyperparameter(pickle, pickle.root(), 0, "params"), "nothing");
  EXPECT_EQ(hyperparameter(pickle, pickle.root(), 2, "lr"), "nothing");
  // ZeRO-3's loader gives the first group's to all.
  EXPECT_EQ(hyperparameter(pickle, stage3, 0, "lr"), "nothing");
  EXPECT_EQ(hyperparameter(pickle, stage3, 0, "betas"), "2 of a tuple");
  const auto& notes = written.output().plan.notes;
  EXPECT_TRUE(std::ranges::any_of(notes, [](const auto& note) { return note.starts_with("the param groups differ"); }));
}

TEST(UniversalWriter, RefusesWhatItCannotHold) {
  CheckpointView view = strange_view();
  WriteOptions half;
  half.type = ElementType::bfloat16;
  const Result<UniversalOutput> narrow = plan_universal(view, half);
  ASSERT_FALSE(narrow);
  EXPECT_NE(narrow.error().what.find("bfloat16"), std::string::npos) << narrow.error().what;
  view.tensors[0].name = "../up";
  const Result<UniversalOutput> up = plan_universal(view, {});
  ASSERT_FALSE(up);
  EXPECT_EQ(up.error().code, Code::invalid);
  EXPECT_NE(up.error().what.find("../up"), std::string::npos) << up.error().what;
  EXPECT_EQ(plan_universal(CheckpointView(), {}).error().code, Code::not_found);
}

TEST(UniversalWriter, WholeSet) {
  PAWL_NEEDS_WHOLE_SET();
  EXPECT_GE(jobs().size(), 26u);
}

}  // namespace
}  // namespace pawl::checkpoint
