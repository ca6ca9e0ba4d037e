#include "checkpoint/formats/megatron/megatron.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/text.h"
#include "checkpoint/formats/fixtures.h"
#include "checkpoint/formats/golden_check.h"
#include "checkpoint/formats/megatron/buckets.h"
#include "checkpoint/formats/megatron/flattened.h"
#include "checkpoint/formats/megatron/made_checkpoint.h"
#include "checkpoint/formats/megatron/parameter_names.h"
#include "checkpoint/reshape/cast.h"
#include "env/temporary_directory.h"

namespace pawl::checkpoint {
namespace {

void write_whole(const std::string& path, std::string_view bytes) {
  Result<std::unique_ptr<File>> file = open_file(path, {.write = true, .create = true, .truncate = true});
  ASSERT_TRUE(file.has_value()) << path;
  ASSERT_TRUE((*file)->write_at(0, std::as_bytes(std::span(bytes))).has_value());
}

// The checkpoint alone, without its golden, under a name that says nothing.
class Copied {
 public:
  explicit Copied(const std::string& fixture) : path(root_.path("x")) {
    const std::string from = join_path(fixture, "iter_0000003");
    EXPECT_TRUE(make_directories(path).has_value());
    Result<std::vector<std::string>> names = real_files().list(from);
    EXPECT_TRUE(names.has_value()) << from;
    for (const std::string& name : names ? *names : std::vector<std::string>())
      write_whole(join_path(path, name), fixtures::content(join_path(from, name)));
  }

 private:
  const TemporaryDirectory root_;

