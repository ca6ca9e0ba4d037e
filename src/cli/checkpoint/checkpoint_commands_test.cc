// What inspect, convert, diff and verify decide without touching the world.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "base/text.h"
#include "checkpoint/reshape/cast.h"
#include "cli/checkpoint/convert_plan.h"
#include "cli/checkpoint/layout_report.h"
#include "cli/checkpoint/numbers.h"
#include "cli/checkpoint/portions.h"
#include "cli/checkpoint/progress.h"
#include "cli/checkpoint/text.h"
#include "env/files.h"
#include "env/temporary_directory.h"

namespace pawl::checkpoint {
namespace {

template <class Number>
std::span<const std::byte> bytes_of(const std::vector<Number>& numbers) {
  return std::as_bytes(std::span(numbers));
}

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

NumberDifference compare_floats(const std::vector<float>& a, const std::vector<float>& b, double tolerance = 0) {
  NumberDifference out;
  compare(ElementType::float32, bytes_of(a), ElementType::float32, bytes_of(b), a.size(), 0, tolerance, out);
  return out;
}

TEST(Numbers, FindTheLargestDifference) {
  const NumberDifference found = compare_floats({1, 2, 3, 4}, {1, 2.5, 3, 1});
  EXPECT_EQ(found.compared, 4u);
  EXPECT_EQ(found.differing, 2u);
  EXPECT_EQ(found.largest, 3);
  EXPECT_EQ(found.at, 3u);
  EXPECT_EQ(found.a, 4);
  EXPECT_EQ(found.b, 1);
  const NumberDifference within = compare_floats({1, 2, 3, 4}, {1, 2.5, 3, 1}, 3);
  EXPECT_EQ(within.differing, 0u);
  EXPECT_EQ(within.largest, 3);
  EXPECT_EQ(within.at, 3u);
}

TEST(Numbers, NaNEqualsNaNAndNothingElse) {
  EXPECT_EQ(compare_floats({kNaN, 1}, {kNaN, 1}).differing, 0u);
  const NumberDifference found = compare_floats({1, kNaN, 5}, {1, 2, 5}, 1e9);
  EXPECT_EQ(found.differing, 1u);
  EXPECT_EQ(found.nan_on_one_side, 1u);
  EXPECT_EQ(found.at, 1u);
  EXPECT_EQ(compare_floats({kInfinity}, {kInfinity}).differing, 0u);
  EXPECT_EQ(compare_floats({kInfinity}, {1}, 1e30).largest, kInfinity);
  EXPECT_EQ(compare_floats({kInfinity}, {1}, 1e30).differing, 1u);
}

TEST(Numbers, BitsThatMeanTheSameAreToldApart) {
  const NumberDifference found = compare_floats({0.0f, 1}, {-0.0f, 1});
  EXPECT_EQ(found.differing, 0u);
  EXPECT_EQ(found.bits_only, 1u);
}

TEST(Numbers, CompareAcrossTypes) {
  const std::vector<float> floats = {1.5f, -2, 1e-3f};
  std::vector<std::uint16_t> halves;
  for (const float value : floats) halves.push_back(bfloat16_of(value));
  NumberDifference out;
  compare(ElementType::float32, bytes_of(floats), ElementType::bfloat16, bytes_of(halves), 3, 0, 0, out);
  EXPECT_EQ(out.differing, 1u);
  EXPECT_EQ(out.at, 2u);
  EXPECT_LT(out.largest, 1e-5);
  EXPECT_TRUE(can_compare(ElementType::int64, ElementType::float64));
  EXPECT_FALSE(can_compare(ElementType::complex64, ElementType::float64));
  EXPECT_FALSE(can_compare(ElementType::qint8, ElementType::int8));
  EXPECT_TRUE(can_compare(ElementType::qint8, ElementType::qint8));
}

TEST(Numbers, LargeIntegersAreNotRounded) {
  const std::vector<std::int64_t> a = {INT64_MAX, INT64_MIN}, b = {INT64_MAX - 1, INT64_MIN};
  NumberDifference out;
  compare(ElementType::int64, bytes_of(a), ElementType::int64, bytes_of(b), 2, 0, 0, out);
  EXPECT_EQ(out.differing, 1u);
  EXPECT_EQ(out.largest, 1);
}

TEST(Numbers, UnsignedOnesOfSixtyFourBitsAreNotRounded) {
  const std::vector<std::uint64_t> a = {7, UINT64_MAX}, b = {7, UINT64_MAX - 1};
  NumberDifference out;
  compare(ElementType::uint64, bytes_of(a), ElementType::uint64, bytes_of(b), 2, 10, 0, out);
  EXPECT_EQ(out.differing, 1u);
  EXPECT_EQ(out.largest, 1);
  EXPECT_EQ(out.at, 11u);
}

// What an element is worth, seen by its difference from 0.
template <class Number>
double worth(ElementType type, Number bits) {
  const std::vector<double> zero = {0};
  NumberDifference out;
  compare(type, bytes_of(std::vector<Number>{bits}), ElementType::float64, bytes_of(zero), 1, 0, 0, out);
  EXPECT_EQ(out.differing, 1u);
  return out.a;
}

TEST(Numbers, EveryTypeHasItsWorth) {
  EXPECT_EQ(worth<std::int8_t>(ElementType::int8, -5), -5);
  EXPECT_EQ(worth<std::int16_t>(ElementType::int16, -300), -300);
  EXPECT_EQ(worth<std::int32_t>(ElementType::int32, -70'000), -70'000);
  EXPECT_EQ(worth<std::int64_t>(ElementType::int64, -5'000'000'000), -5e9);
  EXPECT_EQ(worth<std::uint8_t>(ElementType::uint8, 200), 200);
  EXPECT_EQ(worth<std::uint8_t>(ElementType::boolean, 1), 1);
  EXPECT_EQ(worth<std::uint16_t>(ElementType::uint16, 60'000), 60'000);
  EXPECT_EQ(worth<std::uint32_t>(ElementType::uint32, 4'000'000'000), 4e9);
  EXPECT_EQ(worth<std::uint64_t>(ElementType::uint64, std::uint64_t{1} << 63), std::ldexp(1, 63));
  EXPECT_EQ(worth<std::uint16_t>(ElementType::float16, 0xbe00), -1.5);
  EXPECT_EQ(worth<std::uint16_t>(ElementType::bfloat16, 0x3fc0), 1.5);
  EXPECT_EQ(worth<float>(ElementType::float32, 0.25f), 0.25);
}

TEST(Numbers, ComplexOnesDifferInEitherPart) {
  const std::vector<float> a = {1, 2, 3, 4};
  const std::vector<double> b = {1, 2, 3, 4.5};
  NumberDifference out;
  compare(ElementType::complex64, bytes_of(a), ElementType::complex128, bytes_of(b), 2, 0, 0, out);
  EXPECT_EQ(out.compared, 2u);
  EXPECT_EQ(out.differing, 1u);
  EXPECT_EQ(out.at, 1u);
  EXPECT_EQ(out.largest, 0.5);
  const std::vector<std::uint16_t> halves = {0x3c00, 0x4000};  // 1 and 2
  NumberDifference half;
  compare(ElementType::complex32, bytes_of(halves), ElementType::complex64, bytes_of(a), 1, 0, 0, half);
  EXPECT_EQ(half.differing, 0u);
}

TEST(Numbers, WhatHasNoWorthIsComparedAsBytes) {
  const std::vector<std::uint16_t> a = {1, 2, 3, 4}, b = {1, 2, 7, 8};
  NumberDifference out;
  compare(ElementType::bits16, bytes_of(a), ElementType::bits16, bytes_of(b), 4, 100, 1e9, out);
  EXPECT_FALSE(out.is_valued);
  EXPECT_EQ(out.differing, 2u);
  EXPECT_EQ(out.at, 102u);
  EXPECT_EQ(out.largest, 0);
  for (const ElementType type : {ElementType::float4_e2m1fn_x2, ElementType::bits8, ElementType::quint4x2})
    EXPECT_FALSE(can_compare(type, ElementType::float32)) << name_of(type);
}

TEST(Numbers, EightBitFloats) {
  const auto value = [](ElementType type, std::uint8_t bits) {
    const std::vector<std::uint8_t> one = {bits};
    const std::vector<double> zero = {0};
    NumberDifference out;
    compare(type, bytes_of(one), ElementType::float64, bytes_of(zero), 1, 0, 0, out);
    return out.nan_on_one_side != 0 ? std::nan("") : out.a;
  };
  EXPECT_EQ(value(ElementType::float8_e4m3fn, 0x7e), 448);
  EXPECT_TRUE(std::isnan(value(ElementType::float8_e4m3fn, 0xff)));
  EXPECT_EQ(value(ElementType::float8_e4m3fn, 0x01), std::ldexp(1, -9));
  EXPECT_EQ(value(ElementType::float8_e5m2, 0x7b), 57344);
  EXPECT_EQ(value(ElementType::float8_e5m2, 0xfc), -INFINITY);
  EXPECT_TRUE(std::isnan(value(ElementType::float8_e5m2, 0x7d)));
  EXPECT_EQ(value(ElementType::float8_e4m3fnuz, 0x7f), 240);
  EXPECT_TRUE(std::isnan(value(ElementType::float8_e4m3fnuz, 0x80)));
  EXPECT_EQ(value(ElementType::float8_e5m2fnuz, 0x7f), 57344);
  EXPECT_EQ(value(ElementType::float8_e8m0fnu, 130), 8);
}

TEST(Numbers, SpecialOnesAreCounted) {
  SpecialNumbers found;
  count_special(ElementType::float32, bytes_of(std::vector<float>{1, kNaN, kInfinity, -kInfinity}), found);
  EXPECT_EQ(found.nan, 1u);
  EXPECT_EQ(found.infinite, 2u);
  count_special(ElementType::int32, bytes_of(std::vector<std::uint32_t>{0x7fc00000}), found);
  EXPECT_EQ(found.nan, 1u);
}

TEST(Portions, CoverEveryElementOnceWithinTheBudget) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<PortionTensor> tensors;
    std::vector<std::vector<int>> seen;
    for (int i = 0; i < 6; ++i) {
      Shape shape(random() % 4);
      for (std::uint64_t& extent : shape) extent = random() % 9;
      tensors.push_back({ElementType::float32, shape});
      seen.emplace_back(*element_count(shape), 0);
    }
    const std::uint64_t budget = 40 + random() % 400;
    for (const Portion& portion : plan_portions(tensors, budget)) {
      std::uint64_t bytes = 0;
      for (const std::uint32_t tensor : portion.tensors) {
        const Box box = box_of(portion, tensors[tensor].shape);
        bytes += volume(box) * 4;
        for (std::uint64_t i = 0; i < volume(box); ++i) ++seen[tensor][element_of(box, tensors[tensor].shape, i)];
      }
      const bool is_thin = !portion.parts.empty() && portion.parts[portion.part] == 1;
      EXPECT_TRUE(bytes <= budget || is_thin) << bytes << " of " << budget;
    }
    for (const auto& counts : seen)
      for (const int count : counts) ASSERT_EQ(count, 1);
  }
}

// A tensor whose halves lie in the file the other way round, and a small one behind it.
class ReadPortions : public testing::Test {
 protected:
  ReadPortions() {
    std::vector<float> stored;
    for (const int begin : {12, 0})
      for (int i = begin; i < begin + 12; ++i) stored.push_back(static_cast<float>(i));
    std::string bytes(reinterpret_cast<const char*>(stored.data()), stored.size() * sizeof(float));
    bytes += "abc";
    EXPECT_TRUE(write_file_atomically(path, bytes));
    view.files = {{path}};
    StoredPiece late = whole_piece({3, 4}, 0, 0), early = whole_piece({3, 4}, 0, 48);
    late.box.begin[0] = 3;
    view.tensors = {{"small", "weight", ElementType::uint8, {3}, {whole_piece({3}, 0, 96)}},
                    {"large", "weight", ElementType::float32, {6, 4}, {early, late}}};
  }
  const TemporaryDirectory directory;
  const std::string path = directory.path("weights");
  const std::vector<PortionTensor> tensors = {{ElementType::float32, {6, 4}}, {ElementType::uint8, {3}}};
  const std::vector<std::uint32_t> view_index = {1, 0};  // the view has them in another order
  CheckpointView view;
};

TEST_F(ReadPortions, HoldTheElementsThatTheirBoxSays) {
  for (const std::uint64_t budget : {16, 32, 50, 1000}) {
    const PortionReader reader(view);
    std::vector<float> large;
    std::string small;
    for (const Portion& portion : plan_portions(tensors, budget)) {
      std::vector<std::vector<std::byte>> buffers;
      const Status read = reader.read(portion, view_index, buffers, {});
      ASSERT_TRUE(read) << read.error().what;
      ASSERT_EQ(buffers.size(), portion.tensors.size());
      for (std::size_t i = 0; i < buffers.size(); ++i) {
        if (portion.tensors[i] == 1) {
          small.assign(reinterpret_cast<const char*>(buffers[i].data()), buffers[i].size());
          continue;
        }
        const Box box = box_of(portion, tensors[0].shape);
        ASSERT_EQ(buffers[i].size(), volume(box) * sizeof(float));
        for (std::uint64_t k = 0; k < volume(box); ++k) {
          float value = 0;
          std::memcpy(&value, buffers[i].data() + k * sizeof value, sizeof value);
          EXPECT_EQ(value, static_cast<float>(element_of(box, tensors[0].shape, k)));
          large.push_back(value);
        }
      }
    }
    EXPECT_EQ(large.size(), 24u) << budget;
    EXPECT_EQ(small, "abc") << budget;
  }
}

TEST_F(ReadPortions, NameTheTensorOfWhichAPartIsMissing) {
  view.tensors[1].pieces.pop_back();
  const PortionReader reader(view);
  std::vector<std::vector<std::byte>> buffers;
  const auto portions = plan_portions(tensors, 48);
  ASSERT_EQ(portions.size(), 3u);
  EXPECT_TRUE(reader.read(portions[0], view_index, buffers, {}));
  const Status read = reader.read(portions[1], view_index, buffers, {});
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, Code::not_found);
  EXPECT_NE(read.error().what.find("large"), std::string::npos) << read.error().what;
}

TEST(CheckpointText, NamesDoNothingToATerminal) {
  EXPECT_EQ(printable("a\x1b[31m\n\x7f"), "a\\x1b[31m\\x0a\\x7f");
  EXPECT_EQ(printable("schön €"), "schön €");
  EXPECT_EQ(printable("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(printable("\xc2\x9b"), "\\xc2\\x9b");
  EXPECT_EQ(json_text(json{{"a", "\xff"}}), "{\"a\":\"\xef\xbf\xbd\"}");
}

TEST(CheckpointText, SizesAreRead) {
  EXPECT_EQ(parse_bytes("1GiB"), std::uint64_t{1} << 30);
  EXPECT_EQ(parse_bytes("5GB"), 5'000'000'000u);
  EXPECT_EQ(parse_bytes("512 MiB"), 512u << 20);
  EXPECT_EQ(parse_bytes("77"), 77u);
  for (const char* bad : {"", "GiB", "-1", "1.5GiB", "1XB", "99999999999TiB"}) EXPECT_FALSE(parse_bytes(bad)) << bad;
}

TEST(Progress, SaysHowLongItTakes) {
  EXPECT_EQ(bytes_text(17), "17 B");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(duration_text(2.6), "3 s");
  EXPECT_EQ(duration_text(125), "2 min 05 s");
  EXPECT_EQ(duration_text(4020), "1 h 07 min");
  EXPECT_EQ(progress_text("copy", 1 << 30, std::uint64_t{4} << 30, 2, 8),
            "copy [##......] 25 %  1.0 GiB of 4.0 GiB  512.0 MiB/s  6 s left");
  EXPECT_EQ(progress_text("copy", 0, 0, 0, 0), "copy 100 %  0 B of 0 B");
}

CheckpointView small_view() {
  CheckpointView view;
  view.format = "test";
  view.tensors = {{"w", "weight", ElementType::float32, {4}},
                  {"w", "exp_avg", ElementType::float32, {4}},
                  {"w", "step", ElementType::float32, {}},
                  {"n", "weight", ElementType::int64, {2}},
                  {"b", "buffer", ElementType::float32, {3}}};
  view.aliases = {{"tied", "w"}};
  return view;
}

std::vector<std::string> keys_of(const OutputPlan& plan) {
  std::vector<std::string> keys;
  for (const PlannedTensor& tensor : plan.tensors) keys.push_back(tensor.key);
  return keys;
}
using Keys = std::vector<std::string>;

TEST(ConvertPlan, KeysAreNamesAndRoles) {
  ConvertOptions options;
  options.target = "/x/out.safetensors";
  const auto plan = plan_conversion(small_view(), options);
  ASSERT_TRUE(plan) << plan.error().what;
  EXPECT_EQ(keys_of(*plan), (Keys{"w/weight", "w/exp_avg", "w/step", "n/weight", "b/buffer"}));
  ASSERT_EQ(plan->files.size(), 1u);
  EXPECT_EQ(plan->files[0].name, "out.safetensors");
  EXPECT_EQ(plan->data_bytes, 16u + 16 + 4 + 16 + 12);
}

TEST(ConvertPlan, CastsFloatsButNoSteps) {
  ConvertOptions options;
  options.dtype = "bf16";
  const auto plan = plan_conversion(small_view(), options);
  ASSERT_TRUE(plan) << plan.error().what;
  EXPECT_EQ(plan->tensors[0].type, ElementType::bfloat16);
  EXPECT_EQ(plan->tensors[2].type, ElementType::float32);
  EXPECT_EQ(plan->tensors[3].type, ElementType::int64);
  options.dtype = "int8";
  EXPECT_EQ(plan_conversion(small_view(), options).error().code, Code::invalid);
}

TEST(ConvertPlan, HuggingFaceTakesWeightsAndBuffersInFiles) {
  ConvertOptions options;
  options.to = ConvertOptions::To::huggingface;
  options.file_bytes_max = 20;
  const auto plan = plan_conversion(small_view(), options);
  ASSERT_TRUE(plan) << plan.error().what;
  EXPECT_EQ(keys_of(*plan), (Keys{"w", "n", "b"}));
  ASSERT_EQ(plan->files.size(), 4u);
  EXPECT_EQ(plan->files[3].name, "model.safetensors.index.json");
  std::uint64_t all_bytes = 0;
  for (const PlannedFile& file : plan->files) all_bytes += file.size_bytes;
  EXPECT_EQ(plan->all_bytes, all_bytes);
  options.roles = {"weight", "exp_avg"};
  const auto twice = plan_conversion(small_view(), options);
  ASSERT_FALSE(twice);
  EXPECT_NE(twice.error().what.find("tensor w would be there twice"), std::string::npos) << twice.error().what;
}

TEST(ConvertPlan, EveryFormatIsPlannedUnderItsName) {
  std::vector<std::string> names;
  CheckpointView view = small_view();
  for (const ConvertOptions::To to : kTargets) {
    names.emplace_back(name_of(to));
    if (to == ConvertOptions::To::universal) continue;
    ConvertOptions options;
    options.to = to;
    options.target = "/x/out";
    const auto plan = plan_conversion(view, options);
    ASSERT_TRUE(plan) << names.back() << ": " << plan.error().what;
    const bool of_the_model = to == ConvertOptions::To::huggingface;  // the rest takes what an optimizer has, too
    EXPECT_EQ(plan->tensors.size(), of_the_model ? 3u : 5u) << names.back();
    EXPECT_EQ(plan->data_bytes, of_the_model ? 44u : 64u) << names.back();
    EXPECT_EQ(plan->is_folder, to != ConvertOptions::To::safetensors) << names.back();
  }
  EXPECT_EQ(names, (Keys{"safetensors", "huggingface", "dcp", "universal", "atomic", "pawl"}));
  ConvertOptions universal;
  universal.to = ConvertOptions::To::universal;
  EXPECT_EQ(plan_conversion(view, universal).error().code, Code::broken);  // that one is planned with the files at hand
}

TEST(ConvertPlan, AnOptimizersProblemsLetTheModelPass) {
  CheckpointView view;
  view.problems = {text(kOfOptimizerState, ": its numbers have no names"), "a file is missing"};
  ConvertOptions options;
  options.to = ConvertOptions::To::safetensors;
  EXPECT_EQ(problems_for(view, options).size(), 2u);
  options.roles = {"weight", "buffer"};
  EXPECT_EQ(problems_for(view, options), std::vector<std::string>{"a file is missing"});
  options.roles = {"weight", "exp_avg"};
  EXPECT_EQ(problems_for(view, options).size(), 2u);
  options.roles.clear();
  options.to = ConvertOptions::To::huggingface;
  EXPECT_EQ(problems_for(view, options).size(), 1u);
}

TEST(ConvertPlan, NumbersWithoutNamesAreNotConverted) {
  CheckpointView view;
  view.unnamed = {"the optimizer numbers its parameters"};
  ConvertOptions options;
  options.to = ConvertOptions::To::universal;
  EXPECT_EQ(problems_for(view, options), view.unnamed);
  options.roles = {"weight"};
  EXPECT_TRUE(problems_for(view, options).empty());
}

TEST(ConvertPlan, RefusesRolesThatNobodyHas) {
  ConvertOptions options;
  options.roles = {"weight", "momentum"};
  const auto plan = plan_conversion(small_view(), options);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, Code::not_found);
  EXPECT_EQ(plan.error().what, "no tensor has the role momentum; there are: weight, exp_avg, step, buffer");
  EXPECT_FALSE(plan_conversion(CheckpointView(), ConvertOptions()));
}

TEST(Inspect, SaysAllOfIt) {
  CheckpointView view = small_view();
  view.facts = {{"step", "12"}};
  view.objects = {"config"};
  view.problems = {"file x is missing"};
  const std::string text = inspect_text(view, "/some/where", 2);
  for (const char* part : {"/some/where", "step", "exp_avg", "... and 3 tensors more (--all)", "tied: tied = w",
                           "object: config", "PROBLEM: file x is missing"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  const json document = inspect_json(view, "/some/where");
  EXPECT_EQ(document["tensors"].size(), 5u);
  EXPECT_EQ(document["roles"]["weight"]["elements"], 6);
  EXPECT_EQ(document["problems"][0], "file x is missing");
}

CheckpointView small_llama() {
  CheckpointView view;
  const auto add = [&](const std::string& name, Shape shape) {
    view.tensors.push_back({.name = name, .type = ElementType::bfloat16, .shape = shape});
    view.tensors.push_back({.name = name, .role = "exp_avg", .type = ElementType::float32, .shape = shape});
  };
  add("model.embed_tokens.weight", {10, 4});
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    add(layer + "self_attn.q_proj.weight", {4, 4});
    add(layer + "mlp.down_proj.weight", {4, 8});
    add(layer + "input_layernorm.weight", {4});
  }
  add("model.norm.weight", {4});
  add("lm_head.weight", {10, 4});
  return view;
}

TEST(InspectLayout, SaysWhatEachRankHolds) {
  const Result<LayoutReport> report = report_layout(small_llama(), "tp=2,pp=2,dp=2,zero=1", Family::llama);
  ASSERT_TRUE(report) << report.error().what;
  ASSERT_EQ(report->ranks.size(), 8u);
  EXPECT_EQ(report->roles, (std::vector<std::string>{"weight", "exp_avg"}));
  EXPECT_TRUE(report->left_out.empty());
  // Half of the embedding, of q_proj and of down_proj, the whole norm of layer 0: 20 + 8 + 16 + 4 elements.
  EXPECT_EQ(report->ranks[0].bytes[0], 48 * 2u);
  EXPECT_EQ(report->ranks[0].bytes[1], 48 * 4 / 2u);
  // The last stage also has the final norm.
  EXPECT_EQ(report->ranks[7].coordinates, (std::vector<std::uint64_t>{1, 1, 0, 0, 1}));
  EXPECT_EQ(report->ranks[7].bytes[0], 52 * 2u);
  const std::string text = layout_text(*report, 3);
  for (const char* part : {"pp 2 x dp 2 x tp 2", "llama", "RANK  pp  dp  tp  weight", "... and 5 ranks more (--all)"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  const json document = layout_json(*report);
  EXPECT_EQ(document["world"], 8);
  EXPECT_EQ(document["ranks"][7]["coordinates"]["pp"], 1);
  EXPECT_EQ(document["ranks"][7]["roles"]["weight"], 104);
  EXPECT_EQ(document["ranks"][0]["bytes"], 96 + 96);
}

TEST(InspectLayout, NamesWhatCannotBeLaidOut) {
  CheckpointView view = small_llama();
  view.tensors.push_back({.name = "model.strange", .shape = {4}});
  const Result<LayoutReport> report = report_layout(view, "tp=3", Family::llama);
  ASSERT_TRUE(report) << report.error().what;
  ASSERT_EQ(report->left_out.size(), 9u);  // q_proj and down_proj don't divide by three: two layers, two roles
  EXPECT_EQ(report->left_out[0], "tensor model.strange (weight): the rules do not know such a tensor");
  EXPECT_EQ(layout_json(*report)["left_out"].size(), 9u);
  EXPECT_NE(layout_text(*report, std::nullopt).find("LEFT OUT: tensor model.strange"), std::string::npos);
  EXPECT_EQ(report_layout(view, "tp=two", Family::llama).error().code, Code::invalid);
  EXPECT_EQ(report_layout(view, "dp=20000", Family::llama).error().code, Code::invalid);
  EXPECT_EQ(report_layout({}, "tp=2", Family::llama).error().code, Code::not_found);
  CheckpointView nameless;
  nameless.tensors.push_back({.name = "w", .shape = {4}});
  EXPECT_NE(report_layout(nameless, "tp=2", std::nullopt).error().what.find("--family"), std::string::npos);
}

}  // namespace
}  // namespace pawl::checkpoint
