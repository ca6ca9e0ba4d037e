#include "checkpoint/store/store_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "checkpoint/containers/safetensors.h"
#include "checkpoint/formats/native/store_manifest.h"
#include "checkpoint/store/store_test_kit.h"

namespace pawl::checkpoint {
namespace {

// Writes the parts, one after another, and publishes them.
Status save(const std::string& path, const std::vector<std::vector<StorePiece>>& parts,
            const StoreOptions& options = {}, const StorePublishOptions& publish = {}) {
  PAWL_ASSIGN(StoreFolder folder, StoreFolder::begin(path, options));
  std::vector<std::string> shares;
  for (std::uint32_t i = 0; i < parts.size(); ++i) {
    PAWL_ASSIGN(std::string share, write_store_part(folder.folder(), i, parts[i], small_options()));
    shares.push_back(std::move(share));
  }
  return folder.publish(shares, publish);
}

std::string what(const Status& status) {
  return status ? "" : status.error().what;
}

std::vector<std::string> names_in(const std::string& path) {
  return real_files().list(path).value_or({});
}

std::string content_of(const std::string& path) {
  const Result<std::string> content = read_file(path, std::uint64_t{1} << 30);
  EXPECT_TRUE(content.has_value()) << path;
  return content ? *content : "";
}

void set_content(const std::string& path, std::string_view content) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << content;
  ASSERT_TRUE(out.good());
}

// Tensors as ranks hold them: cut by rows, by columns, strided, scalars, of types that safetensors lacks, of nothing.
class State {
 public:
  [[nodiscard]] std::vector<std::vector<StorePiece>> parts() const {
    const Shape matrix = {130, 70};
    const Shape small = {3, 2};
    std::vector<StorePiece> first = {
        piece_of("layer.weight", "weight", ElementType::bfloat16, matrix, box_of({0, 0}, {130, 33}), weight),
        piece_of("layer.weight", "exp_avg", ElementType::float32, matrix, box_of({0, 0}, {41, 70}), average),
        whole_of("layer.weight", "step", ElementType::float32, {}, step),
        whole_of("signs \"quoted\"\\", "buffer", ElementType::boolean, {7}, signs),
        piece_of("nothing", "weight", ElementType::float32, {0, 4}, box_of({0, 0}, {0, 4}), {}),
        piece_of("waves", "weight", ElementType::complex128, small, box_of({0, 0}, {0, 2}), waves),
    };
    std::vector<StorePiece> second = {
        piece_of("layer.weight", "weight", ElementType::bfloat16, matrix, box_of({0, 33}, {130, 37}), weight),
        piece_of("layer.weight", "exp_avg", ElementType::float32, matrix, box_of({100, 0}, {30, 70}), average),
        piece_of("layer.weight", "exp_avg", ElementType::float32, matrix, box_of({41, 0}, {59, 70}), average),
        whole_of("waves", "weight", ElementType::complex128, small, waves),
        turned_piece(),
    };
    return {first, second};
  }

  // A matrix whose memory is column-major: rows of what is stored are strided.
  [[nodiscard]] StorePiece turned_piece() const {
    StorePiece piece = whole_of("turned", "weight", ElementType::int32, {5, 9}, turned);
    piece.stride_bytes = {4, 20};
    return piece;
  }

  void expect_in(const CheckpointView& view) const {
    const auto expect = [&](std::string_view name, std::string_view role, const Bytes& bytes) {
      const StoredTensor* tensor = find(view, name, role);
      ASSERT_NE(tensor, nullptr) << name;
      const Result<Bytes> loaded = load(view, static_cast<std::uint32_t>(tensor - view.tensors.data()));
      ASSERT_TRUE(loaded.has_value()) << loaded.error().what;
      EXPECT_EQ(*loaded, bytes) << name << " " << role;
    };
    expect("layer.weight", "weight", weight);
    expect("layer.weight", "exp_avg", average);
    expect("layer.weight", "step", step);
    expect("signs \"quoted\"\\", "buffer", signs);
    expect("nothing", "weight", {});
    expect("waves", "weight", waves);
    Bytes straight(turned.size());
    for (std::size_t row = 0; row < 5; ++row)
      for (std::size_t column = 0; column < 9; ++column)
        std::memcpy(&straight[(row * 9 + column) * 4], &turned[(column * 5 + row) * 4], 4);
    expect("turned", "weight", straight);
  }