 public:
  std::string path;
};

std::string fact(const CheckpointView& view, const std::string& key) {
  for (const auto& [name, value] : view.facts)
    if (name == key) return value;
  return {};
}

const StoredTensor* find(const CheckpointView& view, const std::string& name, const std::string& role) {
  for (const StoredTensor& tensor : view.tensors)
    if (tensor.name == name && tensor.role == role) return &tensor;
  return nullptr;
}

// Overwrites all elements of a tensor, wherever they lie, with one byte.
void fill(const CheckpointView& view, const StoredTensor& tensor, char byte) {
  for (const StoredPiece& piece : tensor.pieces) {
    ASSERT_EQ(piece.stride, dense_stride(piece.box)) << tensor.name;
    const std::string bytes(volume(piece.box) * size_bits(tensor.type) / 8, byte);
    Result<std::unique_ptr<File>> file = open_file(view.files[piece.file].path, {.write = true});
    ASSERT_TRUE(file.has_value());
    ASSERT_TRUE((*file)->write_at(piece.offset_bytes, std::as_bytes(std::span(bytes))).has_value());
  }
}

struct Fixture {
  std::string name;
  std::size_t tensors;
  std::string optimizer;
};
const std::vector<Fixture> kFixtures = {
    {"J1_mcore_tp2_pp2", 120, "sharded as the model"},
    {"J2_mcore_moe_pp2_ep2", 102, "sharded as the model"},
    {"J3_mcore_distopt_tp2_dp2", 84, "distributed, fully_reshardable"},
    {"J4_mcore_distopt_dp_reshardable", 57, "distributed, dp_reshardable"},
    {"J5_mcore_vp2_pp2", 0, ""},
    {"J6_mcore012_flattened_range", 81, "distributed, fully_sharded_model_space"},
};

// Returns whether the fixture is there.
bool expect_equal(const std::string& set, const Fixture& fixture) {
  const std::string folder = set + "/torch/" + fixture.name;
  if (!path_exists(folder)) return false;
  SCOPED_TRACE(folder);
  const Copied copied(folder);
  Result<CheckpointView> view = view_megatron(copied.path);
  EXPECT_TRUE(view.has_value()) << (view ? "" : view.error().what);
  if (!view) return true;
  const std::size_t compared = fixtures::expect_golden(*view, folder + "/golden.safetensors");
  EXPECT_GE(compared, fixture.tensors);
  EXPECT_GT(compared, 20u);
  EXPECT_EQ(fact(*view, "optimizer"), fixture.optimizer);
  EXPECT_EQ(fact(*view, "step"), "3");
  for (const StoredTensor& tensor : view->tensors) {
    if (tensor.role == "master") {  // fp32 copies of weights that are fp32 here
      const StoredTensor* weight = find(*view, tensor.name, "weight");
      EXPECT_NE(weight, nullptr) << tensor.name;
      fixtures::Contents contents(*view);
      if (weight == nullptr) continue;
      EXPECT_TRUE(fixtures::whole_of(tensor, contents) == fixtures::whole_of(*weight, contents)) << tensor.name;
    }
    if (tensor.role != "exp_avg") continue;
    const StoredTensor* step = find(*view, tensor.name, "step");
    EXPECT_NE(step, nullptr) << tensor.name;
    if (step == nullptr) continue;
    fixtures::Contents contents(*view);
    const float three = 3;
    EXPECT_EQ(fixtures::whole_of(*step, contents), std::string(reinterpret_cast<const char*>(&three), 4));
  }
  return true;
}

TEST(Megatron, SmallCheckpointsEqualTheirGoldensWhateverTheirFolder) {
  int found = 0;
  for (const Fixture& fixture : kFixtures) found += expect_equal(fixtures::small_set(), fixture) ? 1 : 0;
  EXPECT_GE(found, 3);
}

TEST(Megatron, AllCheckpointsEqualTheirGoldensWhateverTheirFolder) {
  PAWL_NEEDS_WHOLE_SET();
  for (const Fixture& fixture : kFixtures) EXPECT_TRUE(expect_equal(fixtures::whole_set(), fixture)) << fixture.name;
}

TEST(Megatron, ShardedObjectsAreListedAndTiedHeadsNamed) {
  const std::string set = fixtures::small_set() + "/torch/";
  Result<CheckpointView> moe = view_megatron(set + "J2_mcore_moe_pp2_ep2/iter_0000003");
  ASSERT_TRUE(moe.has_value()) << moe.error().what;
  EXPECT_TRUE(std::ranges::count(moe->objects, "rng_state/shard_0.0_2.1"));
  EXPECT_TRUE(
      std::ranges::count(moe->objects, "decoder.layers.mlp.experts.experts.linear_fc1._extra_state/shard_1.3_2.4"));
  EXPECT_TRUE(moe->aliases.empty());
  EXPECT_EQ(fact(*moe, "layout"), "tp=1");
  Result<CheckpointView> tied = view_megatron(set + "J4_mcore_distopt_dp_reshardable/iter_0000003");
  ASSERT_TRUE(tied.has_value()) << tied.error().what;
  ASSERT_EQ(tied->aliases.size(), 1u);
  EXPECT_EQ(tied->aliases[0].first, "output_layer.weight");
  EXPECT_EQ(tied->aliases[0].second, "embedding.word_embeddings.weight");
}

TEST(Megatron, KeysNameParametersOfLayersAndExperts) {
  const auto name = [](std::string_view key, bool engine = false) {
    return name_of(parse_megatron_key(key), 7, 3, {engine});
  };
  EXPECT_EQ(name("decoder.layers.mlp.linear_fc2.weight"), "decoder.layers.7.mlp.linear_fc2.weight");
  EXPECT_EQ(name("decoder.layers.12.mlp.linear_fc2.weight"), "decoder.layers.12.mlp.linear_fc2.weight");
  EXPECT_EQ(name("decoder.layers.mlp.experts.experts.linear_fc1.weight"),
            "decoder.layers.7.mlp.experts.local_experts.3.linear_fc1.weight");
  EXPECT_EQ(name("decoder.layers.1.mlp.experts.experts.linear_fc1.weight"),
            "decoder.layers.1.mlp.experts.local_experts.3.linear_fc1.weight");
  EXPECT_EQ(name("decoder.layers.1.mlp.experts.experts.5.linear_fc1.weight_w"),
            "decoder.layers.1.mlp.experts.local_experts.5.linear_fc1.weight_w");
  EXPECT_EQ(name("decoder.layers.self_attention.linear_qkv.layer_norm_bias"), "decoder.layers.7.input_layernorm.bias");
  EXPECT_EQ(name("decoder.layers.self_attention.linear_qkv.layer_norm_bias", true),
            "decoder.layers.7.self_attention.linear_qkv.layer_norm_bias");
  EXPECT_EQ(name("decoder.layers.mlp.linear_fc1.layer_norm_weight"), "decoder.layers.7.pre_mlp_layernorm.weight");
  EXPECT_EQ(name("module.decoder.final_layernorm.weight"), "decoder.final_layernorm.weight");
  EXPECT_EQ(parse_megatron_key("decoder.layers.mlp.experts.experts.linear_fc1.weight").axes(), 2u);
  EXPECT_EQ(parse_megatron_key("decoder.layers.1.mlp.router.weight").axes(), 0u);
  EXPECT_EQ(parse_megatron_key("layers").axes(), 0u);
  EXPECT_EQ(parse_megatron_key("").axes(), 0u);
}

// golden.json has the offsets that the running job had; the reader has none of them.
TEST(Megatron, BucketsArePutWhereTheJobHadThem) {
  const std::string folder = fixtures::small_set() + "/torch/J4_mcore_distopt_dp_reshardable";
  const fixtures::json golden = fixtures::golden(folder);
  const auto& buffer = golden["buffer_layout_per_rank"][0]["buffers"][0]["params"];
  std::vector<std::pair<std::uint64_t, std::string>> order;
  for (const auto& [name, place] : buffer.items()) order.emplace_back(place[0].get<std::uint64_t>(), name);
  std::ranges::sort(order);
  for (std::size_t i = 1; i < order.size(); ++i)  // Megatron's order, by names alone
    EXPECT_GT(order_of(order[i - 1].second), order_of(order[i].second)) << order[i].second;
  Result<CheckpointView> view = view_megatron(folder + "/iter_0000003");
  ASSERT_TRUE(view.has_value()) << view.error().what;
  for (const auto& [begin, name] : order)
    for (const std::string role : {"master", "exp_avg", "exp_avg_sq"})
      EXPECT_NE(find(*view, name, role), nullptr) << name;
}

// Where contents are equal, Megatron's order decides, and a note says so.
TEST(Megatron, EqualParametersInBucketsAreToldApartByTheOrderOfTheModel) {
  const std::string folder = fixtures::small_set() + "/torch/J4_mcore_distopt_dp_reshardable";
  const Copied copied(folder);
  Result<CheckpointView> before = view_megatron(copied.path);
  ASSERT_TRUE(before.has_value()) << before.error().what;
  for (const StoredTensor& tensor : before->tensors)
    if (tensor.name.find("layernorm.") != std::string::npos && tensor.name.find("final") == std::string::npos &&
        (tensor.role == "weight" || tensor.role == "master"))
      fill(*before, tensor, '\0');
  Result<CheckpointView> view = view_megatron(copied.path);
  ASSERT_TRUE(view.has_value()) << view.error().what;
  EXPECT_TRUE(view->problems.empty());
  EXPECT_TRUE(std::ranges::any_of(view->notes, [](const std::string& note) {
    return note.find("Megatron's order told them apart") != std::string::npos;
  }));
  fixtures::Contents was(*before);
  fixtures::Contents is(*view);
  std::size_t compared = 0;
  for (const StoredTensor& tensor : before->tensors) {
    if (tensor.role != "exp_avg" && tensor.role != "exp_avg_sq") continue;
    const StoredTensor* again = find(*view, tensor.name, tensor.role);
    ASSERT_NE(again, nullptr) << tensor.name;
    EXPECT_TRUE(fixtures::whole_of(tensor, was) == fixtures::whole_of(*again, is)) << tensor.name;
    ++compared;
  }
  EXPECT_EQ(compared, 38u);
}

// A copy of the weights that is of no weight: no place is proven, so the optimizer's state is refused.
TEST(Megatron, BucketsThatCantBeProvenAreAProblemAndWeightsStay) {
  const std::string folder = fixtures::small_set() + "/torch/J4_mcore_distopt_dp_reshardable";
  for (const char* name : {"decoder.layers.1.mlp.linear_fc1.weight", "embedding.word_embeddings.weight"}) {
    const Copied copied(folder);
    Result<CheckpointView> before = view_megatron(copied.path);
    ASSERT_TRUE(before.has_value()) << before.error().what;
    const StoredTensor* master = find(*before, name, "master");
    ASSERT_NE(master, nullptr);
    fill(*before, *master, '\x3c');
    Result<CheckpointView> view = view_megatron(copied.path);
    ASSERT_TRUE(view.has_value()) << view.error().what;
    ASSERT_EQ(view->problems.size(), 1u);
    EXPECT_NE(view->problems[0].find("fully_reshardable"), std::string::npos) << view->problems[0];
    EXPECT_NE(view->problems[0].find("is not a parameter"), std::string::npos) << view->problems[0];
    EXPECT_NE(find(*view, name, "weight"), nullptr);
    EXPECT_EQ(find(*view, name, "exp_avg"), nullptr);
  }
}

TEST(Megatron, FlattenedBlocksAreTheirTensors) {
  // [4, 6] on a grid of 2 x 2: blocks of 2 x 3, each flattened; element (i, j, k) by hand.
  StoredTensor grid{"t", "exp_avg", ElementType::float32, {2, 2, 6}};
  for (std::uint64_t block = 0; block < 4; ++block) {  // each cut at 4: uneven
    StoredPiece piece = whole_piece({1, 1, 6}, 0, 100 + block * 24);
    piece.box.begin = {block / 2, block % 2, 0};
    piece.box.size[2] = 4;
    grid.pieces.push_back(piece);
    piece.box.begin[2] = 4;
    piece.box.size[2] = 2;
    piece.offset_bytes += 16;
    grid.pieces.push_back(piece);
  }
  Result<StoredTensor> tensor = unflatten(grid, {4, 6});
  ASSERT_TRUE(tensor.has_value()) << tensor.error().what;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> offsets;
  for (const StoredPiece& piece : tensor->pieces)
    for (std::uint64_t i = 0; i < piece.box.size[0]; ++i)
      for (std::uint64_t j = 0; j < piece.box.size[1]; ++j)
        EXPECT_TRUE(offsets
                        .emplace(std::pair(piece.box.begin[0] + i, piece.box.begin[1] + j),
                                 piece.offset_bytes + 4 * (i * piece.stride[0] + j * piece.stride[1]))
                        .second);
  ASSERT_EQ(offsets.size(), 24u);
  for (const auto& [at, offset] : offsets) {
    const std::uint64_t block = at.first / 2 * 2 + at.second / 3;
    EXPECT_EQ(offset, 100 + block * 24 + 4 * (at.first % 2 * 3 + at.second % 3)) << at.first << ' ' << at.second;
  }
  for (const Shape& wrong : {Shape{24}, Shape{8, 3}, Shape{4, 5}, Shape{3, 8}, Shape{4, 3, 2}, Shape{}})
    EXPECT_FALSE(unflatten(grid, wrong).has_value()) << text_of(wrong);
}

TEST(Megatron, BucketKeysAreTakenApart) {
  const auto key = parse_bucket_key(
      "chained_1.optimizer.distributed.dp_group_idx_3.gbuf_idx_0.dtype_(torch.bfloat16, "
      "torch.float32).bucket_idx_12.exp_avg");
  ASSERT_TRUE(key.has_value());
  EXPECT_EQ(key->buffer,
            "chained_1.optimizer.distributed.dp_group_idx_3.gbuf_idx_0.dtype_(torch.bfloat16, torch.float32)");
  EXPECT_EQ(key->bucket, 12u);
  EXPECT_EQ(key->tensor.role, "exp_avg");
  EXPECT_FALSE(parse_bucket_key("optimizer.state.exp_avg.decoder.final_layernorm.weight").has_value());
  EXPECT_FALSE(parse_bucket_key("dp_group_idx_3.bucket_idx_.param").has_value());
  EXPECT_FALSE(parse_bucket_key("dp_group_idx_3.bucket_idx_4").has_value());
}

TEST(Megatron, OtherBackendsAndVersionsAreRefused) {
  const Copied copied(fixtures::small_set() + "/torch/J1_mcore_tp2_pp2");
  const std::string path = join_path(copied.path, "metadata.json");
  struct Case {
    std::string content;
    Code code;
  };
  for (const auto& [content, code] :
       std::vector<Case>{{R"({"sharded_backend": "zarr", "sharded_backend_version": 1})", Code::invalid},
                         {R"({"sharded_backend": "torch_dist", "sharded_backend_version": 2})", Code::invalid},
                         {R"({"sharded_backend_version": 1})", Code::invalid},
                         {R"({"sharded_backend": "torch_dist")", Code::corrupt},
                         {R"([])", Code::corrupt},
                         {"", Code::corrupt},
                         {R"({"sharded_backend": "torch_dist", "sharded_backend_version": -1})", Code::corrupt}}) {
    write_whole(path, content);
    Result<CheckpointView> view = view_megatron(copied.path);
    ASSERT_FALSE(view.has_value()) << content;
    EXPECT_EQ(view.error().code, code) << content << ": " << view.error().what;
    EXPECT_NE(view.error().what.find("metadata.json"), std::string::npos) << view.error().what;
  }
  write_whole(path, R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, "unknown": {"a": [1]}})");
  EXPECT_TRUE(view_megatron(copied.path).has_value());
  ASSERT_TRUE(real_files().remove(path).has_value());
  Result<CheckpointView> view = view_megatron(copied.path);
  ASSERT_FALSE(view.has_value());
  EXPECT_EQ(view.error().code, Code::not_found);
}

TEST(Megatron, WhatIsMissingIsSaid) {
  const Copied copied(fixtures::small_set() + "/torch/J1_mcore_tp2_pp2");
  ASSERT_TRUE(real_files().remove(join_path(copied.path, "common.pt")).has_value());
  Result<CheckpointView> view = view_megatron(copied.path);
  ASSERT_TRUE(view.has_value()) << view.error().what;
  EXPECT_EQ(fact(*view, "step"), "");
  EXPECT_TRUE(std::ranges::any_of(view->notes, [](const std::string& n) { return n.find("common.pt") != n.npos; }));
  ASSERT_TRUE(real_files().remove(join_path(copied.path, "__2_1.distcp")).has_value());
  view = view_megatron(copied.path);
  EXPECT_TRUE(!view || !view->problems.empty());
  ASSERT_TRUE(real_files().remove(join_path(copied.path, ".metadata")).has_value());
  EXPECT_FALSE(view_megatron(copied.path).has_value());
}

// One flipped bit at a time, in all that is parsed: an answer or an error, and never bytes outside a file.
TEST(Megatron, DamagedFilesNeverCrashTheReader) {
  for (const char* fixture : {"J4_mcore_distopt_dp_reshardable", "J6_mcore012_flattened_range"}) {
    if (!path_exists(fixtures::small_set() + "/torch/" + fixture)) continue;
    const Copied copied(fixtures::small_set() + "/torch/" + fixture);
    for (const auto& [name, step] : std::map<std::string, std::size_t>{{"common.pt", 41}, {".metadata", 1009}}) {
      const std::string path = join_path(copied.path, name);
      std::string bytes = fixtures::content(path);
      for (std::size_t i = 0; i < bytes.size(); i += step) {
        const char was = bytes[i];
        bytes[i] = static_cast<char>(was ^ 1 << (i / step) % 8);
        write_whole(path, bytes);
        Result<CheckpointView> view = view_megatron(copied.path);
        for (const StoredTensor& tensor : view ? view->tensors : std::vector<StoredTensor>())
          for (const StoredPiece& piece : tensor.pieces) ASSERT_LT(piece.file, view->files.size());
        bytes[i] = was;
      }
      write_whole(path, bytes);
    }
  }
}

// --- Checkpoints of any geometry, with values that every element's name and index give.

struct Geometry {
  std::uint64_t tensor_parallel = 1;
  std::uint64_t stages = 1;
  std::uint64_t layers = 2;
  std::uint64_t experts = 0;
  bool gated = true;
  bool tied = false;
  bool own_layers = false;  // each layer has keys of its own, and the halves of a gated fc1 too
  std::string type = "float32";
  std::uint64_t bucket_elements = ~std::uint64_t{0};
  bool gathered = false;  // each buffer is one object
};

struct Parameter {
  std::string name;
  std::string key;
  Shape axes;  // layer, expert: where it is on them
  Shape extents;
  Shape shape;
  int cut = -1;  // dimension
  bool gated = false;
};

float value_of(const std::string& name, const std::string& role, std::uint64_t element) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char letter : name + role + std::to_string(element))
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3;
  return static_cast<float>(static_cast<std::int64_t>(hash >> 24 & 0xfffff) - 0x80000) / 65536.0F;
}

