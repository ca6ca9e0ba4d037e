// What the writer of torch's files writes, as our reader and Python's zipfile read it. What torch itself makes of such
// files is seen where whole checkpoints are written (test/torch).
#include "checkpoint/containers/torch_writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "checkpoint/containers/python_says.h"
#include "checkpoint/containers/zip.h"
#include "checkpoint/reshape/range_checksums.h"

namespace pawl::checkpoint {
namespace {

using namespace std::string_literals;

// A file of which only some bytes are there, the others zeros: large ones cost nothing.
class SparseBytes final : public ByteSource {
 public:
  SparseBytes(std::uint64_t size, std::vector<PlannedText> texts) : size_(size), texts_(std::move(texts)) {}
  [[nodiscard]] std::uint64_t size_bytes() const override { return size_; }
  [[nodiscard]] Status read(std::uint64_t offset, std::span<std::byte> buffer) override {
    if (offset > size_ || buffer.size() > size_ - offset) return Error{Code::corrupt, "past the end"};
    std::ranges::fill(buffer, std::byte{0});
    for (const PlannedText& text : texts_) {
      const std::uint64_t begin = std::max(offset, text.offset_bytes);
      const std::uint64_t end = std::min(offset + buffer.size(), text.offset_bytes + text.text.size());
      if (begin < end)
        std::memcpy(buffer.data() + (begin - offset), text.text.data() + (begin - text.offset_bytes), end - begin);
    }
    return {};
  }

