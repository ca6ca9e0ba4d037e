#include "checkpoint/formats/torch/rank_files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <set>

#include "base/text.h"
#include "checkpoint/containers/torch_file.h"
#include "checkpoint/formats/fixtures.h"
#include "checkpoint/formats/given_names.h"
#include "checkpoint/formats/golden_check.h"
#include "env/temporary_directory.h"

namespace pawl::checkpoint {
namespace {

using fixtures::json;

// A folder of its own.
class Folder : public TemporaryDirectory {
 public:
  std::string write(const std::string& name, const std::string& bytes) const {
    const std::string to = path(name);
    EXPECT_TRUE(write_file_atomically(to, bytes).has_value());
    return to;
  }
  std::string copy(const std::string& from, const std::string& name) const {
    return write(name, fixtures::content(from));
  }
};

std::vector<std::string> folders(const std::string& name) {
  std::vector<std::string> out;
  for (const std::string& set : fixtures::sets())
    if (path_exists(set + "/torch/" + name)) out.push_back(set + "/torch/" + name);
  return out;
}

std::string golden_of(const std::string& folder) {
  return folder + "/golden.safetensors";
}

// The golden's keys that have none of these roles: what model files can't hold.
std::set<std::string> keys_without(const std::string& folder, const std::set<std::string>& roles) {
  const std::string bytes = fixtures::content(golden_of(folder));
  MemoryBytes source(bytes);
  Result<SafetensorsFile> golden = read_safetensors(source);
  std::set<std::string> out;
  if (!golden) return out;
  for (const SafetensorsEntry& entry : golden->tensors)
    if (!roles.contains(entry.name.substr(entry.name.rfind('/') + 1))) out.insert(entry.name);
  return out;
}

const StoredTensor* find(const CheckpointView& view, const std::string& name, const std::string& role = "weight") {
  for (const StoredTensor& tensor : view.tensors)
    if (tensor.name == name && tensor.role == role) return &tensor;
  return nullptr;
}

std::string all_of(const std::vector<std::string>& sentences) {
  std::string out;
  for (const std::string& sentence : sentences) append_text(out, text(sentence, '\n'));
  return out;
}

// --- DTensors

TEST(RankFiles, DTensorsOfTwoRanksAreTheGolden) {
  for (const std::string& from : folders("H_dtensor_ranks_w2")) {
    const Folder folder;
    for (int rank = 0; rank < 2; ++rank)
      folder.copy(text(from, "/rank", rank, ".pt"), text("state-", rank, "-of-the-job.bin"));
    Result<CheckpointView> view = view_rank_files(folder.path());
    ASSERT_TRUE(view.has_value()) << view.error().what;
    EXPECT_EQ(fixtures::expect_golden(*view, golden_of(from), {}, false), 6u);
    const StoredTensor* whole = find(*view, "rep");
    ASSERT_NE(whole, nullptr);
    EXPECT_EQ(whole->pieces.size(), 2u);  // copies
    EXPECT_EQ(whole->pieces[1].copy, 1u);
    EXPECT_EQ(whole->pieces[1].rank, 1u);
  }
}

TEST(RankFiles, AMissingRankIsAProblemThatNamesWhatIsMissing) {
  const std::string from = folders("H_dtensor_ranks_w2")[0];
  for (const int kept : {0, 1}) {
    const Folder folder;
    folder.copy(text(from, "/rank", kept, ".pt"), text("rank", kept, ".pt"));
    Result<CheckpointView> view = view_rank_files(folder.path());
    ASSERT_TRUE(view.has_value()) << view.error().what;
    const std::string problems = all_of(view->problems);
    EXPECT_NE(problems.find("col"), std::string::npos) << problems;
    EXPECT_EQ(problems.find("rep"), std::string::npos) << problems;
    EXPECT_EQ(problems.find("rank 0 is missing") != std::string::npos, kept == 1) << problems;
  }
}

TEST(RankFiles, ADTensorOfOneRankIsWhole) {
  const std::string from = folders("H_torch_save")[0];
  Result<CheckpointView> view = view_torch_file(from + "/dtensor_world1.pt");
  ASSERT_TRUE(view.has_value()) << view.error().what;
  EXPECT_TRUE(view->problems.empty()) << all_of(view->problems);
  ASSERT_EQ(view->tensors.size(), 1u);
  EXPECT_EQ(view->tensors[0].shape, (Shape{3, 4}));
}

// --- FSDP1

TEST(RankFiles, FullStateDictsOfFsdp) {
  for (const std::string name : {"G5_fsdp1_w4", "G5b_fsdp1_mesh_w2"})
    for (const std::string& from : folders(name)) {
      const Folder folder;
      Result<CheckpointView> view = view_torch_file(folder.copy(from + "/full.pt", "w.pth"));
      ASSERT_TRUE(view.has_value()) << view.error().what;
      EXPECT_GT(fixtures::expect_golden(*view, golden_of(from), keys_without(from, {"weight"}), false), 20u);
    }
  for (const std::string& from : folders("G5c_fsdp1_flat_w3")) {
    Result<CheckpointView> view = view_torch_file(from + "/full.pt");
    ASSERT_TRUE(view.has_value()) << view.error().what;
    EXPECT_GT(fixtures::expect_golden(*view, golden_of(from), {}, false), 100u);
  }
}

// Names with the golden's shapes, in the order of the model's state dict (full.pt).
std::string names_file(const std::string& from) {
  Result<CheckpointView> full = view_torch_file(from + "/full.pt");
  std::string out;
  if (!full) return out;
  for (const StoredTensor& tensor : full->tensors) {
    if (tensor.role != "weight" || tensor.type != ElementType::float32) continue;
    append_text(out, text(tensor.name, ' '));
    for (std::size_t d = 0; d < tensor.shape.size(); ++d) append_text(out, text(d == 0 ? "" : "x", tensor.shape[d]));
    out.push_back('\n');
  }
  return out;
}

TEST(RankFiles, LocalStateDictsOfFsdpAreFlatUntilShapesAreSaid) {
  PAWL_NEEDS_WHOLE_SET();
  const std::map<std::string, int> worlds = {{"G5_fsdp1_w4", 4}, {"G5c_fsdp1_flat_w3", 3}};
  for (const auto& [name, world] : worlds) {
    const std::string from = fixtures::whole_set() + "/torch/" + name;
    const Folder folder;
    for (int rank = 0; rank < world; ++rank)
      folder.copy(text(from, "/local_rank", rank, ".pt"), text("a", rank, ".pt"));
    Result<CheckpointView> flat = view_rank_files(folder.path());
    ASSERT_TRUE(flat.has_value()) << flat.error().what;
    EXPECT_NE(all_of(flat->problems).find("--param-names"), std::string::npos);
    const bool has_names = name == "G5_fsdp1_w4";
    EXPECT_EQ(find(*flat, "layers.0._flat_param") == nullptr, has_names);
    if (has_names) {
      const StoredTensor* weight = find(*flat, "layers.1.attention.wqkv.weight");
      ASSERT_NE(weight, nullptr);
      EXPECT_EQ(weight->shape, (Shape{std::uint64_t{48} * 24}));
    }
    const Folder other;
    ReadOptions options;
    options.parameter_names_file = other.write("names", names_file(from));
    Result<CheckpointView> view = view_rank_files(folder.path(), options);
    ASSERT_TRUE(view.has_value()) << view.error().what;
    EXPECT_GT(fixtures::expect_golden(*view, golden_of(from), keys_without(from, {"weight"}), false), 28u);
  }
}

TEST(RankFiles, AFolderOfSeveralFormsReadsTheRanksAndNamesTheRest) {
  PAWL_NEEDS_WHOLE_SET();
  Result<CheckpointView> view = view_rank_files(fixtures::whole_set() + "/torch/G5_fsdp1_w4");
  ASSERT_TRUE(view.has_value()) << view.error().what;
  EXPECT_NE(all_of(view->notes).find("full.pt"), std::string::npos) << all_of(view->notes);
  EXPECT_EQ(find(*view, "stats")->pieces.size(), 4u);  // a buffer, of which each rank has a copy
}

// --- Optimizers keyed by number

// Parameters of equal shape could be exchanged: numbers stay numbers, whole and readable, and are no damage.
void expect_unnamed(const CheckpointView& view) {
  EXPECT_TRUE(view.problems.empty()) << all_of(view.problems);
  EXPECT_NE(all_of(view.unnamed).find("could be exchanged; say it with --param-names"), std::string::npos)
      << all_of(view.unnamed);
  std::size_t numbered = 0;
  for (const StoredTensor& tensor : view.tensors)
    numbered += tensor.role == "exp_avg" && tensor.name.find("state.") != std::string::npos ? 1 : 0;
  EXPECT_GT(numbered, 5u);
}

TEST(RankFiles, DealtOptimizersAreTheGolden) {
  for (const std::string& from : folders("G6_ddp_zero_w3")) {
    const Folder folder;
    for (int rank = 0; rank < 3; ++rank) folder.copy(text(from, "/rank", rank, ".pt"), text("x.", rank, ".ckpt"));
    Result<CheckpointView> view = view_rank_files(folder.path());
    ASSERT_TRUE(view.has_value()) << view.error().what;
    expect_unnamed(*view);
    view = view_rank_files(folder.path(), fixtures::GivenNames(fixtures::names_of_groups(from)).options());
    ASSERT_TRUE(view.has_value()) << view.error().what;
    EXPECT_GT(fixtures::expect_golden(*view, golden_of(from), {}, false), 100u);
    EXPECT_EQ(find(*view, "norm.weight")->pieces.size(), 3u);
    EXPECT_EQ(find(*view, "norm.weight", "exp_avg")->pieces.size(), 1u);
  }
}

TEST(RankFiles, AConsolidatedOptimizerIsTheGolden) {
  for (const std::string& from : folders("G6_ddp_zero_w3")) {
    Result<CheckpointView> view = view_torch_file(from + "/consolidated.pt");
    ASSERT_TRUE(view.has_value()) << view.error().what;
    expect_unnamed(*view);
    view = view_torch_file(from + "/consolidated.pt", fixtures::GivenNames(fixtures::names_of_groups(from)).options());
    ASSERT_TRUE(view.has_value()) << view.error().what;
    EXPECT_TRUE(view->unnamed.empty()) << all_of(view->unnamed);
    EXPECT_GT(fixtures::expect_golden(*view, golden_of(from), {}, false), 100u);
  }
}

TEST(RankFiles, NamesThatArePassedAreTakenAndWrongOnesAreRefused) {
  const std::string from = folders("G6_ddp_zero_w3")[0];
  json names = json::parse(fixtures::names_of_groups(from));
  const Folder folder;
  ReadOptions options;
  std::swap(names[0][0], names[0][1]);  // of different shapes
  options.parameter_names_file = folder.write("swapped", names.dump());
  Result<CheckpointView> view = view_torch_file(from + "/consolidated.pt", options);
  ASSERT_FALSE(view.has_value());
  EXPECT_EQ(view.error().code, Code::invalid);
  options.parameter_names_file = folder.write("unknown", "no.such.parameter\n");
  EXPECT_FALSE(view_torch_file(from + "/consolidated.pt", options).has_value());
  options.parameter_names_file = folder.path() + "/not there";
  EXPECT_FALSE(view_torch_file(from + "/consolidated.pt", options).has_value());
}

TEST(RankFiles, WithoutOneOptimizerTheWeightsStayReadable) {
  const std::string from = folders("G6_ddp_zero_w3")[0];
  const Folder folder;
  for (const int rank : {0, 2}) folder.copy(text(from, "/rank", rank, ".pt"), text("rank", rank, ".pt"));
  Result<CheckpointView> view = view_rank_files(folder.path());
  ASSERT_TRUE(view.has_value()) << view.error().what;
  const std::string problems = all_of(view->problems);
  EXPECT_NE(all_of(view->unnamed).find("--param-names"), std::string::npos);
  EXPECT_NE(problems.find("rank 1 is missing"), std::string::npos) << problems;
  CheckpointView weights = *view;
  weights.problems.clear();
  EXPECT_GT(fixtures::expect_golden(weights, golden_of(from), keys_without(from, {"weight"}), true), 28u);
}

// --- What torch wrote for these tests (test/fixtures/torch/K_ranks/generate.py): four ranks, each case a golden

Result<CheckpointView> case_view(const std::string& name, const std::string& names = {}) {
  const std::string from = fixtures::small_set() + "/torch/K_ranks/" + name;
  const Folder folder;
  Result<std::vector<std::string>> files = real_files().list(from);
  for (const std::string& file : files ? *files : std::vector<std::string>())
    if (!file.starts_with("golden") && !file.ends_with(".txt")) folder.copy(join_path(from, file), file);
  ReadOptions options;
  if (!names.empty()) options.parameter_names_file = folder.write("names.txt", names);
  Result<CheckpointView> view = view_rank_files(folder.path(), options);
  // The folder goes; the fixture's own files have the same bytes.
  for (std::size_t i = 0; view && i < view->files.size(); ++i)
    if (view->files[i].codec == StoredFile::Codec::none)
      view->files[i].path = join_path(from, last_name(view->files[i].path));
  return view;
}

std::string case_file(const std::string& name, const std::string& file) {
  return fixtures::small_set() + "/torch/K_ranks/" + name + "/" + file;
}

TEST(RankFiles, EveryWayToShardIsTheGolden) {
  // 2 x 2 with every pair of placements, slices and a flattened mesh; FSDP2 x TP (_StridedShard) with its optimizer by
  // number; an optimizer that has names; ShardedTensors.
  const std::map<std::string, std::size_t> cases = {
      {"mesh", 30}, {"fsdp2_tp", 18}, {"named", 27}, {"fsdp1_flat_sharded", 10}};
  for (const auto& [name, count] : cases) {
    Result<CheckpointView> view = case_view(name);
    ASSERT_TRUE(view.has_value()) << name << ": " << view.error().what;
    EXPECT_EQ(view->unnamed.empty(), name != "fsdp2_tp");
    if (name == "fsdp2_tp") view = case_view(name, fixtures::names_of_weights(*view));
    ASSERT_TRUE(view.has_value()) << name << ": " << view.error().what;
    EXPECT_EQ(fixtures::expect_golden(*view, case_file(name, "golden.safetensors"), {}, false), count) << name;
  }
}

TEST(RankFiles, FlatShardedTensorsTakeShapesFromTheNamesFile) {
  for (const std::string name : {"fsdp1_orig_local", "fsdp1_flat_local"}) {
    Result<CheckpointView> flat = case_view(name);
    ASSERT_TRUE(flat.has_value()) << flat.error().what;
    EXPECT_NE(all_of(flat->problems).find("--param-names"), std::string::npos);
    const std::string names = fixtures::content(case_file(name, "names.txt"));
    Result<CheckpointView> view = case_view(name, names);
    ASSERT_TRUE(view.has_value()) << view.error().what;
    EXPECT_EQ(fixtures::expect_golden(*view, case_file(name, "golden.safetensors"), {}, false), 10u);
    std::string wrong = names;
    wrong.replace(wrong.find("13x6"), 4, "13x7");
    EXPECT_FALSE(case_view(name, wrong).has_value());
  }
}

// A frozen bias has the shape of a trained norm: there are several ways, until the names of the trained ones are said.
// Steps are Python numbers in these files, and the head is tied.
TEST(RankFiles, AFrozenParameterLikeATrainedOneNeedsTheNames) {
  Result<CheckpointView> view = case_view("ddp");
  ASSERT_TRUE(view.has_value()) << view.error().what;
  EXPECT_NE(all_of(view->unnamed).find("--param-names"), std::string::npos);
  ASSERT_NE(find(*view, "emb.weight"), nullptr);
  EXPECT_EQ(find(*view, "emb.weight")->pieces.size(), 2u);
  EXPECT_EQ(view->aliases, (std::vector<std::pair<std::string, std::string>>{{"head.weight", "emb.weight"}}));
  // One list of both groups goes by number: in the model's order it does not fit.
  view = case_view("ddp", "emb.weight\na.weight\nnorm.weight\nnorm.bias\nb.weight\nb.bias\n");
  EXPECT_FALSE(view.has_value());
  view = case_view("ddp", "emb.weight\na.weight\nb.weight\nnorm.weight\nnorm.bias\nb.bias\n");
  ASSERT_TRUE(view.has_value()) << view.error().what;
  EXPECT_EQ(fixtures::expect_golden(*view, case_file("ddp", "golden.safetensors"), {}, false), 27u);
  EXPECT_EQ(find(*view, "norm.bias", "step")->pieces.size(), 2u);
}

TEST(RankFiles, APartialTensorIsRefusedAndTheOthersAreRead) {
  Result<CheckpointView> view = case_view("partial");
  ASSERT_TRUE(view.has_value()) << view.error().what;
  EXPECT_NE(all_of(view->problems).find("Partial"), std::string::npos);
  EXPECT_EQ(find(*view, "w"), nullptr);
  ASSERT_NE(find(*view, "ok"), nullptr);
  EXPECT_EQ(find(*view, "ok")->pieces.size(), 1u);
}

// --- Which files are ranks

TEST(RankFileSets, AreFoundByTheOneNumberThatDiffers) {
  const auto patterns = [](const std::vector<std::string>& names) {
    std::map<std::string, std::size_t> out;
    for (const RankFileSet& set : rank_file_sets(names)) out[set.pattern] = set.files.size();
    return out;
  };
  using Patterns = std::map<std::string, std::size_t>;
  EXPECT_EQ(patterns({"rank0.pt", "rank1.pt", "consolidated.pt"}), (Patterns{{"rank#.pt", 2}}));
  EXPECT_EQ(patterns({"step100_local_rank0.pt", "step100_local_rank1.pt"}), (Patterns{{"step100_local_rank#.pt", 2}}));
  EXPECT_EQ(patterns({"rank_0_of_2.pt", "rank_1_of_2.pt"}), (Patterns{{"rank_#_of_2.pt", 2}}));
  EXPECT_EQ(patterns({"s1_rank0.pt", "s1_rank1.pt", "s2_rank0.pt", "s2_rank1.pt"}),
            (Patterns{{"s1_rank#.pt", 2}, {"s2_rank#.pt", 2}}));
  EXPECT_EQ(patterns({"model_v3.pt"}), Patterns{});
  EXPECT_EQ(patterns({"rank7.pt"}), (Patterns{{"rank#.pt", 1}}));
  const std::vector<std::string> many = {"r10.pt", "r9.pt", "r0.pt"};
  const std::vector<RankFileSet> sets = rank_file_sets(many);
  ASSERT_EQ(sets.size(), 1u);
  EXPECT_EQ(sets[0].files[2].second, "r10.pt");
}

TEST(RankFiles, CheckpointsOfSeveralStepsAreNotTakenForRanks) {
  const std::string from = folders("H_torch_save")[0];
  const Folder folder;
  for (const char* name : {"epoch1.pt", "epoch2.pt"}) folder.copy(from + "/train_adamw.pt", name);
  Result<CheckpointView> view = view_rank_files(folder.path());
  ASSERT_FALSE(view.has_value());
  EXPECT_EQ(view.error().code, Code::invalid);
  const Folder steps;
  for (const char* name : {"s1_rank0.pt", "s1_rank1.pt", "s2_rank0.pt", "s2_rank1.pt"})
    steps.copy(from + "/train_adamw.pt", name);
  EXPECT_FALSE(view_rank_files(steps.path()).has_value());
  ReadOptions options;
  options.tag = "s2_rank#.pt";
  view = view_rank_files(steps.path(), options);
  ASSERT_TRUE(view.has_value()) << view.error().what;
}

TEST(RankFiles, FilesWithoutNumbersArePartsOfOneStateOrSeveralCheckpoints) {
  const std::string from = folders("H_torch_save")[0];
  const Folder parts;
  parts.copy(from + "/non_contiguous.pt", "model.pt");
  parts.copy(from + "/train_adamw.pt", "training.pt");
  Result<CheckpointView> view = view_rank_files(parts.path());
  ASSERT_TRUE(view.has_value()) << view.error().what;
  Result<CheckpointView> one = view_torch_file(from + "/train_adamw.pt");
  ASSERT_TRUE(one.has_value());
  EXPECT_GT(view->tensors.size(), one->tensors.size());
  const Folder several;
  for (const char* name : {"best.pt", "last.pt"}) several.copy(from + "/train_adamw.pt", name);
  view = view_rank_files(several.path());
  ASSERT_FALSE(view.has_value());
  EXPECT_NE(view.error().what.find("last.pt"), std::string::npos) << view.error().what;
}

TEST(RankFiles, AnEmptyFolderAndMegatronsOldFormatAreRefused) {
  const Folder folder;
  Result<CheckpointView> view = view_rank_files(folder.path());
  ASSERT_FALSE(view.has_value());
  EXPECT_EQ(view.error().code, Code::not_found);
  ASSERT_TRUE(make_directories(folder.path() + "/mp_rank_00").has_value());
  folder.write("mp_rank_00/model_optim_rng.pt", "PK\3\4 and so on");
  view = view_rank_files(folder.path());
  ASSERT_FALSE(view.has_value());
  EXPECT_NE(view.error().what.find("Megatron"), std::string::npos);
}

// --- Any file of torch.save

// Every tensor of every file of the zoo is in its view with the bytes that torch said, or a note names why not.
TEST(RankFiles, TheZooIsReadByValue) {
  for (const std::string& folder : folders("H_torch_save")) {
    const json golden = fixtures::golden(folder);
    std::size_t compared = 0;
    for (const auto& [name, expected] : golden["files"].items()) {
      SCOPED_TRACE(folder + "/" + name);
      Result<CheckpointView> view = view_torch_file(folder + "/" + name);
      ASSERT_TRUE(view.has_value()) << view.error().what;
      fixtures::Contents contents(*view);
      std::set<std::string> sums;
      for (const StoredTensor& tensor : view->tensors)
        sums.insert(fixtures::sha256(fixtures::version_of(tensor, contents, 0, 0)));
      const json& tensors =
          expected.contains("tensors_as_loaded") ? expected["tensors_as_loaded"] : expected["tensors"];
      for (const auto& [path, tensor] : tensors.items()) {
        if (!tensor.contains("sha256") || tensor.value("meta", false)) continue;
        ++compared;
        EXPECT_TRUE(sums.contains(tensor["sha256"].get<std::string>()) || !view->notes.empty() ||
                    !view->unsupported.empty())
            << path << "\n"
            << all_of(view->notes) << all_of(view->problems);
      }
    }
    EXPECT_GT(compared, 150u);
  }
}

TEST(RankFiles, OptimizersOfOneFileGetTheGivenNames) {
  const std::string folder = folders("H_torch_save")[0];
  for (const std::string name : {"train_adamw.pt", "train_adamw_amsgrad.pt", "train_sgd_momentum.pt"}) {
    Result<CheckpointView> view =
        fixtures::read_named([&](const ReadOptions& options) { return view_torch_file(folder + "/" + name, options); });
    ASSERT_TRUE(view.has_value()) << view.error().what;
    EXPECT_TRUE(view->problems.empty()) << name << ": " << all_of(view->problems);
    std::set<std::string> weights, states;
    for (const StoredTensor& tensor : view->tensors) {
      (tensor.role == "weight" ? weights : states).insert(tensor.name);
    }
    EXPECT_FALSE(states.empty()) << name;
    for (const std::string& state : states) EXPECT_TRUE(weights.contains(state)) << name << ": " << state;
  }
}

// --- Hostile files

TEST(RankFiles, HostileFilesAreRefusedOrOpaque) {
  for (const std::string& folder : folders("H_hostile")) {
    const json golden = fixtures::golden(folder);
    for (const auto& [name, expected] : golden["files"].items()) {
      SCOPED_TRACE(folder + "/" + name);
      Result<CheckpointView> view = view_torch_file(folder + "/" + name);
      if (!view) {
        EXPECT_NE(view.error().code, Code::broken);
        EXPECT_NE(view.error().what.find(name), std::string::npos) << view.error().what;
        continue;
      }
      for (const StoredTensor& tensor : view->tensors) {  // what is read has bytes that stand for it
        Result<std::uint64_t> count = element_count(tensor.shape);
        ASSERT_TRUE(count.has_value());
        EXPECT_LT(*count, std::uint64_t{1} << 24);
      }
    }
  }
  EXPECT_FALSE(path_exists("pawl_pickle_executed"));
  EXPECT_FALSE(path_exists("pawl_zip_slip"));
}

// One file in memory, by any name.
class OneFile final : public Files {
 public:
  explicit OneFile(std::string_view bytes) : bytes_(bytes) {}
  Result<std::unique_ptr<File>> open(const std::string&, OpenOptions) override {
    return std::unique_ptr<File>(std::make_unique<Bytes>(bytes_));
  }
  Status rename(const std::string&, const std::string&) override { return refused(); }
  Status remove(const std::string&) override { return refused(); }
  Result<std::vector<std::string>> list(const std::string&) override { return refused(); }
  Status sync_directory(const std::string&) override { return refused(); }
  bool exists(const std::string&) override { return true; }