std::string bytes_of(const Parameter& parameter, const std::string& role, const std::string& type,
                     const std::vector<std::uint64_t>& elements) {
  std::string out;
  for (const std::uint64_t element : elements) {
    const float value = value_of(parameter.name, role == "weight" ? "master" : role, element);
    const std::uint16_t half = bfloat16_of(value);
    if (role == "weight" && type == "bfloat16")
      out.append(reinterpret_cast<const char*>(&half), 2);
    else
      out.append(reinterpret_cast<const char*>(&value), 4);
  }
  return out;
}

// Elements that the parts of one tensor-parallel rank have, in the order in which they lie there.
std::vector<std::vector<std::uint64_t>> parts_of(const Parameter& parameter, std::uint64_t rank, std::uint64_t ranks) {
  std::vector<std::vector<std::uint64_t>> out(parameter.gated ? 2 : 1);
  const std::uint64_t columns = parameter.shape.size() == 2 ? parameter.shape[1] : 1;
  const std::uint64_t rows = parameter.shape[0];
  for (std::uint64_t row = 0; row < rows; ++row)
    for (std::uint64_t column = 0; column < columns; ++column) {
      const std::uint64_t at = parameter.cut == 0 ? row : column;
      const std::uint64_t extent = parameter.gated ? rows / 2 : parameter.cut == 0 ? rows : columns;
      if (parameter.cut >= 0 && at % extent / (extent / ranks) != rank) continue;
      out[parameter.gated ? row / extent : 0].push_back(row * columns + column);
    }
  return out;
}