 private:
  std::uint64_t size_;
  std::vector<PlannedText> texts_;
};

// All texts of a file whose data is `data`, at its ranges.
std::vector<PlannedText> texts_with(const PlannedFile& file, std::uint32_t index,
                                    const std::vector<PlannedText>& data) {
  std::vector<FileRange> ranges;
  for (const PlannedRange& range : file.checked)
    ranges.push_back({index, range.offset_bytes, range.offset_bytes + range.size_bytes});
  Result<RangeChecksums> sums = RangeChecksums::create(ranges, ChecksumKind::crc32);
  EXPECT_TRUE(sums);
  for (const PlannedText& text : data) sums->add(index, text.offset_bytes, std::as_bytes(std::span(text.text)));
  std::vector<PlannedText> out = file.texts;
  if (file.finish)
    for (PlannedText& text : file.finish(*sums)) out.push_back(std::move(text));
  out.insert(out.end(), data.begin(), data.end());
  return out;
}

constexpr const char* kTestZip =
    "import sys, zipfile; z = zipfile.ZipFile(sys.argv[1]); print(z.testzip(), \" \".join(z.namelist()))";

// {"param": float32 [2, 3], "half": bfloat16 [], "bytes": float8 [4]}
TorchWriter three_tensors() {
  TorchWriter writer;
  PickleWriter& pickle = writer.pickle();
  pickle.empty_dict();
  pickle.mark();
  pickle.string("param");
  EXPECT_EQ(writer.tensor(ElementType::float32, {2, 3}), 0u);
  pickle.string("half");
  EXPECT_EQ(writer.tensor(ElementType::bfloat16, {}), 1u);
  pickle.string("eight");
  EXPECT_EQ(writer.tensor(ElementType::float8_e4m3fn, {4}), 2u);
  pickle.string("none");
  EXPECT_EQ(writer.tensor(ElementType::int64, {0, 5}), 3u);
  pickle.string("size");
  writer.size({2, 3, 4, 5});
  pickle.set_items();
  return writer;
}

TEST(TorchWriter, TensorsWhoseBytesComeLaterAreReadBack) {
  const Result<TorchLayout> layout = three_tensors().finish("zero/a.b/fp32.pt", 7);
  ASSERT_TRUE(layout) << layout.error().what;
  ASSERT_EQ(layout->offset_bytes.size(), 4u);
  for (const std::uint64_t offset : layout->offset_bytes) EXPECT_EQ(offset % 64, 0u);
  const std::vector<PlannedText> data = {{layout->offset_bytes[0], "aaaabbbbccccddddeeeeffff"},
                                         {layout->offset_bytes[1], "hh"},
                                         {layout->offset_bytes[2], "8888"}};
  SparseBytes source(layout->file.size_bytes, texts_with(layout->file, 7, data));
  const Result<std::string> bytes = read_text(source, 0, source.size_bytes());
  ASSERT_TRUE(bytes);
  MemoryBytes memory(*bytes);
  const Result<TorchFile> file = TorchFile::read(memory);
  ASSERT_TRUE(file) << file.error().what;
  EXPECT_TRUE(file->notes().empty());
  ASSERT_EQ(file->tensors().size(), 4u);
  EXPECT_EQ(file->tensors()[0].shape, (Shape{2, 3}));
  EXPECT_EQ(read_elements(memory, *file, file->tensors()[0], 100).value_or(""), data[0].text);
  EXPECT_EQ(file->tensors()[1].type, ElementType::bfloat16);
  EXPECT_EQ(file->tensors()[2].type, ElementType::float8_e4m3fn);
  EXPECT_EQ(read_elements(memory, *file, file->tensors()[2], 100).value_or(""), "8888");
  EXPECT_EQ(file->tensors()[3].shape, (Shape{0, 5}));
  std::size_t summed = 0;
  for (const ZipRecord& record : file->records()) {
    const Result<bool> agrees = checksum_agrees(memory, record);
    ASSERT_TRUE(agrees);
    EXPECT_TRUE(*agrees) << record.name;
    EXPECT_TRUE(record.crc32 != 0 || record.size_bytes == 0) << record.name;
    summed += record.crc32 != 0;
  }
  EXPECT_EQ(summed, 8u);
  EXPECT_EQ(python_says(*bytes, kTestZip),
            "None fp32/data.pkl fp32/.format_version fp32/.storage_alignment fp32/byteorder fp32/version fp32/data/0 "
            "fp32/data/1 fp32/data/2 fp32/data/3");
}

TEST(TorchWriter, AFlippedByteIsSeen) {
  TorchWriter writer;
  writer.tensor(ElementType::float32, {2}, "12345678");
  Result<std::string> bytes = std::move(writer).finish_in_memory("x");
  ASSERT_TRUE(bytes) << bytes.error().what;
  EXPECT_EQ(python_says(*bytes, kTestZip).substr(0, 5), "None ");
  (*bytes)[bytes->find("12345678") + 3] ^= 1;
  EXPECT_NE(python_says(*bytes, kTestZip).substr(0, 5), "None ");
}

// Beyond four bytes' worth: sizes and places are zip64's.
TEST(TorchWriter, LargeTensorsNeedZip64) {
  TorchWriter writer;
  writer.pickle().empty_list();
  writer.pickle().mark();
  writer.tensor(ElementType::uint8, {(std::uint64_t{1} << 32) + 5});
  writer.tensor(ElementType::uint8, {16});
  writer.pickle().append_items();
  const Result<TorchLayout> layout = std::move(writer).finish("large.pt", 0);
  ASSERT_TRUE(layout) << layout.error().what;
  SparseBytes source(layout->file.size_bytes,
                     texts_with(layout->file, 0, {{layout->offset_bytes[1], "sixteen bytes ok"}}));
  const Result<TorchFile> file = TorchFile::read(source);
  ASSERT_TRUE(file) << file.error().what;
  ASSERT_EQ(file->tensors().size(), 2u);
  EXPECT_EQ(file->tensors()[0].shape[0], (std::uint64_t{1} << 32) + 5);
  EXPECT_EQ(file->storages()[1].offset_bytes, layout->offset_bytes[1]);
  EXPECT_EQ(layout->offset_bytes[1] % 64, 0u);
  EXPECT_EQ(read_elements(source, *file, file->tensors()[1], 100).value_or(""), "sixteen bytes ok");
}

TEST(TorchWriter, RefusesWhatTorchHasNot) {
  TorchWriter packed;
  packed.tensor(ElementType::float6_e2m3, {4});
  const Result<TorchLayout> refused = std::move(packed).finish("x.pt", 0);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what.find("torch has no plain"), std::string::npos) << refused.error().what;
  TorchWriter wrong;
  wrong.tensor(ElementType::float32, {2}, "short");
  EXPECT_FALSE(std::move(wrong).finish_in_memory("x"));
}

TEST(TorchWriter, EveryStorageClassIsTheReaders) {
  for (std::uint32_t i = 0; i < kElementTypeCount; ++i) {
    const auto type = static_cast<ElementType>(i);
    const auto name = storage_class_of(type);
    EXPECT_TRUE(!name || element_type_of_storage(*name) == type) << name.value_or("");
  }
}

TEST(TorchCopy, KeepsObjectsTensorsAndWhatIsShared) {
  TorchWriter first;
  PickleWriter& pickle = first.pickle();
  pickle.empty_dict();
  pickle.mark();
  pickle.string("scaler");
  pickle.global("a.module", "Scaler");
  pickle.empty_tuple();
  pickle.newobj();
  pickle.empty_dict();
  pickle.string("scale");
  pickle.real(256);
  pickle.set_item();
  pickle.build();
  pickle.string("step");
  first.tensor(ElementType::float32, {}, "\0\0\x40\x40"s);
  const std::uint32_t step = pickle.memoize();
  pickle.string("again");
  pickle.recall(step);
  pickle.string("list");
  pickle.empty_list();
  const std::uint32_t list = pickle.memoize();
  pickle.mark();
  pickle.none();
  pickle.bytes("\xff\0"s);
  pickle.recall(list);  // holds itself
  pickle.append_items();
  pickle.set_items();
  const Result<std::string> bytes = std::move(first).finish_in_memory("first");
  ASSERT_TRUE(bytes);
  MemoryBytes source(*bytes);
  const Result<TorchFile> file = TorchFile::read(source);
  ASSERT_TRUE(file) << file.error().what;

  TorchWriter second;
  TorchCopy copy(source, *file, second);
  ASSERT_TRUE(copy.copy(file->pickle().root()));
  const Result<std::string> copied = std::move(second).finish_in_memory("second");
  ASSERT_TRUE(copied) << copied.error().what;
  MemoryBytes again(*copied);
  const Result<TorchFile> read = TorchFile::read(again);
  ASSERT_TRUE(read) << read.error().what;
  const Pickle& got = read->pickle();
  const Pickle::Value scaler = got.find(got.root(), "scaler");
  EXPECT_TRUE(got.class_of(scaler).is("a.module", "Scaler"));
  EXPECT_EQ(got.real(got.find(got.object(scaler).state, "scale")), 256);
  EXPECT_EQ(got.find(got.root(), "step"), got.find(got.root(), "again"));
  EXPECT_EQ(read->storages().size(), 1u);
  const Pickle::Value same = got.find(got.root(), "list");
  ASSERT_EQ(got.items(same).size(), 3u);
  EXPECT_EQ(got.items(same)[2], same);
}

}  // namespace
}  // namespace pawl::checkpoint