  Bytes weight = pattern(130 * 70 * 2, 1);
  Bytes average = pattern(130 * 70 * 4, 2);
  Bytes step = pattern(4, 3);
  Bytes signs = pattern(7, 4);
  Bytes waves = pattern(6 * 16, 5);
  Bytes turned = pattern(45 * 4, 6);
};

TEST(StoreFolder, GivesBackWhatRanksWrote) {
  const TemporaryDirectory folder;
  const State state;
  const std::string path = folder.path("step-100");
  const StorePublishOptions publish{R"({"step": 100, "groups": [{"lr": 1e-3}]})", {{"head.weight", "layer.weight"}}};
  const Status saved = save(path, state.parts(), {}, publish);
  ASSERT_TRUE(saved.has_value()) << what(saved);
  EXPECT_FALSE(path_exists(path + kPartialSuffix));
  EXPECT_EQ(*real_files().list(path), (std::vector<std::string>{"committed", "data-00000.safetensors",
                                                                "data-00001.safetensors", "manifest.json"}));

  Result<CheckpointView> view = open_checkpoint(path);
  ASSERT_TRUE(view.has_value()) << view.error().what;
  EXPECT_EQ(view->format, "pawl");
  EXPECT_EQ(view->values, publish.values);
  EXPECT_EQ(view->aliases, publish.aliases);
  EXPECT_EQ(view->tensors.size(), 7u);
  std::vector<std::uint64_t> sizes;
  for (const StoredFile& file : view->files) sizes.push_back(content_of(file.path).size());
  const Status checked = check_view(*view, sizes);
  EXPECT_TRUE(checked.has_value()) << what(checked);
  EXPECT_TRUE(view->problems.empty());
  state.expect_in(*view);

  const Result<StoreProof> proof = prove_store(path);
  ASSERT_TRUE(proof.has_value()) << proof.error().what;
  EXPECT_TRUE(proof->wrong.empty());
  EXPECT_EQ(proof->records, 2u + 9u);  // headers and pieces
  EXPECT_EQ(proof->bytes, sizes[0] + sizes[1]);
}

TEST(StoreFolder, IsOpenedByItsParentFolderWhileAnotherSaveIsGoingOn) {
  const TemporaryDirectory folder;
  const State state;
  ASSERT_TRUE(save(folder.path("one"), state.parts()));
  const Result<StoreFolder> going = StoreFolder::begin(folder.path("two"));
  ASSERT_TRUE(going.has_value());
  ASSERT_TRUE(write_store_part(going->folder(), 0, state.parts()[0], small_options()));
  const Result<CheckpointView> view = open_checkpoint(folder.path());
  ASSERT_TRUE(view.has_value()) << view.error().what;
  state.expect_in(*view);
  const Result<CheckpointView> unfinished = open_checkpoint(going->folder());
  ASSERT_FALSE(unfinished.has_value());
  EXPECT_EQ(unfinished.error().code, Code::not_found);
  EXPECT_NE(unfinished.error().what.find("the save did not end"), std::string::npos) << unfinished.error().what;
}

TEST(StoreFolder, HasDataFilesThatAnyReaderOfSafetensorsTakes) {
  const TemporaryDirectory folder;
  const State state;
  ASSERT_TRUE(save(folder.path("c"), state.parts()));
  const Result<CheckpointView> file = view_safetensors(folder.path("c/data-00001.safetensors"));
  ASSERT_TRUE(file.has_value()) << file.error().what;
  const StoredTensor* rows = find(*file, "layer.weight/exp_avg[41:100,0:70]", "weight");
  ASSERT_NE(rows, nullptr);
  EXPECT_EQ(rows->shape, (Shape{59, 70}));
  const Result<Bytes> loaded = load(*file, static_cast<std::uint32_t>(rows - file->tensors.data()));
  ASSERT_TRUE(loaded.has_value());
  EXPECT_EQ(*loaded, Bytes(state.average.begin() + 41 * 70 * 4, state.average.begin() + 100 * 70 * 4));
  EXPECT_NE(find(*file, "turned/weight", "weight"), nullptr);
}

TEST(StoreFolder, WritesEqualBytesForEqualPieces) {
  const TemporaryDirectory folder;
  const State state;
  ASSERT_TRUE(save(folder.path("a"), state.parts()));
  ASSERT_TRUE(save(folder.path("b"), state.parts()));
  for (const std::string& name : names_in(folder.path("a")))
    EXPECT_EQ(content_of(folder.path("a/" + name)), content_of(folder.path("b/" + name))) << name;
}

TEST(StoreFolder, TakesPartsWithoutPiecesAndEmptyCheckpoints) {
  const TemporaryDirectory folder;
  const State state;
  std::vector<std::vector<StorePiece>> parts = state.parts();
  parts.emplace_back();
  ASSERT_TRUE(save(folder.path("a"), parts));
  const Result<CheckpointView> view = open_checkpoint(folder.path("a"));
  ASSERT_TRUE(view.has_value());
  state.expect_in(*view);
  ASSERT_TRUE(save(folder.path("b"), {}));
  EXPECT_TRUE(open_checkpoint(folder.path("b"))->tensors.empty());
}

// Of the same box in several parts.
TEST(StoreFolder, KeepsTheFirstOfEqualBoxesWhereThatIsAllowed) {
  const TemporaryDirectory folder;
  const Bytes first = pattern(24, 1), second = pattern(24, 2), scalar = pattern(4, 3);
  const auto part = [&](const Bytes& whole) {
    return std::vector<StorePiece>{
        piece_of("rows", "weight", ElementType::float32, {3, 2}, box_of({0, 0}, {1, 2}), first),
        piece_of("rows", "weight", ElementType::float32, {3, 2}, box_of({1, 0}, {2, 2}), first),
        whole_of("mean", "buffer", ElementType::float32, {6}, whole),
        whole_of("step", "step", ElementType::float32, {}, scalar)};
  };
  StorePublishOptions publish;
  const Status refused = save(folder.path("a"), {part(first), part(first)}, {}, publish);
  ASSERT_FALSE(refused.has_value()) << "nobody allowed it";
  EXPECT_EQ(refused.error().code, Code::invalid);
  publish.equal_boxes = EqualBoxes::keep_first;
  const Status equal = save(folder.path("b"), {part(first), part(first)}, {}, publish);
  EXPECT_TRUE(equal.has_value()) << what(equal);
  const Status differs = save(folder.path("c"), {part(first), part(second)}, {}, publish);
  ASSERT_FALSE(differs.has_value());
  EXPECT_NE(differs.error().what.find("mean (buffer), [6] at [0]"), std::string::npos) << differs.error().what;
  EXPECT_EQ(differs.error().what.find("rows"), std::string::npos) << differs.error().what;
  EXPECT_FALSE(path_exists(folder.path("c")));
  publish.may_differ = {{"mean", "buffer"}};
  const Status allowed = save(folder.path("d"), {part(first), part(second)}, {}, publish);
  ASSERT_TRUE(allowed.has_value()) << what(allowed);
  const Result<CheckpointView> view = open_checkpoint(folder.path("d"));
  ASSERT_TRUE(view.has_value()) << view.error().what;
  const StoredTensor* mean = find(*view, "mean", "buffer");
  ASSERT_NE(mean, nullptr);
  EXPECT_EQ(mean->pieces.size(), 1u);
  EXPECT_EQ(*load(*view, static_cast<std::uint32_t>(mean - view->tensors.data())), first);
}

// Equal boxes, no others: what overlaps in part has no first.
TEST(StoreFolder, RefusesBoxesThatOverlapInPartAllTheSame) {
  const TemporaryDirectory folder;
  const Bytes bytes = pattern(24, 1);
  const auto rows = [&](std::uint64_t begin, std::uint64_t count) {
    return std::vector<StorePiece>{
        piece_of("rows", "weight", ElementType::float32, {3, 2}, box_of({begin, 0}, {count, 2}), bytes)};
  };
  StorePublishOptions publish;
  publish.equal_boxes = EqualBoxes::keep_first;
  publish.may_differ = {{"rows", "weight"}};
  const Status refused = save(folder.path("a"), {rows(0, 2), rows(1, 2)}, {}, publish);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Code::invalid);
  EXPECT_NE(refused.error().what.find("rows"), std::string::npos) << refused.error().what;
}