std::vector<Parameter> parameters_of_layer(const Geometry& job, std::uint64_t layer) {
  const std::uint64_t hidden = 12 * job.tensor_parallel;
  const std::uint64_t ffn = 5 * job.tensor_parallel;
  std::vector<Parameter> out;
  const auto add = [&](const std::string& name, const std::string& key, const Shape& shape, int cut,
                       bool gated = false) {
    const std::string before = job.own_layers ? text("decoder.layers.", layer, '.') : "decoder.layers.";
    out.push_back({text("decoder.layers.", layer, '.', name), before + key, {}, {}, shape, cut, gated});
    if (!job.own_layers) {
      out.back().axes = {layer};
      out.back().extents = {job.layers};
    }
  };
  add("input_layernorm.weight", "self_attention.linear_qkv.layer_norm_weight", {hidden}, -1);
  add("self_attention.linear_proj.weight", "self_attention.linear_proj.weight", {hidden, hidden}, 1);
  add("self_attention.linear_qkv.weight", "self_attention.linear_qkv.weight", {2 * hidden, hidden}, 0);
  add("pre_mlp_layernorm.weight", "mlp.linear_fc1.layer_norm_weight", {hidden}, -1);
  if (job.experts != 0) add("mlp.router.weight", "mlp.router.weight", {job.experts, hidden}, -1);
  const auto add_mlp = [&](const std::string& name, const std::string& key) {
    add(name + "linear_fc1.weight", key + "linear_fc1.weight", {job.gated ? 2 * ffn : ffn, hidden}, 0, job.gated);
    add(name + "linear_fc2.weight", key + "linear_fc2.weight", {hidden, ffn}, 1);
  };
  if (job.experts == 0) add_mlp("mlp.", "mlp.");
  for (std::uint64_t expert = 0; expert < job.experts; ++expert) {
    const std::size_t first = out.size();
    const std::string key = job.own_layers ? text("mlp.experts.experts.", expert, '.') : "mlp.experts.experts.";
    add_mlp(text("mlp.experts.local_experts.", expert, '.'), key);
    for (std::size_t i = first; !job.own_layers && i < out.size(); ++i) {
      out[i].axes.push_back(expert);
      out[i].extents.push_back(job.experts);
    }
  }
  return out;
}

