// Checkpoints of DeepSpeed against what the running job had; then damaged ones.
#include "checkpoint/formats/deepspeed/deepspeed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "checkpoint/containers/torch_file.h"
#include "checkpoint/formats/given_names.h"
#include "checkpoint/formats/golden_check.h"
#include "env/temporary_directory.h"

namespace pawl::checkpoint {
namespace {

namespace fs = std::filesystem;
using fixtures::content;

std::vector<std::string> checkpoints(const std::string& set) {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(set + "/deepspeed"))
    if (fs::exists(entry.path() / "ckpt" / "latest")) out.push_back(entry.path().string());
  std::ranges::sort(out);
  return out;
}

// A copy of a checkpoint's save folder, gone with the test.
class Copy {
 public:
  explicit Copy(const std::string& fixture) : folder_(root_.path("some other name")) {
    fs::copy(fixture + "/ckpt", folder_, fs::copy_options::recursive);
    tag_ = folder_ + "/" + content(folder_ + "/latest");
  }
  explicit Copy(const char* small) : Copy(fixtures::small_set() + "/deepspeed/" + small) {}
  [[nodiscard]] const std::string& folder() const { return folder_; }
  [[nodiscard]] const std::string& tag() const { return tag_; }
  [[nodiscard]] std::string file(const std::string& name) const { return tag_ + "/" + name; }
  void rename_tag(const std::string& name) {
    fs::rename(tag_, folder_ + "/" + name);
    tag_ = folder_ + "/" + name;
  }
  void write(const std::string& path, const std::string& bytes) const {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }

