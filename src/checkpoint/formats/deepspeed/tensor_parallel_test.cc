// What tensor-parallel ranks hold, joined: real jobs' files against their goldens, and every rule against loops.
#include "checkpoint/formats/deepspeed/tensor_parallel.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "checkpoint/formats/deepspeed/model_states.h"
#include "checkpoint/formats/deepspeed/shard_file.h"
#include "checkpoint/formats/deepspeed/shard_names.h"
#include "checkpoint/formats/golden_check.h"

namespace pawl::checkpoint {
namespace {

using deepspeed::ModelStates;
using deepspeed::ShardFile;
using deepspeed::ShardName;
using nlohmann::json;

// A pickle of it; keys of digits become numbers.
void append_pickle(std::string& out, const json& value) {
  const auto number = [&](std::uint64_t bits, int bytes, bool big) {
    for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>(bits >> 8 * (big ? bytes - 1 - i : i)));
  };
  if (value.is_object()) {
    out += "}(";
    for (const auto& [key, item] : value.items()) {
      const bool is_number = !key.empty() && key.find_first_not_of("0123456789") == std::string::npos;
      append_pickle(out, is_number ? json(std::stoi(key)) : json(key));
      append_pickle(out, item);
    }
    out += "u";
  } else if (value.is_array()) {
    out += "](";
    for (const json& item : value) append_pickle(out, item);
    out += "e";
  } else if (value.is_string()) {
    out += "X";
    number(value.get<std::string>().size(), 4, false);
    out += value.get<std::string>();
  } else if (value.is_number_float()) {
    out += "G";
    number(std::bit_cast<std::uint64_t>(value.get<double>()), 8, true);
  } else if (value.is_number_integer()) {
    out += "J";
    number(static_cast<std::uint64_t>(value.get<std::int64_t>()), 4, false);
  } else {
    out += "N";
  }
}

Result<TensorParallelRules> rules_of(const json& info) {
  std::string bytes = "\x80\x02";
  append_pickle(bytes, info);
  bytes += ".";
  const Result<Pickle> pickle = parse_pickle(bytes);
  EXPECT_TRUE(pickle.has_value());
  return TensorParallelRules::read(*pickle, pickle->root());
}

std::uint64_t count_of(const Shape& shape) {
  std::uint64_t count = 1;
  for (const std::uint64_t extent : shape) count *= extent;
  return count;
}

// Element i of rank r's tensor is 1000 r + i; this is the whole, of one version and copy. -1: no part has it.
std::vector<int> joined(const MergedParameter& merged, const std::vector<Shape>& locals, std::uint32_t version = 0,
                        std::uint32_t copy = 0) {
  std::vector<int> out(count_of(merged.shape), -1);
  for (std::uint32_t rank = 0; rank < locals.size(); ++rank) {
    std::vector<StoredPiece> pieces;
    if (count_of(locals[rank]) != 0)
      append_merged(merged, rank, whole_piece(locals[rank], 0, 0), ElementType::float32, pieces);
    for (const StoredPiece& piece : pieces) {
      if (piece.version != version || piece.copy != copy) continue;
      for (std::uint64_t i = 0; i < volume(piece.box); ++i) {
        std::uint64_t rest = i, from = piece.offset_bytes / 4, to = 0, scale = 1;
        for (std::uint32_t d = piece.box.dimensions; d-- > 0; rest /= piece.box.size[d]) {
          from += rest % piece.box.size[d] * piece.stride[d];
          to += (piece.box.begin[d] + rest % piece.box.size[d]) * scale;
          scale *= merged.shape[d];
        }
        EXPECT_EQ(out[to], -1) << "element " << to << " is there twice";
        out[to] = static_cast<int>(1000 * rank + from);
      }
    }
  }
  return out;
}

std::string error_of(const json& info, const std::string& name, const std::vector<Shape>& locals) {
  const Result<TensorParallelRules> rules = rules_of(info);
  if (!rules) return rules.error().what;
  const Result<MergedParameter> merged = rules->merge(name, locals);
  return merged ? "" : merged.error().what;
}

MergedParameter merged_of(const json& info, const std::string& name, const std::vector<Shape>& locals) {
  const Result<TensorParallelRules> rules = rules_of(info);
  EXPECT_TRUE(rules.has_value()) << rules.error().what;
  Result<MergedParameter> merged = rules->merge(name, locals);
  EXPECT_TRUE(merged.has_value()) << merged.error().what;
  return merged ? *merged : MergedParameter{};
}

// --- Real jobs.

// The weights of files that each hold one tensor-parallel rank's, under the names that `name_of` gives them.
template <class NameOf>
void append_weights(CheckpointView& view, const TensorParallelRules& rules, const std::vector<std::string>& paths,
                    bool is_layer, NameOf name_of) {
  std::map<std::string, std::vector<StoredTensor>> parts;
  for (const std::string& path : paths) {
    Result<ShardFile> file = ShardFile::open(path, static_cast<std::uint32_t>(view.files.size()), real_files());
    ASSERT_TRUE(file.has_value()) << file.error().what;
    view.files.push_back({path});
    std::vector<StoredTensor> weights;
    if (is_layer) {
      Result<std::vector<StoredTensor>> read = deepspeed::read_weights(*file, view.notes);
      ASSERT_TRUE(read.has_value());
      weights = *read;
    } else {
      Result<ModelStates> states = deepspeed::read_model_states(*file);
      ASSERT_TRUE(states.has_value()) << states.error().what;
      weights = states->weights;
    }
    for (StoredTensor& weight : weights) parts[name_of(weight.name)].push_back(std::move(weight));
  }
  for (const auto& [name, locals] : parts) {
    std::vector<Shape> shapes;
    for (const StoredTensor& local : locals) shapes.push_back(local.shape);
    Result<MergedParameter> merged = rules.merge(name, shapes);
    ASSERT_TRUE(merged.has_value()) << merged.error().what;
    StoredTensor out{.name = name, .type = locals[0].type, .shape = merged->shape, .versions = merged->versions};
    for (std::uint32_t rank = 0; rank < locals.size(); ++rank)
      for (const StoredPiece& piece : locals[rank].pieces) append_merged(*merged, rank, piece, out.type, out.pieces);
    view.tensors.push_back(std::move(out));
  }
}

std::string tag_folder(const std::string& fixture) {
  return fixture + "/ckpt/" + fixtures::golden(fixture)["tag"].get<std::string>();
}

Result<TensorParallelRules> rules_of_file(const std::string& path) {
  Result<ShardFile> file = ShardFile::open(path, 0, real_files());
  EXPECT_TRUE(file.has_value()) << path;
  return TensorParallelRules::read(file->pickle(), file->find("universal_checkpoint_info"));
}

// Only weights are looked at here.
std::set<std::string> all_but_weights(const std::string& fixture) {
  const std::string bytes = fixtures::content(fixture + "/golden.safetensors");
  MemoryBytes source(bytes);
  std::set<std::string> out;
  const Result<SafetensorsFile> golden = read_safetensors(source);
  for (const SafetensorsEntry& entry : golden->tensors)
    if (!entry.name.ends_with("/weight")) out.insert(entry.name);
  return out;
}

TEST(TensorParallel, AutoTpWeightsByAffineMap) {
  PAWL_NEEDS_WHOLE_SET();
  const std::string fixture = fixtures::whole_set() + "/deepspeed/autotp2_w4_zero1";
  const std::string folder = tag_folder(fixture);
  Result<TensorParallelRules> rules = rules_of_file(folder + "/mp_rank_00_model_states.pt");
  ASSERT_TRUE(rules.has_value()) << rules.error().what;
  CheckpointView view;
  append_weights(view, *rules, {folder + "/mp_rank_00_model_states.pt", folder + "/mp_rank_01_model_states.pt"}, false,
                 [](const std::string& name) { return name; });
  EXPECT_EQ(fixtures::expect_golden(view, fixture + "/golden.safetensors", all_but_weights(fixture), false), 22u);
}

// Pipeline layers' files: pipeline x TP in bf16, with the vocabulary, averages, sub-parameters and rows.
void expect_layers(const std::string& fixture) {
  const std::string folder = tag_folder(fixture);
  Result<TensorParallelRules> rules = rules_of_file(folder + "/mp_rank_00_model_states.pt");
  ASSERT_TRUE(rules.has_value()) << rules.error().what;
  EXPECT_TRUE(rules->is_pipeline_replicated("tied_modules.embed.word_embeddings.weight"));
  EXPECT_FALSE(rules->is_pipeline_replicated("2.attn_qkv.weight"));
  std::map<std::uint32_t, std::map<std::uint32_t, std::string>> layers;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (const auto name = deepspeed::parse_shard_name(entry.path().filename().string());
        name && name->kind == ShardName::Kind::layer)
      layers[name->layer][name->model_rank] = entry.path().string();
  CheckpointView view;
  for (const auto& [layer, files] : layers) {
    std::vector<std::string> paths;
    for (const auto& [rank, path] : files) paths.push_back(path);
    append_weights(view, *rules, paths, true, [number = layer](const std::string& name) {
      return (number == 1 ? std::string("tied_modules.embed") : std::to_string(number)) + "." + name;
    });
  }
  EXPECT_EQ(fixtures::expect_golden(view, fixture + "/golden.safetensors", all_but_weights(fixture), false), 28u);
}

TEST(TensorParallel, PipelineWeights) {
  for (const std::string& set : fixtures::sets()) expect_layers(set + "/deepspeed/pp2_tp2_dp2_bf16");
}

TEST(TensorParallel, WeightsByGivenWidths) {
  PAWL_NEEDS_WHOLE_SET();
  expect_layers(fixtures::whole_set() + "/deepspeed/tp2_dp2_zero1_uc04");
}

// --- The rules.

TEST(TensorParallel, JoinsAlongDimension0OrWhereItIsSaid) {
  const json info = {{"parameter_with_row_parallelism_patterns", {"row"}}};
  const MergedParameter column = merged_of(info, "any.row", {{2, 2}, {1, 2}});
  EXPECT_EQ(column.shape, (Shape{3, 2}));
  EXPECT_EQ(joined(column, {{2, 2}, {1, 2}}), (std::vector<int>{0, 1, 2, 3, 1000, 1001}));
  const MergedParameter row = merged_of(info, "row.weight", {{2, 2}, {2, 1}});
  EXPECT_EQ(row.shape, (Shape{2, 3}));
  EXPECT_EQ(joined(row, {{2, 2}, {2, 1}}), (std::vector<int>{0, 1, 1000, 2, 3, 1001}));
  EXPECT_NE(error_of(info, "row.bias", {{4}, {4}}), "");
  EXPECT_NE(error_of(info, "column", {{4, 2}, {4, 3}}).find("[4,2], [4,3]"), std::string::npos);
  EXPECT_EQ(joined(merged_of(info, "column", {{0, 2}, {1, 2}}), {{0, 2}, {1, 2}}), (std::vector<int>{1000, 1001}));
}

TEST(TensorParallel, ReplicatedAreCopiesAndAveragedAreVersions) {
  const json info = {{"tp_replicated_parameter_patterns", {"norm"}},
                     {"parameter_to_average_patterns", {"drift", "norm"}}};
  const std::vector<Shape> locals = {{3}, {3}};
  const MergedParameter norm = merged_of(info, "norm.weight", locals);  // the first list wins
  EXPECT_EQ(norm.copies, 2u);
  EXPECT_EQ(norm.versions, 1u);
  EXPECT_EQ(joined(norm, locals, 0, 1), (std::vector<int>{1000, 1001, 1002}));
  const MergedParameter drift = merged_of(info, "drift", locals);
  EXPECT_EQ(drift.copies, 1u);
  EXPECT_EQ(drift.versions, 2u);
  EXPECT_EQ(joined(drift, locals, 1), (std::vector<int>{1000, 1001, 1002}));
  EXPECT_NE(error_of(info, "norm.weight", {{3}, {4}}).find("[3], [4]"), std::string::npos);
  EXPECT_EQ(merged_of(info, "norm.scale", {{}, {}}).shape, Shape{});
}

TEST(TensorParallel, SubParametersOfEveryForm) {
  const std::vector<Shape> locals = {{4}, {4}};
  const json two = {{"parameter_with_2_sub_params_cat_dim_0", {"gate_up"}}};
  EXPECT_EQ(joined(merged_of(two, "gate_up", locals), locals), (std::vector<int>{0, 1, 1000, 1001, 2, 3, 1002, 1003}));
  const auto sub = [](json shape, int dimension) {
    return json{{{"patterns", json::array({"qkv"})}, {"shape", shape}, {"partition_dim", dimension}}};
  };
  // Q of 4 and KV of 2 each, cut evenly, before widths were given.
  const json given = {{"universal_checkpoint_version", 0.2},
                      {"parameter_with_sub_params", sub(json::array({json::array({4, 2, 2})}), 0)}};
  EXPECT_EQ(joined(merged_of(given, "qkv", locals), locals), (std::vector<int>{0, 1, 1000, 1001, 2, 1002, 3, 1003}));
  // Three of equal size, by their number.
  const json counted = {{"parameter_with_sub_params", sub({3, -1}, 0)}};
  const std::vector<Shape> rows = {{3, 2}, {3, 2}};
  EXPECT_EQ(joined(merged_of(counted, "qkv", rows), rows),
            (std::vector<int>{0, 1, 1000, 1001, 2, 3, 1002, 1003, 4, 5, 1004, 1005}));
  EXPECT_NE(error_of(counted, "qkv", {{5, 2}, {4, 2}}), "");  // nine rows are three of three, which two can't share
  // Uneven widths, which have to be given.
  const json uneven = {{"universal_checkpoint_version", 0.4},
                       {"parameter_with_sub_params", sub(json::array({json::array({3, 3}), -1}), 0)},
                       {"sub_param_shard_widths", {{"qkv", {{2, 1}, {2, 1}}}}}};
  const std::vector<Shape> parts = {{4, 1}, {2, 1}};
  EXPECT_EQ(joined(merged_of(uneven, "qkv", parts), parts), (std::vector<int>{0, 1, 1000, 2, 3, 1001}));
  EXPECT_NE(error_of(uneven, "qkv", {{3, 1}, {3, 1}}), "");
  EXPECT_NE(error_of({{"universal_checkpoint_version", 0.4},
                      {"parameter_with_sub_params", sub(json::array({json::array({3, 3})}), 0)}},
                     "qkv", {{4}, {2}})
                .find("sub_param_shard_widths"),
            std::string::npos);
  // The view splits what the tensor has in one: two blocks, each cut.
  const json view = {{"parameter_with_sub_params", sub(json::array({2, json::array({4}), 1}), 1)}};
  const std::vector<Shape> blocks = {{4, 1}, {4, 1}};
  EXPECT_EQ(joined(merged_of(view, "qkv", blocks), blocks), (std::vector<int>{0, 1, 1000, 1001, 2, 3, 1002, 1003}));
}

TEST(TensorParallel, VocabularyPaddingIsCut) {
  const json info = {{"vocabulary_parameter_patterns", {"embed"}}, {"original_vocab_size", 3}};
  const std::vector<Shape> locals = {{2, 1}, {2, 1}, {2, 1}};
  const MergedParameter merged = merged_of(info, "embed", locals);
  EXPECT_EQ(merged.shape, (Shape{3, 1}));
  EXPECT_EQ(joined(merged, locals), (std::vector<int>{0, 1, 1000}));
  EXPECT_TRUE(merged.ranks[2].empty());
  EXPECT_EQ(merged_of(info, "embed", {{4, 1}}).shape, (Shape{3, 1}));
  EXPECT_NE(error_of({{"vocabulary_parameter_patterns", {"embed"}}}, "embed", locals), "");
}

TEST(TensorParallel, PatternsAreThoseOfPython) {
  // Anchored at the start only, dots match anything, and a plain name is itself and no more.
  const json info = {{"tp_replicated_parameter_patterns", {R"(\d+.bias)", R"(^layers\.0\.norm$)", "a|b"}}};
  const std::vector<Shape> locals = {{1}, {1}};
  for (const std::string name : {"12.bias", "3xbias.more", "layers.0.norm", "about", "b"})
    EXPECT_EQ(merged_of(info, name, locals).copies, 2u) << name;
  for (const std::string name : {"x.12.bias", "layers.0.norms", "layersx0.norm", "", "c.a"})
    EXPECT_EQ(merged_of(info, name, locals).copies, 1u) << name;
  EXPECT_NE(error_of({{"tp_replicated_parameter_patterns", {"a.*", ".*b"}}}, "ab", locals).find("\"a.*\" and \".*b\""),
            std::string::npos);
  for (const std::string pattern : {"(?=a)b", R"((a)\1)", "(", "a{,3}", "a++"})
    EXPECT_NE(error_of({{"tp_replicated_parameter_patterns", {pattern}}}, "a", locals).find(pattern), std::string::npos)
        << pattern;
}

TEST(TensorParallel, RefusesWhatItCannotKnow) {
  const std::vector<Shape> locals = {{2}, {2}};
  EXPECT_NE(error_of(nullptr, "any", locals).find("no universal_checkpoint_info"), std::string::npos);
  EXPECT_EQ(error_of(nullptr, "any", {{2}}), "");
  EXPECT_NE(
      error_of({{"autotp_unsupported_parameter_patterns", {{"odd", "heads are dealt out"}}}}, "odd.weight", locals)
          .find("heads are dealt out"),
      std::string::npos);
  EXPECT_NE(error_of({{"universal_checkpoint_version", 0.5}}, "any", locals).find("0.5"), std::string::npos);
  EXPECT_NE(error_of({{"tp_replicated_parameter_patterns", 7}}, "any", locals), "");
  EXPECT_NE(error_of({{"original_vocab_size", -7}}, "any", locals), "");
  EXPECT_NE(error_of(json::array(), "any", locals), "");
  EXPECT_NE(error_of({{"affine_map", {{"version", 2}}}}, "any", locals), "");
  EXPECT_NE(error_of(json::object(), "any", {{1ull << 40, 1ull << 40}, {1}}), "");
}

json piece(json shape, json source, json dest) {
  return {{"shape", shape}, {"source", source}, {"dest", dest}, {"locations", json::array({0})}};
}

json map_of(json shape, json ranks) {
  return {{"affine_map", {{"version", 1}, {"params", {{"w", {{"logical_shape", shape}, {"ranks", ranks}}}}}}}};
}

TEST(TensorParallel, AffineMapsWithPartsThatAllRanksHave) {
  // Rows 0..1 are cut over the ranks, row 2 is everybody's.
  const json info = map_of({3, 2}, {{"0",
                                     {{"shard_shape", {2, 2}},
                                      {"pieces",
                                       {piece({1, 2}, {0, {2, 1}}, {0, {2, 1}}),
                                        piece(json::array({2}), {4, json::array({1})}, {2, json::array({1})})}}}},
                                    {"1",
                                     {{"shard_shape", {2, 2}},
                                      {"pieces",
                                       {piece({1, 2}, {2, {2, 1}}, {0, {2, 1}}),
                                        piece(json::array({2}), {4, json::array({1})}, {2, json::array({1})})}}}}});
  const std::vector<Shape> locals = {{2, 2}, {2, 2}};
  const MergedParameter merged = merged_of(info, "w", locals);
  EXPECT_EQ(merged.copies, 2u);
  EXPECT_EQ(joined(merged, locals, 0, 0), (std::vector<int>{0, 1, 1000, 1001, 2, 3}));
  EXPECT_EQ(joined(merged, locals, 0, 1), (std::vector<int>{0, 1, 1000, 1001, 1002, 1003}));
}

TEST(TensorParallel, AffineMapsThatFoldRowsOrFitNothing) {
  const auto one = [](json pieces) {
    return map_of(
        {4, 2}, {{"0", {{"shard_shape", {2, 2}}, {"pieces", pieces}}},
                 {"1", {{"shard_shape", {2, 2}}, {"pieces", json::array({piece({2, 2}, {4, {2, 1}}, {0, {2, 1}})})}}}});
  };
  const std::vector<Shape> locals = {{2, 2}, {2, 2}};
  // Two rows in one run of four.
  EXPECT_EQ(joined(merged_of(one(json::array({piece(json::array({4}), {0, json::array({1})}, {0, json::array({1})})})),
                             "w", locals),
                   locals),
            (std::vector<int>{0, 1, 2, 3, 1000, 1001, 1002, 1003}));
  EXPECT_NE(error_of(one(json::array({piece({1, 2}, {0, {2, 1}}, {0, {2, 1}})})), "w", locals), "");  // a row short
  EXPECT_NE(error_of(one(json::array({piece({2, 2}, {2, {2, 1}}, {0, {2, 1}})})), "w", locals), "");  // overlaps
  EXPECT_NE(error_of(one(json::array({piece({2, 2}, {0, {1, 2}}, {0, {2, 1}})})), "w", locals), "");  // transposed
  EXPECT_NE(error_of(one(json::array({piece({2, 2}, {7, {2, 1}}, {0, {2, 1}})})), "w", locals), "");  // past the end
  EXPECT_NE(error_of(one(json::array({piece({2, 2}, {0, {2, 1}}, {0, {2, 1}})})), "w", {{2, 2}, {1, 2}}),
            "");  // another shape
  EXPECT_NE(error_of(one(json::array({piece({2, 2}, {0, {2, 1}}, {0, {2, 1}})})), "w", {{2, 2}, {2, 2}, {2, 2}}),
            "no error");
  json scaled = piece({2, 2}, {0, {2, 1}}, {0, {2, 1}});
  scaled["scale"] = 0.5;
  EXPECT_NE(error_of(one(json::array({scaled})), "w", locals).find("scaled"), std::string::npos);
}

}  // namespace
}  // namespace pawl::checkpoint