std::vector<Parameter> parameters_of_stage(const Geometry& job, std::uint64_t stage) {
  const std::uint64_t hidden = 12 * job.tensor_parallel;
  const Parameter embedding{"embedding.word_embeddings.weight",
                            "embedding.word_embeddings.weight",
                            {},
                            {},
                            {7 * job.tensor_parallel, hidden},
                            0,
                            false};
  std::vector<Parameter> out;
  if (stage == 0) out.push_back(embedding);
  for (std::uint64_t layer = stage * job.layers / job.stages; layer < (stage + 1) * job.layers / job.stages; ++layer)
    for (Parameter& parameter : parameters_of_layer(job, layer)) out.push_back(std::move(parameter));
  if (stage + 1 != job.stages) return out;
  out.push_back({"decoder.final_layernorm.weight", "decoder.final_layernorm.weight", {}, {}, {hidden}, -1, false});
  Parameter output = embedding;
  if (!job.tied) output.name = output.key = "output_layer.weight";
  if (!job.tied || stage != 0) out.push_back(output);
  return out;
}

// Every chunk of a parameter, as the ranks of one stage write them.
void add_weight(const Geometry& job, const Parameter& parameter, fixtures::MadeCheckpoint& made) {
  const std::uint64_t ranks = parameter.cut < 0 ? 1 : job.tensor_parallel;
  for (std::uint64_t rank = 0; rank < ranks; ++rank) {
    const auto parts = parts_of(parameter, rank, ranks);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      Shape whole = parameter.extents;
      Shape offset = parameter.axes;
      Shape shape(parameter.axes.size(), 1);
      std::string key = parameter.key;
      const bool own_half = parameter.gated && job.own_layers;
      if (own_half) key += i == 0 ? "_w" : "_v";
      for (std::size_t d = 0; d < parameter.shape.size(); ++d) {
        const bool is_cut = parameter.cut == static_cast<int>(d);
        const std::uint64_t halves = parameter.gated && d == 0 ? 2 : 1;
        const std::uint64_t half = parameter.shape[d] / halves;
        whole.push_back(own_half && d == 0 ? half : parameter.shape[d]);
        shape.push_back(is_cut ? half / ranks : parameter.shape[d]);
        offset.push_back(is_cut ? rank * (half / ranks) + (own_half ? 0 : i * half) : 0);
      }
      made.add(key, job.type, whole, offset, shape, bytes_of(parameter, "weight", job.type, parts[i]));
    }
  }
}