TEST(StoreFolder, RefusesPiecesThatCannotBe) {
  const TemporaryDirectory folder;
  const Bytes bytes = pattern(64, 1);
  const Result<StoreFolder> save = StoreFolder::begin(folder.path("c"));
  ASSERT_TRUE(save.has_value());
  std::uint32_t part = 0;
  const auto expect_refused = [&](const std::vector<StorePiece>& pieces, std::string_view why) {
    const Result<std::string> share = write_store_part(save->folder(), part++, pieces, small_options());
    ASSERT_FALSE(share.has_value()) << why;
    EXPECT_EQ(share.error().code, Code::invalid) << share.error().what;
    EXPECT_NE(share.error().what.find(why), std::string::npos) << share.error().what;
  };
  const StorePiece good = whole_of("a", "weight", ElementType::float32, {4, 4}, bytes);
  StorePiece bad = good;
  bad.box.begin[1] = 1;
  expect_refused({bad}, "piece of a (weight)");
  bad = good;
  bad.box.dimensions = 1;
  expect_refused({bad}, "number of dimensions");
  bad = good;
  bad.stride_bytes[0] = 18;
  expect_refused({bad}, "not a multiple of an element");
  bad = good;
  bad.memory = nullptr;
  expect_refused({bad}, "no memory");
  bad = good;
  bad.name = "\xff";
  expect_refused({bad}, "UTF-8");
  bad = good;
  bad.type = ElementType::float6_e3m2;
  expect_refused({bad}, "four or six bits");
  expect_refused({good, good}, "twice");
  bad = good;
  bad.shape = {5, 4};
  expect_refused({good, bad}, "float32 [4,4] of one part and float32 [5,4]");
  ASSERT_TRUE(write_store_part(save->folder(), 50, {&good, 1}, small_options()));
  part = 50;
  expect_refused({good}, "data-00050.safetensors");  // it is there
  EXPECT_EQ(write_store_part(folder.path("elsewhere"), 0, {&good, 1}, small_options()).error().code, Code::not_found);
}