 private:
  const TemporaryDirectory root_;
  std::string folder_, tag_;
};

// What the files can't have: parameters that the job chose to leave out.
std::set<std::string> left_out(const std::string& fixture) {
  if (fs::path(fixture).filename() == "zero2_w2_no_frozen") return {"wpe.weight/weight"};
  return {};
}

void expect_step_for_each_state(const CheckpointView& view) {
  std::set<std::string> with_step;
  for (const StoredTensor& tensor : view.tensors)
    if (tensor.role == "step") {
      with_step.insert(tensor.name);
      EXPECT_EQ(tensor.type, ElementType::float32);
      EXPECT_TRUE(tensor.shape.empty());
    }
  for (const StoredTensor& tensor : view.tensors)
    EXPECT_TRUE(tensor.role != "exp_avg" || with_step.contains(tensor.name)) << tensor.name;
}

void expect_fixture(const std::string& fixture, const std::string& folder) {
  const Result<CheckpointView> view =
      fixtures::read_named([&](const ReadOptions& options) { return view_deepspeed(folder, options); });
  ASSERT_TRUE(view.has_value()) << fixture << ": " << view.error().what;
  const std::size_t compared = fixtures::expect_golden(*view, fixture + "/golden.safetensors", left_out(fixture), true);
  EXPECT_GT(compared, 10u) << fixture;
  expect_step_for_each_state(*view);
  // Nothing but what the golden has, the steps, and nothing twice.
  const std::string bytes = content(fixture + "/golden.safetensors");
  MemoryBytes source(bytes);
  const Result<SafetensorsFile> golden = read_safetensors(source);
  ASSERT_TRUE(golden.has_value());
  std::set<std::string> names;
  for (const SafetensorsEntry& entry : golden->tensors) names.insert(entry.name);
  for (const StoredTensor& tensor : view->tensors)
    EXPECT_TRUE(tensor.role == "step" || names.contains(tensor.name + "/" + tensor.role)) << tensor.name << tensor.role;
}

TEST(DeepSpeed, every_checkpoint_is_what_the_job_had) {
  for (const std::string& set : fixtures::sets())
    for (const std::string& fixture : checkpoints(set)) {
      SCOPED_TRACE(fixture);
      expect_fixture(fixture, fixture + "/ckpt");
    }
}

TEST(DeepSpeed, names_of_folders_mean_nothing) {
  for (const std::string& set : fixtures::sets())
    for (const std::string& fixture : checkpoints(set)) {
      SCOPED_TRACE(fixture);
      Copy copy(fixture);
      copy.rename_tag("x");
      expect_fixture(fixture, copy.tag());
      fs::remove(copy.folder() + "/latest");
      expect_fixture(fixture, copy.folder());  // the only one below
    }
}

TEST(DeepSpeed, the_whole_set_is_there) {
  PAWL_NEEDS_WHOLE_SET();
  EXPECT_GE(checkpoints(fixtures::whole_set()).size(), 26u);
}

std::string fact(const CheckpointView& view, std::string_view key) {
  for (const auto& [name, value] : view.facts)
    if (name == key) return value;
  return "";
}

TEST(DeepSpeed, facts_are_said) {
  const auto view = view_deepspeed(fixtures::small_set() + "/deepspeed/pp2_tp2_dp2_bf16/ckpt");
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(fact(*view, "writer"), "DeepSpeed 0.19.8");
  EXPECT_EQ(fact(*view, "step"), "3");
  EXPECT_EQ(fact(*view, "world"), "8");
  EXPECT_EQ(fact(*view, "layout"), "pp=2 tp=2 dp=2 zero=1");
  EXPECT_EQ(fact(*view, "optimizer"), "BF16_Optimizer");
  EXPECT_TRUE(std::ranges::count(view->objects, "note"));
  const auto moe = view_deepspeed(fixtures::small_set() + "/deepspeed/moe_ep2_w4_dp_first/ckpt");
  ASSERT_TRUE(moe.has_value());
  EXPECT_EQ(fact(*moe, "layout"), "dp=4 zero=2 ep=2");
}

TEST(DeepSpeed, tied_names_are_aliases) {
  PAWL_NEEDS_WHOLE_SET();
  for (const std::string name : {"zero2_w2_fp32", "zero3_w2", "zero0_w2_fp32"}) {
    const auto view = view_deepspeed(fixtures::whole_set() + "/deepspeed/" + name + "/ckpt");
    ASSERT_TRUE(view.has_value()) << view.error().what;
    EXPECT_EQ(view->aliases, (std::vector<std::pair<std::string, std::string>>{{"lm_head.weight", "wte.weight"}}))
        << name;
  }
}

// --- Damage. The view says what, and still shows the rest.

testing::AssertionResult has_problem(const CheckpointView& view, const std::vector<std::string>& words) {
  std::string all;
  for (const std::string& problem : view.problems) {
    all += problem + "\n";
    if (std::ranges::all_of(words, [&](const std::string& word) { return problem.find(word) != std::string::npos; }))
      return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << "no such problem among:\n" << all;
}

std::size_t count_role(const CheckpointView& view, std::string_view role) {
  return static_cast<std::size_t>(
      std::ranges::count_if(view.tensors, [&](const StoredTensor& tensor) { return tensor.role == role; }));
}

TEST(DamagedDeepSpeed, a_missing_file_is_named_and_the_weights_are_still_there) {
  Copy copy("zero1_w11");
  fs::remove(copy.file("zero_pp_rank_7_mp_rank_00_optim_states.pt"));
  const auto view = view_deepspeed(copy.folder());
  ASSERT_TRUE(view.has_value()) << view.error().what;
  EXPECT_TRUE(has_problem(*view, {"missing", "zero_pp_rank_7_mp_rank_00_optim_states.pt"}));
  EXPECT_GT(count_role(*view, "weight"), 10u);
  EXPECT_EQ(count_role(*view, "master"), count_role(*view, "weight"));
}

TEST(DamagedDeepSpeed, missing_files_of_every_kind_are_named) {
  const auto expect = [](const char* fixture, const std::string& name) {
    Copy copy(fixture);
    fs::remove(copy.file(name));
    const auto view = view_deepspeed(copy.folder());
    ASSERT_TRUE(view.has_value()) << name << ": " << view.error().what;
    EXPECT_TRUE(has_problem(*view, {"missing", name})) << fixture;
    EXPECT_FALSE(view->tensors.empty());
  };
  expect("pp2_tp2_dp2_bf16", "layer_02-model_01-model_states.pt");
  expect("pp2_tp2_dp2_bf16", "layer_04-model_00-model_states.pt");
  expect("pp2_tp2_dp2_bf16", "mp_rank_03_model_states.pt");
  expect("pp2_tp2_dp2_bf16", "bf16_zero_pp_rank_1_mp_rank_02_optim_states.pt");
  expect("moe_ep2_w4_dp_first", "layer_1_expert_3_mp_rank_00_model_states.pt");
  expect("zero3_w2_bf16", "zero_pp_rank_1_mp_rank_00_model_states.pt");
  expect("zero3_w2_bf16", "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt");
}

TEST(DamagedDeepSpeed, a_truncated_file_is_named_with_what_is_wrong) {
  Copy copy("zero1_w11");
  const std::string path = copy.file("zero_pp_rank_3_mp_rank_00_optim_states.pt");
  fs::resize_file(path, fs::file_size(path) / 2);
  const auto view = view_deepspeed(copy.folder());
  ASSERT_TRUE(view.has_value());
  EXPECT_TRUE(has_problem(*view, {"zero_pp_rank_3_mp_rank_00_optim_states.pt"}));
  EXPECT_GT(count_role(*view, "weight"), 10u);
}

TEST(DamagedDeepSpeed, any_byte_may_be_wrong) {
  Copy copy("zero2_w1_empty");
  for (const std::string name : {"mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"}) {
    const std::string path = copy.file(name);
    const std::string sound = content(path);
    for (std::size_t at = 0; at < sound.size(); at += 1 + sound.size() / 400) {
      std::string damaged = sound;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x55);
      copy.write(path, damaged);
      const auto view = view_deepspeed(copy.folder());  // bytes of tensors are nobody's to check here
      EXPECT_TRUE(view ? !view->tensors.empty() : !view.error().what.empty());
    }
    copy.write(path, sound);
  }
}

// As if the archive had been written without checksums of the records whose names have that in them.
void forget_checksums(std::string& bytes, const std::string& part) {
  const auto forget = [&](const std::string& magic, std::size_t name_at, std::size_t sum_at) {
    for (std::size_t i = bytes.find(magic); i != std::string::npos; i = bytes.find(magic, i + 1))
      if (bytes.substr(i + name_at, 100).find(part) < 64) bytes.replace(i + sum_at, 4, std::string(4, '\0'));
  };
  forget("PK\3\4", 30, 14);
  forget("PK\1\2", 46, 16);
}

// Another step in the tensor that one rank's optimizer counts with.
void set_step(const std::string& path, float step, bool is_damage = false) {
  const Result<TorchFile> file = TorchFile::open(path);
  ASSERT_TRUE(file.has_value());
  std::string bytes = content(path);
  for (const TorchTensor& tensor : file->tensors())
    if (tensor.path.back().text == "step")
      std::memcpy(bytes.data() + file->storages()[tensor.storage].offset_bytes, &step, sizeof step);
  if (!is_damage) forget_checksums(bytes, "/data/");
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

TEST(DamagedDeepSpeed, ranks_of_different_steps_are_noticed) {
  Copy copy("zero1_w11");
  set_step(copy.file("zero_pp_rank_9_mp_rank_00_optim_states.pt"), 4);
  const auto view = view_deepspeed(copy.folder());
  ASSERT_TRUE(view.has_value());
  EXPECT_TRUE(has_problem(*view, {"zero_pp_rank_9_mp_rank_00_optim_states.pt", "step", "different steps"}));
}

TEST(DamagedDeepSpeed, a_number_is_read_by_its_checksum) {
  Copy copy("zero1_w11");
  set_step(copy.file("zero_pp_rank_9_mp_rank_00_optim_states.pt"), 4, true);
  const auto view = view_deepspeed(copy.folder());
  ASSERT_TRUE(view.has_value());
  EXPECT_TRUE(has_problem(*view, {"zero_pp_rank_9_mp_rank_00_optim_states.pt", "storage", "checksum"}));
}

TEST(DamagedDeepSpeed, a_model_of_an_earlier_step_than_its_optimizer_is_noticed) {
  for (const float step : {2.0F, 4.0F}) {  // the model is at 3
    Copy copy("zero1_w11");
    for (const auto& entry : fs::directory_iterator(copy.tag()))
      if (entry.path().string().ends_with("_optim_states.pt")) set_step(entry.path().string(), step);
    const auto view = view_deepspeed(copy.folder());
    ASSERT_TRUE(view.has_value());
    const std::vector<std::string>& told = step > 3 ? view->problems : view->notes;
    ASSERT_EQ(told.size(), 1u);
    EXPECT_NE(told[0].find("different steps"), std::string::npos) << told[0];
    EXPECT_EQ(view->problems.empty(), step < 3);
  }
}

TEST(DamagedDeepSpeed, a_file_of_another_model_or_world_does_not_fit) {
  Copy copy("zero1_w11"), other("zero2_w1_empty");
  fs::copy_file(other.file("zero_pp_rank_0_mp_rank_00_optim_states.pt"),
                copy.file("zero_pp_rank_4_mp_rank_00_optim_states.pt"), fs::copy_options::overwrite_existing);
  const auto view = view_deepspeed(copy.folder());
  ASSERT_TRUE(view.has_value());
  EXPECT_TRUE(has_problem(*view, {"zero_pp_rank_4_mp_rank_00_optim_states.pt"}));
  EXPECT_GT(count_role(*view, "weight"), 10u);
}

// As the pickle of a file would be with other numbers in it: its checksums, which are of the old one, become 0.
void patch_pickle(const std::string& path, const std::string& from, const std::string& to) {
  ASSERT_EQ(from.size(), to.size());
  std::string bytes = content(path);
  const std::size_t at = bytes.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  ASSERT_EQ(bytes.find(from, at + 1), std::string::npos) << from << " is there twice";
  bytes.replace(at, to.size(), to);
  forget_checksums(bytes, "/data.pkl");
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

TEST(DamagedDeepSpeed, model_files_of_different_steps_are_noticed) {
  Copy copy("pp2_tp2_dp2_bf16");
  const std::string path = copy.file("mp_rank_02_model_states.pt");
  const std::string bytes = content(path);
  const std::size_t at = bytes.find("global_steps");
  ASSERT_NE(at, std::string::npos);
  const std::size_t number = bytes.find("K\3", at);  // BININT1 3
  ASSERT_LT(number, at + 24);
  patch_pickle(path, bytes.substr(at, number + 2 - at), bytes.substr(at, number + 1 - at) + "\4");
  const auto view = view_deepspeed(copy.folder());
  ASSERT_TRUE(view.has_value());
  EXPECT_TRUE(has_problem(*view, {"mp_rank_02_model_states.pt", "global_steps", "different saves"}));
}

TEST(DamagedDeepSpeed, parts_of_tensor_parallel_ranks_are_not_joined_by_guess) {
  Copy copy("pp2_tp2_dp2_bf16");
  for (int rank = 0; rank < 4; ++rank)
    patch_pickle(copy.file("mp_rank_0" + std::to_string(rank) + "_model_states.pt"), "universal_checkpoint_info",
                 "universal_checkpoint_none");
  const auto view = view_deepspeed(copy.folder());
  ASSERT_TRUE(view.has_value()) << view.error().what;
  EXPECT_TRUE(has_problem(*view, {"tied_modules.embed.word_embeddings.weight"}));
  EXPECT_GT(count_role(*view, "weight"), 10u);
}

TEST(DamagedDeepSpeed, another_world_size_is_noticed) {
  Copy copy("zero1_w11");
  const std::string path = copy.file("mp_rank_00_model_states.pt");
  const std::string bytes = content(path);
  const std::size_t at = bytes.find("dp_world_size");
  const std::size_t number = bytes.find("K\13", at);
  ASSERT_LT(number, at + 24);
  const std::string before = bytes.substr(at, number + 1 - at);
  patch_pickle(path, before + "\13", before + "\12");
  const auto smaller = view_deepspeed(copy.folder());
  ASSERT_TRUE(smaller.has_value());
  EXPECT_TRUE(has_problem(*smaller, {"world"}));
  patch_pickle(path, before + "\12", before + "\15");
  const auto larger = view_deepspeed(copy.folder());
  ASSERT_TRUE(larger.has_value());
  EXPECT_TRUE(has_problem(*larger, {"missing", "zero_pp_rank_11_mp_rank_00_optim_states.pt"}));
  EXPECT_TRUE(has_problem(*larger, {"world"}));
}

TEST(DamagedDeepSpeed, files_beyond_the_world_are_told_and_not_looked_at) {
  Copy copy("zero1_w11");
  fs::copy_file(copy.file("zero_pp_rank_3_mp_rank_00_optim_states.pt"),
                copy.file("zero_pp_rank_11_mp_rank_00_optim_states.pt"));
  const auto view = view_deepspeed(copy.folder());
  ASSERT_TRUE(view.has_value());
  EXPECT_TRUE(view->problems.empty());
  ASSERT_FALSE(view->notes.empty());
  EXPECT_NE(view->notes[0].find("zero_pp_rank_11_mp_rank_00_optim_states.pt"), std::string::npos);
}

TEST(DamagedDeepSpeed, two_files_of_one_rank_are_noticed) {
  Copy copy("zero1_w11");
  fs::copy_file(copy.file("zero_pp_rank_3_mp_rank_00_optim_states.pt"),
                copy.file("bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt"));
  const auto view = view_deepspeed(copy.folder());
  ASSERT_TRUE(view.has_value());
  EXPECT_TRUE(has_problem(*view, {"zero_pp_rank_3", "belong to one rank"}));
}

TEST(DamagedDeepSpeed, without_model_states_nothing_has_a_name) {
  for (const char* fixture : {"zero1_w11", "zero3_w2_bf16"}) {
    Copy copy(fixture);
    for (const auto& entry : fs::directory_iterator(copy.tag()))
      if (entry.path().string().ends_with("_model_states.pt")) fs::remove(entry.path());
    const auto view = view_deepspeed(copy.folder());
    ASSERT_FALSE(view.has_value());
    EXPECT_NE(view.error().what.find("_model_states.pt"), std::string::npos) << view.error().what;
  }
}

TEST(DamagedDeepSpeed, two_checkpoints_need_a_choice) {
  Copy copy("zero2_w1_empty");
  fs::copy(copy.tag(), copy.folder() + "/later", fs::copy_options::recursive);
  EXPECT_TRUE(view_deepspeed(copy.folder()).has_value());  // latest says it
  ReadOptions options;
  options.tag = "later";
  EXPECT_TRUE(view_deepspeed(copy.folder(), options).has_value());
  fs::remove(copy.folder() + "/latest");
  const auto view = view_deepspeed(copy.folder());
  ASSERT_FALSE(view.has_value());
  EXPECT_EQ(view.error().code, Code::invalid);
  EXPECT_NE(view.error().what.find("later"), std::string::npos);
  options.tag = "neither";
  EXPECT_FALSE(view_deepspeed(copy.folder(), options).has_value());
  for (const std::string tag : {"../later", "/etc", "", "nothing"}) {
    copy.write(copy.folder() + "/latest", tag);
    EXPECT_FALSE(view_deepspeed(copy.folder()).has_value()) << tag;
  }
}

TEST(DamagedDeepSpeed, no_checkpoint_at_all) {
  const auto nothing = view_deepspeed(fixtures::small_set());
  ASSERT_FALSE(nothing.has_value());
  EXPECT_EQ(nothing.error().code, Code::not_found);
  EXPECT_FALSE(view_deepspeed("/nonexistent/folder").has_value());
}

TEST(DamagedDeepSpeed, one_file_of_many_ranks_does_not_invent_them) {
  Copy copy("zero1_w11");
  for (const auto& entry : fs::directory_iterator(copy.tag()))
    if (entry.path().filename() != "mp_rank_00_model_states.pt") fs::remove(entry.path());
  const auto view = view_deepspeed(copy.folder());
  ASSERT_TRUE(view.has_value()) << view.error().what;
  EXPECT_TRUE(has_problem(*view, {"11 files are missing"}));
  EXPECT_GT(count_role(*view, "weight"), 10u);
}

TEST(DeepSpeed, states_keyed_by_number_need_names_where_parameters_could_be_exchanged) {
  PAWL_NEEDS_WHOLE_SET();
  Copy copy(fixtures::whole_set() + "/deepspeed/zero0_w2_fp32");
  ReadOptions options;
  options.parameter_names_file = copy.folder() + "/names";
  // The names of the two groups, as a person would give them; wrong ones are refused.
  const auto plain = view_deepspeed(copy.folder());
  ASSERT_TRUE(plain.has_value());
  EXPECT_TRUE(fixtures::asks_for_names(*plain));
  EXPECT_EQ(count_role(*plain, "exp_avg"), 0u);
  const std::string names = fixtures::names_by_decay(*plain);
  copy.write(options.parameter_names_file, names);
  const auto said = view_deepspeed(copy.folder(), options);
  ASSERT_TRUE(said.has_value());
  EXPECT_TRUE(said->problems.empty());
  EXPECT_GT(count_role(*said, "exp_avg"), 10u);
  for (const std::string& wrong_names : {names.substr(0, names.find('\n') + 1), fixtures::names_of_weights(*plain)}) {
    copy.write(options.parameter_names_file, wrong_names);  // one name; the model's order, which is not the groups'
    const auto wrong = view_deepspeed(copy.folder(), options);
    ASSERT_TRUE(wrong.has_value());
    EXPECT_TRUE(has_problem(*wrong, {"--param-names"}));
  }
}

}  // namespace
}  // namespace pawl::checkpoint