// The buffers of one tensor-parallel rank of one stage; of its dense parameters, or its experts'.
void add_buffers(const Geometry& job, const std::vector<Parameter>& parameters, std::uint64_t rank,
                 const std::string& buffer, fixtures::MadeCheckpoint& made) {
  std::uint64_t bucket = 0;
  std::map<std::string, std::string> flat;
  const std::vector<std::string> roles = {"param", "exp_avg", "exp_avg_sq"};
  const auto close = [&] {
    if (job.gathered) {
      std::vector<std::pair<std::string, std::string>> tensors(flat.begin(), flat.end());
      made.add_object(buffer + ".param_state/shard_0_1", fixtures::pickled::torch_stream(tensors));
      return;
    }
    for (const std::string& role : roles) {
      const std::string key = text(buffer, ".bucket_idx_", bucket, '.', role);
      const std::uint64_t elements = flat[role].size() / 4;
      const std::uint64_t middle = elements / 2 + 1;  // somewhere inside a parameter
      made.add(key, "float32", {elements}, {0}, {middle}, flat[role].substr(0, middle * 4));
      made.add(key, "float32", {elements}, {middle}, {elements - middle}, flat[role].substr(middle * 4));
    }
    flat.clear();
    ++bucket;
  };
  for (auto parameter = parameters.rbegin(); parameter != parameters.rend(); ++parameter) {
    for (const std::string& role : roles) {
      std::string& bytes = flat[role];
      while (bytes.size() % 256 != 0) bytes += '\x11';  // what lies in gaps means nothing
      for (const auto& part : parts_of(*parameter, rank, parameter->cut < 0 ? 1 : job.tensor_parallel))
        bytes += bytes_of(*parameter, role == "param" ? "master" : role, "float32", part);
    }
    if (flat["param"].size() / 4 >= job.bucket_elements) close();
  }
  if (!flat.empty()) close();
}

