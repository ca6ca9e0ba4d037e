// How the work of an output is cut over workers, and that what they write together is what one writes alone.
#include "checkpoint/output/output_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "base/text.h"
#include "checkpoint/formats/huggingface/safetensors_writer.h"
#include "checkpoint/output/partial_output.h"
#include "checkpoint/output/worker_meeting.h"
#include "checkpoint/reshape/range_checksums.h"
#include "env/files.h"
#include "env/temporary_directory.h"
#include "tensor/tiling.h"

namespace pawl::checkpoint {
namespace {

struct Case {
  CheckpointView view;
  OutputPlan plan;
};

constexpr ElementType kTypes[] = {ElementType::uint8,    ElementType::bfloat16,     ElementType::float32,
                                  ElementType::float64,  ElementType::boolean,      ElementType::float4_e2m1,
                                  ElementType::bfloat16, ElementType::float8_e4m3fn};

// A few files of tensors of any size, in any order of the plan, at places that are no multiples of anything.
Case random_case(std::mt19937_64& random) {
  const auto below = [&](std::uint64_t end) { return random() % end; };
  Case made;
  const std::uint64_t files = 1 + below(4), scale = std::uint64_t{1} << below(12);
  std::vector<std::uint64_t> at(files);
  for (std::uint64_t& offset : at) offset = below(200);
  for (std::uint64_t i = 0, count = 1 + below(40); i < count; ++i) {
    StoredTensor tensor;
    tensor.name = text("t", i);
    tensor.type = kTypes[below(std::size(kTypes))];
    for (std::uint64_t d = 0, dimensions = below(4); d < dimensions; ++d)
      tensor.shape.push_back(below(d == 0 ? scale : 40));
    if (tensor.type == ElementType::float8_e4m3fn) tensor.shape = {below(3000), 1 + below(300)};
    if (size_bits(tensor.type) % 8 != 0) tensor.shape.push_back(2 * (1 + below(4)));
    std::uint64_t elements = 1;
    for (const std::uint64_t extent : tensor.shape) elements *= extent;
    PlannedTensor planned;
    planned.tensor = static_cast<std::uint32_t>(i);
    planned.type = tensor.type;
    planned.size_bytes = *size_bytes(tensor.type, elements);
    planned.file = static_cast<std::uint32_t>(below(files));
    planned.offset_bytes = at[planned.file];
    at[planned.file] += planned.size_bytes + (below(3) == 0 ? below(100'000) : 0);
    made.plan.data_bytes += planned.size_bytes;
    made.plan.tensors.push_back(planned);
    if (tensor.type == ElementType::float8_e4m3fn && elements != 0) {
      StoredTensor scales;
      scales.name = tensor.name + "_scale_inv";
      scales.scales = {tensor.name, {1 + below(16), 1 + below(16)}};
      made.view.tensors.push_back(tensor);
      std::swap(made.view.tensors.back(), tensor);
      tensor = scales;
    }
    made.view.tensors.push_back(tensor);
    made.plan.tensors.back().tensor = static_cast<std::uint32_t>(made.view.tensors.size() - 1);
    if (!tensor.scales.payload.empty()) --made.plan.tensors.back().tensor;
  }
  made.plan.files.resize(files);
  std::shuffle(made.plan.tensors.begin(), made.plan.tensors.end(), random);
  return made;
}

TEST(OutputShares, TileEveryTensorExactlyAndAreAlikeInSize) {
  std::mt19937_64 random(20261122);
  for (int round = 0; round < 3000; ++round) {
    const Case made = random_case(random);
    const auto workers = static_cast<std::uint32_t>(1 + random() % 9);
    const std::vector<OutputShare> shares = cut_output(made.plan, made.view, workers);
    ASSERT_EQ(shares.size(), workers);
    std::map<std::uint32_t, std::vector<std::pair<std::uint64_t, std::uint64_t>>> held;
    const std::uint64_t unit = cut_unit_max(made.plan, made.view), even = made.plan.data_bytes / workers;
    std::uint64_t sum = 0;
    for (const OutputShare& share : shares) {
      std::uint64_t bytes = 0;
      for (const TensorStretch& stretch : share.stretches) {
        ASSERT_LT(stretch.begin, stretch.end) << "round " << round;
        held[stretch.tensor].emplace_back(stretch.begin, stretch.end);
        bytes += *size_bytes(made.plan.tensors[stretch.tensor].type, stretch.end - stretch.begin);
      }
      ASSERT_EQ(bytes, share.bytes);
      ASSERT_LE(bytes, even + unit) << "round " << round;
      ASSERT_LE(even, bytes + unit) << "round " << round;
      sum += bytes;
    }
    ASSERT_EQ(sum, made.plan.data_bytes);
    for (std::uint32_t i = 0; i < made.plan.tensors.size(); ++i) {
      const PlannedTensor& planned = made.plan.tensors[i];
      std::uint64_t at = 0;
      std::ranges::sort(held[i]);
      for (const auto& [begin, end] : held[i]) {
        ASSERT_EQ(begin, at) << "round " << round;
        at = end;
      }
      ASSERT_EQ(*size_bytes(planned.type, at), planned.size_bytes) << "round " << round;
    }
    ASSERT_TRUE(std::ranges::equal(cut_output(made.plan, made.view, workers), shares, {}, &OutputShare::stretches,
                                   &OutputShare::stretches));
  }
}

TEST(OutputShares, AreCutWhereThatIsSound) {
  std::mt19937_64 random(7);
  std::size_t pages = 0, blocks = 0;
  for (int round = 0; round < 3000; ++round) {
    const Case made = random_case(random);
    for (const OutputShare& share : cut_output(made.plan, made.view, 5))
      for (const TensorStretch& stretch : share.stretches) {
        if (stretch.begin == 0) continue;
        const PlannedTensor& planned = made.plan.tensors[stretch.tensor];
        const StoredTensor& tensor = made.view.tensors[planned.tensor];
        ASSERT_EQ(size_bits(tensor.type) % 8, 0u) << "a packed tensor was cut";
        const StoredTensor* scales = planned.tensor + 1 < made.view.tensors.size() ? &tensor + 1 : nullptr;
        if (scales != nullptr && scales->scales.payload == tensor.name) {
          ASSERT_EQ(stretch.begin % (scales->scales.block[0] * tensor.shape[1]), 0u) << "within a block";
          ++blocks;
        } else {
          const std::uint64_t element = size_bits(tensor.type) / 8;
          const std::uint64_t at = planned.offset_bytes + stretch.begin * element;
          ASSERT_LT(at % kCutPageBytes == 0 ? 0 : kCutPageBytes - at % kCutPageBytes, element) << "not at a page";
          ++pages;
        }
      }
  }
  EXPECT_GT(pages, 100u);
  EXPECT_GT(blocks, 10u);
}

TEST(OutputShares, OneTensorIsCutOverAllWorkers) {
  Case made;
  made.view.tensors.push_back({"w", "weight", ElementType::float32, {1, 1024, 1024, 16}});
  made.plan.tensors.push_back({0, "w", ElementType::float32, 0, 4096, 64 << 20});
  made.plan.data_bytes = 64 << 20;
  made.plan.files.resize(1);
  for (const OutputShare& share : cut_output(made.plan, made.view, 64)) {
    EXPECT_EQ(share.stretches.size(), 1u);
    EXPECT_NEAR(static_cast<double>(share.bytes), 1 << 20, kCutPageBytes);
  }
}

TEST(OutputShares, ThingsThatAreNotCutAreSharedInOrder) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::uint64_t> bytes(random() % 30);
    for (std::uint64_t& size : bytes) size = random() % 100;
    const auto workers = static_cast<std::uint32_t>(1 + random() % 8);
    const std::vector<std::size_t> cuts = cut_in_order(bytes, workers);
    ASSERT_EQ(cuts.size(), workers + 1u);
    ASSERT_EQ(cuts.front(), 0u);
    ASSERT_EQ(cuts.back(), bytes.size());
    const double all = static_cast<double>(std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0}));
    const double largest = bytes.empty() ? 0 : static_cast<double>(*std::ranges::max_element(bytes));
    for (std::uint32_t k = 0; k < workers; ++k) {
      ASSERT_LE(cuts[k], cuts[k + 1]);
      std::uint64_t sum = 0;
      for (std::size_t i = cuts[k]; i < cuts[k + 1]; ++i) sum += bytes[i];
      ASSERT_NEAR(static_cast<double>(sum), all / workers, largest + 2);
    }
  }
}

