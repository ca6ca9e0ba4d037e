// ReadProof on real files: whole, damaged by one bit, seen whole, in part, or not at all, by one process or two.
#include "checkpoint/formats/read_proof.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "checkpoint/formats/fixtures.h"
#include "checkpoint/formats/proven_checkpoint.h"
#include "env/temporary_directory.h"

namespace pawl::checkpoint {
namespace {

// A copy of a file or folder of the fixtures, to be damaged.
class Copy {
 public:
  explicit Copy(const std::string& name) {
    const std::filesystem::path from = std::filesystem::path(fixtures::small_set()) / name;
    path_ = folder_.path("copy");
    if (from.extension() == ".pt") path_ += ".pt";
    std::filesystem::copy(from, path_, std::filesystem::copy_options::recursive);
  }
  [[nodiscard]] CheckpointView view() const {
    Result<CheckpointView> view = open_proven(path_, {});
    EXPECT_TRUE(view.has_value()) << (view ? "" : view.error().what);
    return view ? std::move(*view) : CheckpointView();
  }

 private:
  TemporaryDirectory folder_;
  std::string path_;
};

std::vector<std::uint32_t> all_of(const CheckpointView& view) {
  std::vector<std::uint32_t> all(view.tensors.size());
  for (std::uint32_t i = 0; i < all.size(); ++i) all[i] = i;
  return all;
}

// The largest tensor that lies in a file as it is.
const StoredTensor& largest(const CheckpointView& view) {
  const StoredTensor* out = nullptr;
  for (const StoredTensor& tensor : view.tensors)
    if (!tensor.pieces.empty() && view.files[tensor.pieces[0].file].codec == StoredFile::Codec::none)
      if (out == nullptr || span_bytes(tensor.pieces[0], tensor.type) > span_bytes(out->pieces[0], out->type))
        out = &tensor;
  return *out;
}

void flip(const std::string& path, std::uint64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const char byte = static_cast<char>(file.get() ^ 0x10);
  file.seekp(static_cast<std::streamoff>(at));
  file.put(byte);
  ASSERT_TRUE(file.good());
}

// As the executor would: the bytes of each piece, or the first half of them.
void show(const CheckpointView& view, const StoredTensor& tensor, const ReadObserver& observe, bool half = false) {
  for (const StoredPiece& piece : tensor.pieces) {
    const StoredFile& file = view.files[piece.file];
    if (file.codec != StoredFile::Codec::none) continue;
    std::uint64_t bytes = span_bytes(piece, tensor.type);
    if (half) bytes /= 2;
    std::vector<char> buffer(bytes);
    std::ifstream(file.path, std::ios::binary)
        .seekg(static_cast<std::streamoff>(piece.offset_bytes))
        .read(buffer.data(), static_cast<std::streamsize>(bytes));
    observe(piece.file, piece.offset_bytes, std::as_bytes(std::span(buffer)));
  }
}

enum class Shown { all, half, nothing };

std::vector<std::string> damage_of(const CheckpointView& view, Shown shown) {
  Result<ReadProof> proof = ReadProof::create(view);
  EXPECT_TRUE(proof.has_value());
  for (const StoredTensor& tensor : view.tensors)
    if (shown != Shown::nothing) show(view, tensor, proof->observer(), shown == Shown::half);
  const Result<std::vector<std::string>> damage = proof->damage(view, {all_of(view), {}});
  EXPECT_TRUE(damage.has_value());
  return damage.value_or(std::vector<std::string>{"failed"});
}

class ReadProofTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Formats, ReadProofTest,
                         ::testing::Values("torch/H_torch_save/train_adamw.pt",
                                           "torch/H_torch_save/views_one_storage.pt", "torch/G8c_no_dist/ckpt",
                                           "torch/G3_fsdp2_tp_2x2/ckpt", "deepspeed/zero2_w1_empty/ckpt"));

TEST_P(ReadProofTest, OneFlippedBitIsFoundHoweverMuchWasSeen) {
  const Copy copy(GetParam());
  const CheckpointView view = copy.view();
  ASSERT_FALSE(view.tensors.empty());
  for (const Shown shown : {Shown::all, Shown::half, Shown::nothing})
    EXPECT_EQ(damage_of(view, shown), std::vector<std::string>());
  const StoredPiece& piece = largest(view).pieces[0];
  flip(view.files[piece.file].path, piece.offset_bytes + 1);
  for (const Shown shown : {Shown::all, Shown::half, Shown::nothing}) {
    const std::vector<std::string> damage = damage_of(view, shown);
    ASSERT_EQ(damage.size(), 1u);
    EXPECT_NE(damage[0].find("do not have the checksum that the archive gives"), std::string::npos) << damage[0];
    EXPECT_TRUE(damage[0].starts_with(view.files[piece.file].path)) << damage[0];
  }
}

TEST(ReadProof, OnlyWhatIsReadIsProven) {
  const Copy copy("torch/H_torch_save/train_adamw.pt");
  const CheckpointView view = copy.view();
  const StoredTensor& damaged = largest(view);
  flip(view.files[0].path, damaged.pieces[0].offset_bytes);
  std::vector<std::uint32_t> others;
  for (std::uint32_t i = 0; i < view.tensors.size(); ++i)
    if (&view.tensors[i] != &damaged) others.push_back(i);
  Result<ReadProof> proof = ReadProof::create(view);
  ASSERT_TRUE(proof.has_value());
  EXPECT_TRUE(proof->damage(view, {others, {}})->empty());
  show(view, damaged, proof->observer());
  EXPECT_EQ(proof->damage(view, {others, {}})->size(), 1u);
}

TEST(ReadProof, ProcessesJoinWhatTheySaw) {
  const Copy copy("torch/H_torch_save/train_adamw.pt");
  const CheckpointView view = copy.view();
  Result<ReadProof> proof = ReadProof::create(view);
  ASSERT_TRUE(proof.has_value());
  for (const bool half : {true, false}) {  // the second sees the first half again
    show(view, largest(view), proof->observer(), half);
    const Result<std::string> words = proof->take_words();
    ASSERT_TRUE(words.has_value());
    Result<ReadProof> whole = ReadProof::create(view);
    ASSERT_TRUE(whole.has_value());
    EXPECT_TRUE(whole->join(*words));
    EXPECT_TRUE(whole->join(*words));
    EXPECT_TRUE(whole->damage(view, {all_of(view), {}})->empty());
    EXPECT_FALSE(whole->join("other"));
  }
}

TEST(ReadProof, PackedFilesAreProvenToo) {
  for (const char* name : {"torch/H_torch_save/rezipped_deflated.pt", "torch/G8h_zstd/ckpt"}) {
    SCOPED_TRACE(name);
    const Copy copy(name);
    const CheckpointView view = copy.view();
    EXPECT_EQ(damage_of(view, Shown::all), std::vector<std::string>());
    const auto packed = std::ranges::find_if(view.files, [](const StoredFile& file) {
      return file.codec == StoredFile::Codec::deflate || file.codec == StoredFile::Codec::zstd;
    });
    ASSERT_NE(packed, view.files.end());
    flip(packed->path, packed->offset_bytes + packed->length_bytes / 2);
    EXPECT_EQ(damage_of(view, Shown::all).size(), 1u);
  }
}

}  // namespace
}  // namespace pawl::checkpoint