 private:
  static Error refused() { return {Code::io, "not here"}; }
  class Bytes final : public File {
   public:
    explicit Bytes(std::string_view bytes) : bytes_(bytes) {}
    Status write_at(std::uint64_t, std::span<const std::byte>) override { return refused(); }
    Result<std::size_t> read_at(std::uint64_t offset, std::span<std::byte> buffer) override {
      const std::size_t from = std::min<std::size_t>(offset, bytes_.size());
      const std::size_t count = std::min(buffer.size(), bytes_.size() - from);
      std::memcpy(buffer.data(), bytes_.data() + from, count);
      return count;
    }
    Status sync() override { return refused(); }
    Status truncate(std::uint64_t) override { return refused(); }
    Result<std::uint64_t> size() override { return std::uint64_t{bytes_.size()}; }
    Status close() override { return {}; }

   private:
    std::string_view bytes_;
  };
  std::string_view bytes_;
};

std::vector<std::string> small_files() {
  const std::string set = fixtures::small_set() + "/torch/";
  return {set + "H_dtensor_ranks_w2/rank1.pt", set + "H_torch_save/train_adamw.pt",
          set + "H_torch_save/rezipped_deflated.pt", set + "H_torch_save/conj_neg.pt"};
}

TEST(RankFiles, EveryTruncationIsRefused) {
  for (const std::string& path : small_files()) {
    const std::string bytes = fixtures::content(path);
    OneFile whole(bytes);
    ASSERT_TRUE(view_torch_file("whole.pt", {}, whole).has_value()) << path;
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      OneFile cut(std::string_view(bytes).substr(0, length));
      ASSERT_FALSE(view_torch_file("cut.pt", {}, cut).has_value()) << path << " cut at " << length;
    }
  }
}

// A flipped bit is refused, or read as pieces that lie inside the file (check_view proved it). Sanitizers see the rest.
TEST(RankFiles, FlippedBitsAreRefusedOrStayInside) {
  for (const std::string& path : small_files()) {
    std::string bytes = fixtures::content(path);
    std::size_t read = 0;
    const std::size_t stride = std::max<std::size_t>(1, bytes.size() * 8 / 8'000);
    for (std::size_t bit = 0; bit < bytes.size() * 8; bit += stride) {
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
      OneFile file(bytes);
      if (Result<CheckpointView> view = view_torch_file("flipped.pt", {}, file)) {
        ++read;
        for (const StoredTensor& tensor : view->tensors)
          for (const StoredPiece& piece : tensor.pieces)
            if (view->files[piece.file].codec == StoredFile::Codec::none) {
              EXPECT_LE(piece.offset_bytes + span_bytes(piece, tensor.type), bytes.size());
            }
      }
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
    }
    EXPECT_GT(read, 0u);
  }
}

}  // namespace
}  // namespace pawl::checkpoint