void expect_made(const Geometry& job) {
  const TemporaryDirectory root;
  fixtures::MadeCheckpoint made;
  std::map<std::string, Parameter> parameters;
  std::uint64_t group = 0;
  for (std::uint64_t stage = 0; stage < job.stages; ++stage) {
    std::vector<Parameter> dense;
    std::vector<Parameter> experts;
    for (const Parameter& parameter : parameters_of_stage(job, stage)) {
      if (parameters.emplace(parameter.name, parameter).second) add_weight(job, parameter, made);
      (is_expert_name(parameter.name) ? experts : dense).push_back(parameter);
    }
    for (std::uint64_t rank = 0; rank < job.tensor_parallel; ++rank, ++group) {
      const std::string buffer =
          text("optimizer.distributed.dp_group_idx_", group, ".gbuf_idx_0.dtype_(torch.", job.type, ", torch.float32)");
      add_buffers(job, dense, rank, job.experts == 0 ? buffer : "chained_0." + buffer, made);
      if (!experts.empty()) add_buffers(job, experts, rank, "chained_1." + buffer, made);
    }
  }
  made.save(root.path());
  Result<CheckpointView> view = view_megatron(root.path());
  ASSERT_TRUE(view.has_value()) << view.error().what;
  EXPECT_TRUE(view->problems.empty()) << view->problems[0];
  EXPECT_EQ(view->tensors.size(), 4 * parameters.size());
  fixtures::Contents contents(*view);
  for (const auto& [name, parameter] : parameters)
    for (const std::string role : {"weight", "master", "exp_avg", "exp_avg_sq"}) {
      const StoredTensor* tensor = find(*view, name, role);
      ASSERT_NE(tensor, nullptr) << name << '/' << role;
      EXPECT_EQ(tensor->shape, parameter.shape) << name;
      std::uint64_t count = 1;
      for (const std::uint64_t extent : parameter.shape) count *= extent;
      std::vector<std::uint64_t> all(count);
      for (std::uint64_t i = 0; i < count; ++i) all[i] = i;
      EXPECT_TRUE(fixtures::whole_of(*tensor, contents) == bytes_of(parameter, role, job.type, all))
          << name << '/' << role;
    }
}

