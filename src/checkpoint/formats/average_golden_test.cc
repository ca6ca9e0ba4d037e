// What DeepSpeed makes of the copies of a tensor-parallel group that may drift apart (parameter_to_average_patterns),
// against cast.h: the copies are read one by one, with no other code of ours that joins them.
#include <gtest/gtest.h>

#include <map>

#include "checkpoint/containers/safetensors.h"
#include "checkpoint/containers/torch_file.h"
#include "checkpoint/formats/fixtures.h"
#include "checkpoint/reshape/cast.h"

namespace pawl::checkpoint {
namespace {

class Averaged : public testing::Test {
 protected:
  const std::string folder_ = fixtures::small_set() + "/deepspeed/pp2_tp2_dp2_bf16";

  std::string golden(const std::string& key) {
    if (golden_bytes_.empty()) golden_bytes_ = fixtures::content(folder_ + "/golden.safetensors");
    MemoryBytes source(golden_bytes_);
    const Result<SafetensorsFile> file = read_safetensors(source);
    EXPECT_TRUE(file) << (file ? "" : file.error().what);
    for (const SafetensorsEntry& entry : file->tensors) {
      if (entry.name == key) return golden_bytes_.substr(entry.offset_bytes, entry.size_bytes);
    }
    ADD_FAILURE() << "no " << key;
    return {};
  }

  // A tensor of one rank's layer file.
  std::string copy_of(const std::string& layer, int rank, const std::string& name) {
    const std::string path =
        folder_ + "/ckpt/global_step3/layer_0" + layer + "-model_0" + std::to_string(rank) + "-model_states.pt";
    const Result<TorchFile> file = TorchFile::open(path);
    const Result<std::unique_ptr<ByteSource>> bytes = open_bytes(path);
    EXPECT_TRUE(file && bytes) << path;
    for (const TorchTensor& tensor : file->tensors()) {
      if (name_of(tensor.path) != name) continue;
      EXPECT_EQ(tensor.type, ElementType::bfloat16);
      const Result<std::string> elements = read_elements(**bytes, *file, tensor, 1 << 20);
      EXPECT_TRUE(elements);
      return *elements;
    }
    ADD_FAILURE() << path << " has no " << name;
    return {};
  }

 private:
  std::string golden_bytes_;
};

const std::byte* bytes_of(const std::string& text) {
  return reinterpret_cast<const std::byte*>(text.data());
}

TEST_F(Averaged, IsTheMeanInItsOwnDtype) {
  int differing = 0;
  for (const std::string key :
       {"2.post_layernorm.weight", "2.post_layernorm.bias", "3.post_layernorm.weight", "3.post_layernorm.bias"}) {
    const std::string first = copy_of(key.substr(0, 1), 0, key.substr(2));
    const std::string second = copy_of(key.substr(0, 1), 1, key.substr(2));
    ASSERT_EQ(first.size(), 40u);
    ASSERT_EQ(second.size(), first.size());
    differing += first != second ? 1 : 0;
    const std::byte* versions[] = {bytes_of(first), bytes_of(second)};
    std::string mean(first.size(), '\0');
    average(ElementType::bfloat16, versions, first.size() / 2, reinterpret_cast<std::byte*>(mean.data()));
    EXPECT_EQ(mean, golden(key + "/weight")) << key;
  }
  EXPECT_EQ(differing, 2);  // else this proves less than it seems
}

// Each role by itself: the weight is the mean of the weights, not the mean of the masters, rounded.
TEST_F(Averaged, WeightIsNotTheRoundedMaster) {
  const std::string weight = golden("2.post_layernorm.bias/weight");
  const std::string master = golden("2.post_layernorm.bias/master");
  std::string rounded(weight.size(), '\0');
  ASSERT_EQ(master.size(), 2 * weight.size());
  (void)cast(ElementType::float32, std::as_bytes(std::span(master)), ElementType::bfloat16,
             std::as_writable_bytes(std::span(rounded)));
  EXPECT_NE(rounded, weight);
}

}  // namespace
}  // namespace pawl::checkpoint