TEST(StoreFolder, PublishesNothingUnlessAllIsThereOnce) {
  const TemporaryDirectory folder;
  const Bytes bytes = pattern(64, 1);
  const std::string path = folder.path("c");
  const auto rows = [&](std::uint64_t begin, std::uint64_t size) {
    return piece_of("a", "weight", ElementType::float32, {4, 4}, box_of({begin, 0}, {size, 4}), bytes);
  };
  const auto expect_refused = [&](const std::vector<std::vector<StorePiece>>& parts, std::string_view why,
                                  const StorePublishOptions& publish = {}) {
    const Status saved = save(path, parts, {}, publish);
    ASSERT_FALSE(saved.has_value()) << why;
    EXPECT_EQ(saved.error().code, Code::invalid) << what(saved);
    EXPECT_NE(what(saved).find(why), std::string::npos) << what(saved);
    EXPECT_TRUE(real_files().list(folder.path())->empty());
  };
  expect_refused({{rows(0, 2)}, {rows(3, 1)}}, "a (weight) [4,4]: [2:3,0:4] is in no part");
  expect_refused({{rows(0, 3)}, {rows(2, 2)}}, "overlap");
  expect_refused({{piece_of("a", "weight", ElementType::float32, {4, 4}, box_of({0, 0}, {0, 4}), bytes)}},
                 "is in no part");
  StorePiece other = rows(2, 2);
  other.type = ElementType::int32;
  expect_refused({{rows(0, 2)}, {other}}, "is float32 [4,4] of one part and int32 [4,4] of another");
  expect_refused({{rows(0, 4)}}, "not JSON", {"{\"a\": 1,}", {}});
  expect_refused({{rows(0, 4)}}, "not JSON", {"{}, \"tensors\": []", {}});
  expect_refused({{rows(0, 4)}}, "there is no tensor b", {"{}", {{"tied", "b"}}});
  expect_refused({{rows(0, 4)}}, "publish", {"{}", {{"\xff", "a"}}});
}