TEST(OutputShares, DigestTellsPlansApart) {
  std::mt19937_64 random(11);
  Case made;
  do made = random_case(random);
  while (made.plan.tensors.size() < 5);
  std::set<std::string> digests = {digest_of(made.view, made.plan, "")};
  EXPECT_EQ(digest_of(made.view, made.plan, ""), *digests.begin());
  digests.insert(digest_of(made.view, made.plan, "other files"));
  Case other = made;
  other.plan.tensors[3].offset_bytes += 1;
  digests.insert(digest_of(other.view, other.plan, ""));
  other = made;
  other.plan.files[0].texts.push_back({0, "head"});
  digests.insert(digest_of(other.view, other.plan, ""));
  other = made;
  other.view.tensors[2].name += "x";
  digests.insert(digest_of(other.view, other.plan, ""));
  other = made;
  other.view.tensors[2].pieces.push_back(whole_piece({2}, 0, 8));
  digests.insert(digest_of(other.view, other.plan, ""));
  EXPECT_EQ(digests.size(), 6u);
}

// --- Real files.

class SharedFiles : public testing::Test {
 protected:
  void SetUp() override {
    std::mt19937_64 random(5);
    bytes_.resize((3 << 20) + 4 * 1001);
    for (char& byte : bytes_) byte = static_cast<char>(random());
    ASSERT_TRUE(write_file_atomically(at("source"), bytes_));
    view_.files.push_back({at("source")});
    view_.tensors.push_back({"small", "weight", ElementType::float32, {7, 11, 13}, {whole_piece({7, 11, 13}, 0, 0)}});
    view_.tensors.push_back(
        {"large", "weight", ElementType::float32, {3, 512, 512}, {whole_piece({3, 512, 512}, 0, 4 * 1001)}});
    auto plan = plan_safetensors(view_, {});
    ASSERT_TRUE(plan) << plan.error().what;
    plan_ = std::move(*plan);
    // Its checksum as a text of its own: what zip archives do.
    PlannedFile& file = plan_.files[0];
    for (const PlannedTensor& tensor : plan_.tensors) file.checked.push_back({tensor.offset_bytes, tensor.size_bytes});
    std::ranges::sort(file.checked, {}, &PlannedRange::offset_bytes);
    const std::uint64_t end = file.size_bytes;
    file.size_bytes += 8;
    plan_.all_bytes += 8;
    file.finish = [end](const RangeChecksums& sums) {
      std::string words(8, '\0');
      for (std::size_t i = 0; i < 2; ++i) {
        const std::uint32_t sum = sums.value_at(i);
        std::memcpy(words.data() + 4 * i, &sum, 4);
      }
      return std::vector<PlannedText>{{end, words}};
    };
  }
  [[nodiscard]] std::string at(const std::string& name) const { return folder_.path(name); }