TEST(Megatron, AnyGeometryOfBucketsIsFound) {
  expect_made({});
  expect_made({.tensor_parallel = 2, .stages = 2, .layers = 4, .tied = true, .type = "bfloat16"});
  expect_made({.tensor_parallel = 3, .stages = 3, .layers = 6, .gated = false, .bucket_elements = 1000});
  expect_made({.tensor_parallel = 2, .layers = 11, .tied = true, .bucket_elements = 1});
  expect_made(
      {.tensor_parallel = 1, .stages = 2, .layers = 2, .experts = 4, .type = "bfloat16", .bucket_elements = 700});
  expect_made({.tensor_parallel = 2, .stages = 1, .layers = 3, .experts = 3, .tied = true});
}

TEST(Megatron, GatheredBuffersAreTakenApartToo) {
  expect_made({.tensor_parallel = 2, .stages = 2, .layers = 4, .tied = true, .gathered = true});
  expect_made({.layers = 3, .experts = 2, .type = "bfloat16", .gathered = true});
}

TEST(Megatron, LayersAndHalvesOfTheirOwnAreTheSameParameters) {
  expect_made({.tensor_parallel = 2, .stages = 2, .layers = 2, .own_layers = true});
  expect_made({.tensor_parallel = 1, .layers = 12, .experts = 2, .own_layers = true, .type = "bfloat16"});
}

TEST(Megatron, ShapesThatLieAreRefusedOrProblems) {
  struct Case {
    Shape whole, offset, shape;
    bool is_read;
  };
  for (const auto& [whole, offset, shape, is_read] :
       std::vector<Case>{{{1ull << 40, 2}, {5, 0}, {1, 2}, true},   // a trillion layers, one of them there
                         {{1ull << 62, 4}, {0, 0}, {1, 2}, false},  // more elements than there can be
                         {{5'000'000}, {0}, {5'000'000}, false},    // so many layers that a piece of each is too much
                         {{2}, {0}, {2}, true},                     // layers without a shape
                         {{}, {}, {}, false},                       // no axis for the layers
                         {{2, 0}, {0, 0}, {2, 0}, true}}) {
    const TemporaryDirectory root;
    fixtures::MadeCheckpoint made;
    std::uint64_t count = 1;
    for (const std::uint64_t extent : shape) count *= extent;
    made.add("decoder.layers.mlp.router.weight", "float32", whole, offset, shape, std::string(count * 4, '\1'));
    made.save(root.path());
    Result<CheckpointView> view = view_megatron(root.path());
    EXPECT_EQ(view.has_value(), is_read) << text_of(whole) << (view ? "" : view.error().what);
    if (!view) continue;
    EXPECT_LE(view->tensors.size(), 2u) << text_of(whole);
    EXPECT_EQ(view->problems.empty(), whole[0] == 2) << text_of(whole);
  }
}

}  // namespace
}  // namespace pawl::checkpoint