TEST(StoreFolder, TakesNoSharesOfElsewhereNorDamagedOnes) {
  const TemporaryDirectory folder;
  const Bytes bytes = pattern(64, 1);
  const StorePiece piece = whole_of("a", "weight", ElementType::float32, {4, 4}, bytes);
  Result<StoreFolder> one = StoreFolder::begin(folder.path("one")), two = StoreFolder::begin(folder.path("two"));
  ASSERT_TRUE(one.has_value() && two.has_value());
  const Result<std::string> share = write_store_part(one->folder(), 0, {&piece, 1}, small_options());
  ASSERT_TRUE(share.has_value());
  EXPECT_NE(what(two->publish({&*share, 1})).find("another folder"), std::string::npos);
  const std::string cut = share->substr(0, share->size() - 3);
  EXPECT_EQ(one->publish({&cut, 1}).error().code, Code::corrupt);
  const std::vector<std::string> twice = {*share, *share};
  EXPECT_NE(what(one->publish(twice)).find("twice"), std::string::npos);
  ASSERT_EQ(::truncate(join_path(one->folder(), "data-00000.safetensors").c_str(), 100), 0);
  EXPECT_EQ(one->publish({&*share, 1}).error().code, Code::corrupt);
  one->abandon();
  two->abandon();
  EXPECT_EQ(one->publish({&*share, 1}).error().code, Code::invalid);
  EXPECT_TRUE(real_files().list(folder.path())->empty());
}

TEST(StoreFolder, ReplacesOnlyItsOwnKindAndOnlyIfTold) {
  const TemporaryDirectory folder;
  const State state;
  const std::string path = folder.path("c");
  ASSERT_TRUE(save(path, state.parts()));
  EXPECT_EQ(save(path, state.parts()).error().code, Code::invalid);
  const Bytes other = pattern(64, 9);
  ASSERT_TRUE(save(path, {{whole_of("b", "weight", ElementType::uint8, {64}, other)}}, {.overwrite = true}));
  const Result<CheckpointView> view = open_checkpoint(path);
  ASSERT_TRUE(view.has_value()) << view.error().what;
  EXPECT_EQ(view->tensors.size(), 1u);
  EXPECT_EQ(load(*view, 0).value_or(Bytes()), other);
  EXPECT_EQ(real_files().list(path)->size(), 3u);  // nothing of the old one is left
  ASSERT_EQ(::mkdir(folder.path("letters").c_str(), 0777), 0);
  set_content(folder.path("letters/dear.txt"), "you");
  EXPECT_EQ(save(folder.path("letters"), state.parts(), {.overwrite = true}).error().code, Code::invalid);
  EXPECT_EQ(content_of(folder.path("letters/dear.txt")), "you");
  EXPECT_EQ(save(folder.path("not/there"), state.parts()).error().code, Code::not_found);
  EXPECT_EQ(save(folder.path("d"), state.parts(), {.bytes = std::uint64_t{1} << 60}).error().code, Code::full);
}