  // By so many workers, one after another, each as if in a process of its own; what then is in the file.
  std::string written(std::uint32_t workers) {
    const std::string target = at(text("out", workers));
    PartialOptions options = partial_options(plan_, false);
    options.attempt = workers == 1 ? "" : new_nonce();
    auto output = PartialOutput::begin(target, options);
    EXPECT_TRUE(output) << output.error().what;
    const auto paths = make_files(plan_, *output);
    EXPECT_TRUE(paths) << paths.error().what;
    std::vector<ShareReport> reports;
    for (const OutputShare& share : cut_output(plan_, view_, workers)) {
      OutputOptions how;
      how.execution.memory_bytes = 1 << 20;
      auto report = write_share(plan_, view_, share, *paths, how);
      EXPECT_TRUE(report) << report.error().what;
      reports.push_back(*report);
    }
    auto missing = reports;
    if (workers > 1) {
      missing.pop_back();
      EXPECT_EQ(finish_files(plan_, missing, *paths).error().code, Code::corrupt);
    }
    const Status finished = finish_files(plan_, reports, *paths);
    EXPECT_TRUE(finished) << finished.error().what;
    EXPECT_FALSE(path_exists(target));
    const Status published = output->publish();
    EXPECT_TRUE(published) << published.error().what;
    EXPECT_FALSE(path_exists(partial_folder(target)));
    return *read_file(target);
  }

  const TemporaryDirectory folder_;
  std::string bytes_;
  CheckpointView view_;
  OutputPlan plan_;
};

TEST_F(SharedFiles, AreTheSameBytesForAnyNumberOfWorkers) {
  const std::string alone = written(1);
  ASSERT_GT(alone.size(), bytes_.size());
  for (const PlannedTensor& tensor : plan_.tensors) {
    const std::uint64_t from = view_.tensors[tensor.tensor].pieces[0].offset_bytes;
    EXPECT_TRUE(alone.substr(tensor.offset_bytes, tensor.size_bytes) == bytes_.substr(from, tensor.size_bytes));
  }
  for (std::size_t i = 0; i < 2; ++i) {
    const PlannedRange& range = plan_.files[0].checked[i];
    std::uint32_t sum = 0;
    std::memcpy(&sum, alone.data() + alone.size() - 8 + 4 * i, 4);
    EXPECT_EQ(sum, checksum(ChecksumKind::crc32,
                            std::as_bytes(std::span(alone).subspan(range.offset_bytes, range.size_bytes))));
  }
  for (const std::uint32_t workers : {2, 3, 5, 40}) EXPECT_TRUE(written(workers) == alone) << workers << " workers";
}

}  // namespace
}  // namespace pawl::checkpoint
