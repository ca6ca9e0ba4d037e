// Keys of dicts in real files of torch.save: each entry keeps a path of its own, and its own elements.
#include "checkpoint/containers/dict_keys.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "checkpoint/formats/fixtures.h"

namespace pawl::checkpoint {
namespace {

TEST(DictKeys, ObjectsOfEveryKindHavePathsOfTheirOwn) {
  const std::string folder = fixtures::small_set() + "/torch/K_keys";
  const fixtures::json golden = fixtures::golden(folder);
  const std::string bytes = fixtures::content(folder + "/keys.pt");
  MemoryBytes source(bytes);
  const Result<TorchFile> file = TorchFile::read(source);
  ASSERT_TRUE(file.has_value()) << file.error().what;
  ASSERT_EQ(file->tensors().size(), golden.size() + 2);
  std::set<std::string> names;
  for (std::size_t i = 0; i < file->tensors().size(); ++i) {
    const TorchTensor& tensor = file->tensors()[i];
    ASSERT_EQ(tensor.path.size(), 2u);
    const std::string& step = tensor.path[1].text;
    EXPECT_TRUE(names.insert(name_of(tensor.path)).second) << step;
    if (i < golden.size() && !golden[i].is_null()) {
      EXPECT_EQ(step, golden[i].get<std::string>());
    }
    const Result<std::string> elements = read_elements(source, *file, tensor, 64);
    ASSERT_TRUE(elements.has_value());
    float first = 0;
    std::memcpy(&first, elements->data(), sizeof first);
    if (i < golden.size()) {
      EXPECT_EQ(first, static_cast<float>(i)) << step;
    }
  }
  EXPECT_EQ(file->tensors()[golden.size()].path[1].text, "bool(False)");
  EXPECT_EQ(file->tensors()[golden.size() + 1].path[1].text, "False");
}

// A string that is there twice: Python keeps the second. Objects of one text: both stay.
TEST(DictKeys, TheLaterOfTwoEqualKeysCounts) {
  static constexpr char kDict[] = "\x80\2}(X\1\0\0\0aK\1X\1\0\0\0aK\2K\3K\4c__main__\nf\nK\5c__main__\nf\nK\6u.";
  const Result<Pickle> pickle = parse_pickle(std::string_view(kDict, sizeof kDict - 1));
  ASSERT_TRUE(pickle.has_value()) << pickle.error().what;
  CopyBudget copies(pickle->source_bytes());
  const KeySteps steps = steps_of_keys(*pickle, pickle->items(pickle->root()), copies).value();
  ASSERT_EQ(steps.size(), 5u);
  EXPECT_FALSE(steps[0]);
  EXPECT_EQ(steps[1]->text, "a");
  EXPECT_EQ(steps[2]->text, "3");
  EXPECT_EQ(steps[3]->text, "__main__.f");
  EXPECT_EQ(steps[4]->text, "__main__.f #4");
}

}  // namespace
}  // namespace pawl::checkpoint