TEST(StoreFolder, RefusesASecondSaveToTheSamePath) {
  const TemporaryDirectory folder;
  const State state;
  {
    const Result<StoreFolder> first = StoreFolder::begin(folder.path("c"));
    ASSERT_TRUE(first.has_value());
    EXPECT_EQ(StoreFolder::begin(folder.path("c")).error().code, Code::stale);
  }
  EXPECT_TRUE(save(folder.path("c"), state.parts()));
}

TEST(StoreFolder, TellsEachFlippedByte) {
  const TemporaryDirectory folder;
  const Bytes bytes = pattern(96, 1);
  const std::string path = folder.path("c");
  ASSERT_TRUE(save(path,
                   {{piece_of("a", "weight", ElementType::float32, {6, 4}, box_of({0, 0}, {2, 4}), bytes)},
                    {piece_of("a", "weight", ElementType::float32, {6, 4}, box_of({2, 0}, {4, 4}), bytes)}},
                   {}, {"{\"step\":7}", {}}));
  for (const std::string& name : names_in(path)) {
    const std::string file = join_path(path, name);
    const std::string content = content_of(file);
    for (std::size_t i = 0; i < content.size(); ++i) {
      std::string flipped = content;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << i % 8));
      set_content(file, flipped);
      const Result<StoreProof> proof = prove_store(path, {.threads = 1});
      if (name == "committed" && proof.has_value()) continue;  // a name in it: format, version
      if (name == "manifest.json" || name == "committed") {
        EXPECT_FALSE(proof.has_value()) << name << " at " << i;
        continue;
      }
      ASSERT_TRUE(proof.has_value()) << proof.error().what;
      ASSERT_EQ(proof->wrong.size(), 1u) << name << " at " << i;
      EXPECT_NE(proof->wrong[0].find(name), std::string::npos) << proof->wrong[0];
    }
    set_content(file, content);
  }
  std::string content = content_of(path + "/data-00001.safetensors");
  content.back() ^= 1;
  set_content(path + "/data-00001.safetensors", content);
  EXPECT_NE(prove_store(path)->wrong[0].find("a/weight[2:6,0:4]"), std::string::npos);
  const auto only_first = [](std::uint32_t, std::uint32_t piece) { return piece == 0; };
  EXPECT_TRUE(prove_store(path, {.chosen = only_first})->wrong.empty());
}

TEST(StoreFolder, IsRefusedWhereSomethingIsMissing) {
  const TemporaryDirectory folder;
  const State state;
  const std::string path = folder.path("c");
  ASSERT_TRUE(save(path, state.parts()));
  const std::string data = path + "/data-00001.safetensors", marker = path + "/committed";
  const std::string content = content_of(data);
  set_content(data, content.substr(0, content.size() - 1));
  EXPECT_EQ(open_checkpoint(path).error().code, Code::corrupt);
  ASSERT_EQ(::unlink(data.c_str()), 0);
  const Result<CheckpointView> missing = open_checkpoint(path);
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().code, Code::corrupt);
  EXPECT_NE(missing.error().what.find("data-00001.safetensors"), std::string::npos) << missing.error().what;
  set_content(data, content);
  ASSERT_TRUE(open_checkpoint(path).has_value());
  ASSERT_EQ(::unlink(marker.c_str()), 0);
  const Result<CheckpointView> unmarked = open_checkpoint(path);
  ASSERT_FALSE(unmarked.has_value());
  EXPECT_NE(unmarked.error().what.find("no committed"), std::string::npos) << unmarked.error().what;
}

}  // namespace
}  // namespace pawl::checkpoint
