// The executor against a naive assembly: every test makes tensors, puts them into files or memory element by element,
// and says element by element what the targets have to hold. No planning code is used for what is expected.
//
// PAWL_CASES: how many random cases (default 150). PAWL_SEED: the first seed; a failure prints its own.
#include "checkpoint/reshape/execute.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "base/text.h"
#include "checkpoint/reshape/cast.h"
#include "checkpoint/reshape/compare_copies.h"
#include "checkpoint/reshape/file_source.h"
#include "checkpoint/reshape/strided.h"
#include "env/temporary_directory.h"

namespace pawl::checkpoint {
namespace {

using Bytes = std::vector<std::byte>;
using Random = std::mt19937_64;

std::uint64_t below(Random& random, std::uint64_t limit) {
  return std::uniform_int_distribution<std::uint64_t>(0, limit - 1)(random);
}

std::uint64_t unit_of(ElementType type) {
  return size_bits(type) / 8;
}

void write_bytes(const std::string& path, const Bytes& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(out.good()) << path;
}

Bytes read_bytes(const std::string& path) {
  const Result<std::string> content = read_file(path, std::uint64_t{1} << 33);
  EXPECT_TRUE(content.has_value()) << path;
  Bytes out(content ? content->size() : 0);
  if (content) std::memcpy(out.data(), content->data(), out.size());
  return out;
}

// Finite numbers of all sizes where the type is one; any bits else.
Bytes random_values(Random& random, ElementType type, std::uint64_t count) {
  Bytes out(count * unit_of(type));
  for (std::uint64_t i = 0; i < out.size(); i += 8) {
    const std::uint64_t word = random();
    std::memcpy(out.data() + i, &word, std::min<std::uint64_t>(8, out.size() - i));
  }
  if (type == ElementType::float32) {
    for (std::uint64_t i = 0; i < count; ++i) {
      const float value = static_cast<float>(static_cast<std::int64_t>(random()) >> below(random, 60)) * 0x1p-30F;
      std::memcpy(out.data() + 4 * i, &value, 4);
    }
  } else if (type == ElementType::float16 || type == ElementType::bfloat16) {
    for (std::uint64_t i = 0; i < count; ++i) {
      const float value = static_cast<float>(static_cast<std::int32_t>(random()) >> 12) * 0x1p-12F;
      const std::uint16_t bits = type == ElementType::float16 ? float16_of(value) : bfloat16_of(value);
      std::memcpy(out.data() + 2 * i, &bits, 2);
    }
  }
  return out;
}

// Calls body(coordinates) for each element of the box, in the tensor's own indices.
template <class Body>
void for_each_element(const Box& box, Body body) {
  PerDimension at = box.begin;
  if (volume(box) == 0) return;
  for (;;) {
    body(at);
    std::uint32_t d = box.dimensions;
    while (d-- > 0) {
      if (++at[d] < box.begin[d] + box.size[d]) break;
      at[d] = box.begin[d];
    }
    if (d == ~0u) return;
  }
}

std::uint64_t place_in(const Box& box, const PerDimension& stride, const PerDimension& at) {
  std::uint64_t place = 0;
  for (std::uint32_t d = 0; d < box.dimensions; ++d) place += (at[d] - box.begin[d]) * stride[d];
  return place;
}

// Boxes that tile `box`: cut at random, again and again.
void cut(Random& random, const Box& box, std::uint32_t depth, std::vector<Box>& out) {
  std::vector<std::uint32_t> long_ones;
  for (std::uint32_t d = 0; d < box.dimensions; ++d)
    if (box.size[d] > 1) long_ones.push_back(d);
  if (depth == 0 || long_ones.empty()) {
    out.push_back(box);
    return;
  }
  const std::uint32_t d = long_ones[below(random, long_ones.size())];
  const std::uint64_t size = 1 + below(random, box.size[d] - 1);
  Box lower = box, upper = box;
  lower.size[d] = size;
  upper.begin[d] += size;
  upper.size[d] -= size;
  cut(random, lower, depth - 1, out);
  cut(random, upper, depth - 1, out);
}

// Strides of an array that holds the box: dense, with gaps, or with its dimensions in another order.
PerDimension random_strides(Random& random, const Box& box) {
  std::vector<std::uint32_t> order(box.dimensions);
  for (std::uint32_t d = 0; d < box.dimensions; ++d) order[d] = d;
  if (below(random, 4) == 0) std::shuffle(order.begin(), order.end(), random);
  const bool gaps = below(random, 3) == 0;
  PerDimension stride{};
  std::uint64_t step = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    stride[order[i]] = step;
    step *= box.size[order[i]] + (gaps ? below(random, 3) : 0);
  }
  return stride;
}

struct Tensor {
  ElementType type = ElementType::float32;
  Shape shape;
  std::vector<Bytes> versions;  // dense, row-major
};

// Tensors, and the files that hold them.
struct Stored {
  CheckpointView view;
  std::vector<Tensor> tensors;
  std::vector<Bytes> files;  // as decoded
};

Shape random_shape(Random& random, std::uint64_t elements_max) {
  Shape shape(below(random, 5), 1);
  std::uint64_t left = 1 + below(random, elements_max);
  for (std::uint64_t& extent : shape) {
    extent = 1 + below(random, std::max<std::uint64_t>(1, left));
    if (below(random, 3) != 0) extent = std::min<std::uint64_t>(extent, 1 + below(random, 40));
    left /= extent;
  }
  std::shuffle(shape.begin(), shape.end(), random);
  return shape;
}

void put_piece(Stored& stored, const Tensor& tensor, const StoredPiece& piece) {
  const std::uint64_t unit = unit_of(tensor.type);
  Bytes& file = stored.files[piece.file];
  file.resize(std::max<std::uint64_t>(file.size(), piece.offset_bytes + span_bytes(piece, tensor.type)));
  const Box whole = whole_box(tensor.shape);
  for_each_element(piece.box, [&](const PerDimension& at) {
    std::byte* to = file.data() + piece.offset_bytes + place_in(piece.box, piece.stride, at) * unit;
    std::memcpy(to, tensor.versions[piece.version].data() + place_in(whole, dense_stride(whole), at) * unit, unit);
    const std::uint64_t turned = swapped_bytes(tensor.type);
    for (std::uint64_t i = 0; piece.swapped && i < unit; i += turned) std::reverse(to + i, to + i + turned);
  });
}

Stored random_stored(Random& random, std::uint64_t elements_max, std::uint32_t file_count, bool one_copy = false) {
  static constexpr ElementType kTypes[] = {ElementType::float32, ElementType::float16,   ElementType::bfloat16,
                                           ElementType::int64,   ElementType::uint8,     ElementType::complex128,
                                           ElementType::float64, ElementType::complex32, ElementType::boolean,
                                           ElementType::float32, ElementType::bfloat16};
  Stored stored;
  stored.files.resize(file_count);
  const std::uint64_t count = 1 + below(random, 6);
  for (std::uint64_t t = 0; t < count; ++t) {
    Tensor tensor;
    tensor.type = kTypes[below(random, std::size(kTypes))];
    tensor.shape = random_shape(random, elements_max);
    const Box whole = whole_box(tensor.shape);
    const std::uint64_t versions = can_average(tensor.type) && below(random, 4) == 0 ? 2 + below(random, 2) : 1;
    for (std::uint64_t v = 0; v < versions; ++v)
      tensor.versions.push_back(random_values(random, tensor.type, volume(whole)));
    StoredTensor known{text("t", t), "weight", tensor.type, tensor.shape, {}, static_cast<std::uint32_t>(versions), {}};
    const std::uint32_t copies = one_copy ? 1 : 1 + static_cast<std::uint32_t>(below(random, 2));
    for (std::uint32_t v = 0; v < versions; ++v) {
      for (std::uint32_t c = 0; c < copies; ++c) {
        std::vector<Box> boxes;
        cut(random, whole, static_cast<std::uint32_t>(below(random, 4)), boxes);
        for (const Box& box : boxes) {
          StoredPiece piece;
          piece.box = box;
          piece.file = static_cast<std::uint32_t>(below(random, file_count));
          piece.offset_bytes = stored.files[piece.file].size() + below(random, 9);
          piece.stride = random_strides(random, box);
          piece.swapped = below(random, 6) == 0;
          piece.version = v;
          piece.copy = c;
          piece.rank = c;
          put_piece(stored, tensor, piece);
          known.pieces.push_back(piece);
        }
      }
    }
    stored.view.tensors.push_back(known);
    stored.tensors.push_back(std::move(tensor));
  }
  return stored;
}

std::string deflated(const Bytes& bytes) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 1, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, bytes.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string zstd_frame(const Bytes& bytes) {
  std::string out(ZSTD_compressBound(bytes.size()), '\0');
  const std::size_t size = ZSTD_compress(out.data(), out.size(), bytes.data(), bytes.size(), 1);
  EXPECT_EQ(ZSTD_isError(size), 0u);
  out.resize(size);
  return out;
}

// Writes the files, some of them encoded, and names them in the view.
void write_files(Random& random, Stored& stored, const TemporaryDirectory& folder, bool encode) {
  for (std::size_t i = 0; i < stored.files.size(); ++i) {
    StoredFile file;
    file.path = folder.path(text("source", i));
    const std::uint64_t kind = encode ? below(random, 4) : 0;
    if (kind == 3) {
      file.codec = StoredFile::Codec::content;
      file.content.assign(reinterpret_cast<const char*>(stored.files[i].data()), stored.files[i].size());
    } else if (kind == 0) {
      write_bytes(file.path, stored.files[i]);
    } else {
      file.codec = kind == 1 ? StoredFile::Codec::zstd : StoredFile::Codec::deflate;
      const std::string encoded = kind == 1 ? zstd_frame(stored.files[i]) : deflated(stored.files[i]);
      file.offset_bytes = below(random, 100);
      file.length_bytes = encoded.size();
      file.decoded_bytes = stored.files[i].size();
      Bytes bytes(file.offset_bytes + encoded.size() + below(random, 100));
      std::memcpy(bytes.data() + file.offset_bytes, encoded.data(), encoded.size());
      write_bytes(file.path, bytes);
    }
    stored.view.files.push_back(file);
  }
}

// The same pieces in memory.
CopySource in_memory(const Stored& stored) {
  CopySource source = places_of(stored.view);
  source.place = [inner = source.place, &stored](std::uint32_t holder, std::uint32_t buffer) {
    BufferPlace place = inner(holder, buffer);
    place.memory = const_cast<std::byte*>(stored.files[place.file].data()) + place.offset_bytes;
    return place;
  };
  source.files = nullptr;
  return source;
}

Bytes mean_of(const Tensor& tensor) {
  if (tensor.versions.size() == 1) return tensor.versions.front();
  std::vector<const std::byte*> versions;
  for (const Bytes& version : tensor.versions) versions.push_back(version.data());
  Bytes out(tensor.versions.front().size());
  average(tensor.type, versions, out.size() / unit_of(tensor.type), out.data());
  return out;
}

// What is wanted of one tensor: boxes with places in buffers.
struct Wanted {
  std::uint32_t tensor = 0;
  ElementType type = ElementType::float32;
  Box box;
  PerDimension stride{};
  std::uint64_t offset_bytes = 0;  // in the target file, or in memory
  std::uint32_t file = 0;
  std::uint64_t span = 0;
};

struct Target {
  std::vector<Wanted> wanted;
  std::vector<Bytes> expected;
  std::vector<std::uint64_t> overflows;  // of each tensor
};

Target random_target(Random& random, const Stored& stored, std::uint32_t file_count, std::byte background) {
  Target target;
  target.expected.resize(file_count);
  target.overflows.resize(stored.tensors.size());
  for (std::uint32_t t = 0; t < stored.tensors.size(); ++t) {
    const Tensor& tensor = stored.tensors[t];
    const Box whole = whole_box(tensor.shape);
    const Bytes values = mean_of(tensor);
    ElementType type = tensor.type;
    static constexpr ElementType kFloats[] = {ElementType::float32, ElementType::float16, ElementType::bfloat16};
    if (can_cast(type, ElementType::float32) && below(random, 2) == 0) type = kFloats[below(random, 3)];
    for (std::uint64_t holder = 0; holder < 1 + below(random, 3); ++holder) {
      std::vector<Box> boxes;
      cut(random, whole, static_cast<std::uint32_t>(below(random, 4)), boxes);
      if (boxes.size() > 1 && below(random, 2) == 0) boxes.pop_back();  // not all of it is wanted
      for (const Box& box : boxes) {
        Wanted wanted{
            t, type, box, random_strides(random, box), 0, static_cast<std::uint32_t>(below(random, file_count)), 0};
        const std::uint64_t unit = unit_of(type);
        StoredPiece as_piece{box, 0, 0, wanted.stride};
        wanted.span = span_bytes(as_piece, type);
        Bytes& file = target.expected[wanted.file];
        wanted.offset_bytes = file.size() + (below(random, 2) == 0 ? 0 : below(random, 70));
        file.resize(wanted.offset_bytes + wanted.span, background);
        for_each_element(box, [&](const PerDimension& at) {
          const std::byte* from = values.data() + place_in(whole, dense_stride(whole), at) * unit_of(tensor.type);
          std::byte* to = file.data() + wanted.offset_bytes + place_in(box, wanted.stride, at) * unit;
          target.overflows[t] += cast(tensor.type, std::span(from, unit_of(tensor.type)), type, std::span(to, unit));
        });
        target.wanted.push_back(wanted);
      }
    }
  }
  return target;
}

// Copies that meet what is wanted, from one replica chosen at random for each.
std::vector<PlannedCopy> copies_for(Random& random, const Stored& stored, const Target& target) {
  std::vector<std::uint32_t> firsts;
  std::uint32_t pieces = 0;
  for (const StoredTensor& tensor : stored.view.tensors) {
    firsts.push_back(pieces);
    pieces += static_cast<std::uint32_t>(tensor.pieces.size());
  }
  std::vector<PlannedCopy> copies;
  for (std::uint32_t w = 0; w < target.wanted.size(); ++w) {
    const Wanted& wanted = target.wanted[w];
    const StoredTensor& tensor = stored.view.tensors[wanted.tensor];
    std::vector<PlannedCopy> now{{wanted.tensor, tensor.type, wanted.type, wanted.box, {}, {}}};
    for (std::uint32_t version = 0; version < tensor.versions; ++version) {
      std::uint32_t copy_count = 0;
      for (const StoredPiece& piece : tensor.pieces) copy_count = std::max(copy_count, piece.copy + 1);
      const auto chosen = static_cast<std::uint32_t>(below(random, copy_count));
      std::vector<PlannedCopy> next;
      for (const PlannedCopy& copy : now) {
        for (std::size_t i = 0; i < tensor.pieces.size(); ++i) {
          const StoredPiece& piece = tensor.pieces[i];
          if (piece.version != version || piece.copy != chosen) continue;
          const Box part = intersection(piece.box, copy.box);
          if (volume(part) == 0) continue;
          next.push_back(copy);
          next.back().box = part;
          next.back().sources.push_back(
              {piece.file, firsts[wanted.tensor] + static_cast<std::uint32_t>(i), 0, piece.stride});
        }
      }
      now = std::move(next);
    }
    for (PlannedCopy& copy : now) {
      for (PlannedEnd& end : copy.sources) {
        const StoredPiece& piece = tensor.pieces[end.buffer - firsts[wanted.tensor]];
        end.offset = place_in(piece.box, piece.stride, copy.box.begin);
      }
      copy.target = {0, w, place_in(wanted.box, wanted.stride, copy.box.begin), wanted.stride};
      copies.push_back(copy);
    }
  }
  return copies;
}

PlaceOf places_in_memory(const Target& target, std::vector<Bytes>& memory) {
  return [&target, &memory](std::uint32_t, std::uint32_t buffer) {
    const Wanted& wanted = target.wanted[buffer];
    return BufferPlace{memory[wanted.file].data() + wanted.offset_bytes, 0, 0, wanted.span};
  };
}

PlaceOf places_in_files(const Target& target) {
  return [&target](std::uint32_t, std::uint32_t buffer) {
    const Wanted& wanted = target.wanted[buffer];
    return BufferPlace{nullptr, wanted.file, wanted.offset_bytes, wanted.span};
  };
}

std::string first_difference(const Bytes& got, const Bytes& expected) {
  if (got.size() != expected.size()) return text("size ", got.size(), " instead of ", expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] != expected[i]) return text("byte ", i, " of ", got.size());
  }
  return "";
}

enum class Mode { file_to_memory, memory_to_memory, file_to_file, memory_to_file };

void run_case(std::uint64_t seed) {
  SCOPED_TRACE(text("PAWL_SEED=", seed, " PAWL_CASES=1"));
  Random random(seed);
  const TemporaryDirectory folder;
  const auto mode = static_cast<Mode>(below(random, 4));
  const bool from_files = mode == Mode::file_to_memory || mode == Mode::file_to_file;
  const bool to_files = mode == Mode::file_to_file || mode == Mode::memory_to_file;
  const std::uint64_t elements_max = below(random, 8) == 0 ? 400'000 : 3'000;
  Stored stored = random_stored(random, elements_max, 1 + static_cast<std::uint32_t>(below(random, 4)));
  const bool encode = from_files && elements_max < 100'000 && below(random, 2) == 0;
  if (from_files) write_files(random, stored, folder, encode);
  if (!from_files) stored.view.files.resize(stored.files.size());

  const Target wanted = random_target(random, stored, 1 + static_cast<std::uint32_t>(below(random, 3)),
                                      to_files ? std::byte{0} : std::byte{0xAB});
  std::vector<PlannedCopy> copies = copies_for(random, stored, wanted);
  CopyTarget target;
  std::vector<Bytes> memory;
  const std::string head = "a head";
  std::vector<Bytes> expected = wanted.expected;
  std::uint64_t shift = 0;
  if (to_files) {
    shift = head.size() + below(random, 10);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      Bytes whole(shift + expected[i].size() + below(random, 5000));
      std::memcpy(whole.data(), head.data(), head.size());
      std::ranges::copy(expected[i], whole.begin() + static_cast<std::ptrdiff_t>(shift));
      expected[i] = whole;
      target.files.push_back({folder.path(text("target", i)), whole.size(), head});
    }
    target.place = [inner = places_in_files(wanted), shift](std::uint32_t holder, std::uint32_t buffer) {
      BufferPlace place = inner(holder, buffer);
      place.offset_bytes += shift;
      return place;
    };
  } else {
    for (const Bytes& bytes : wanted.expected) memory.emplace_back(bytes.size(), std::byte{0xAB});
    target.place = places_in_memory(wanted, memory);
  }
  ExecuteOptions options;
  options.memory_bytes = below(random, 2) == 0 ? 0 : (std::uint64_t{1} << (19 + below(random, 8)));
  if (encode) options.memory_bytes = 64 << 20;
  options.threads = static_cast<std::uint32_t>(below(random, 4));
  options.io_uring = below(random, 3) != 0;
  options.direct = below(random, 3) != 0;
  options.sync = below(random, 4) == 0;
  const CopySource source = from_files ? places_of(stored.view) : in_memory(stored);
  const Result<ExecuteReport> report = execute(stream_of(copies), source, target, options);
  ASSERT_TRUE(report.has_value()) << report.error().what;
  std::uint64_t moved = 0;
  for (const PlannedCopy& copy : copies) moved += volume(copy.box) * unit_of(copy.to);
  EXPECT_EQ(report->bytes_moved, moved);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const Bytes got = to_files ? read_bytes(target.files[i].path) : memory[i];
    ASSERT_EQ(first_difference(got, expected[i]), "") << "target " << i;
  }
  std::vector<std::uint64_t> overflows(stored.tensors.size());
  for (const auto& [tensor, count] : report->overflowed) overflows[tensor] = count;
  EXPECT_EQ(overflows, wanted.overflows);
  EXPECT_LE(report->buffer_bytes_max, std::max<std::uint64_t>(options.memory_bytes, 256 << 10));
}

std::uint64_t number_from(const char* name, std::uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

TEST(Execute, MovesWhatTheNaiveAssemblySays) {
  const std::uint64_t first = number_from("PAWL_SEED", 1);
  for (std::uint64_t seed = first; seed < first + number_from("PAWL_CASES", 150); ++seed) {
    run_case(seed);
    if (::testing::Test::HasFailure()) return;
  }
}

// --- One tensor in one file: what the tests below cut up -----------------------------------------------------------

struct OneFile {
  explicit OneFile(const TemporaryDirectory& folder, Shape shape, std::uint64_t offset_bytes = 0,
                   std::uint64_t seed = 7) {
    Random random(seed);
    const std::uint64_t count = volume(whole_box(shape));
    values = random_values(random, ElementType::uint8, 4 * count);
    Bytes file(offset_bytes);
    file.insert(file.end(), values.begin(), values.end());
    write_bytes(folder.path("one"), file);
    view.files.push_back({.path = folder.path("one"), .content = {}});
    view.tensors.push_back({"t", "weight", ElementType::int32, shape, {whole_piece(shape, 0, offset_bytes)}, 1, {}});
  }
  // The box, dense, to the given buffer.
  [[nodiscard]] PlannedCopy copy_of(const Box& box, std::uint32_t buffer) const {
    const StoredPiece& piece = view.tensors[0].pieces[0];
    return {0,
            ElementType::int32,
            ElementType::int32,
            box,
            {{0, 0, place_in(piece.box, piece.stride, box.begin), piece.stride}},
            {0, buffer, 0, dense_stride(box)}};
  }
  [[nodiscard]] Bytes expected(const Box& box) const {
    Bytes out(4 * volume(box));
    const Box whole = whole_box(view.tensors[0].shape);
    std::uint64_t next = 0;
    for_each_element(box, [&](const PerDimension& at) {
      std::memcpy(out.data() + next, values.data() + 4 * place_in(whole, dense_stride(whole), at), 4);
      next += 4;
    });
    return out;
  }
  CheckpointView view;
  Bytes values;
};

CopyTarget one_buffer(Bytes& bytes) {
  CopyTarget target;
  target.place = [&bytes](std::uint32_t, std::uint32_t) { return BufferPlace{bytes.data(), 0, 0, bytes.size()}; };
  return target;
}

std::uint64_t read_chars() {  // bytes that this process has asked files for
  std::ifstream in("/proc/self/io");
  std::string name;
  std::uint64_t value = 0;
  in >> name >> value;
  return value;
}

TEST(Execute, ReadsEachNeededByteOnce) {
  const TemporaryDirectory folder;
  const Shape shape{2048, 2048};  // 16 MiB
  const OneFile one(folder, shape, 4097);
  struct Case {
    const char* name;
    std::uint64_t column, columns, rows;
  };
  for (const Case& wanted : {Case{"rows", 0, 2048, 512}, Case{"columns of an eighth", 256, 256, 2048},
                             Case{"a few columns", 100, 16, 300}, Case{"nearly all columns", 3, 2000, 2048}}) {
    for (const bool io_uring : {false, true}) {
      SCOPED_TRACE(text(wanted.name, io_uring ? ", io_uring" : ", pread"));
      const Box box{2, {0, wanted.column}, {wanted.rows, wanted.columns}};
      Bytes memory(4 * volume(box));
      ExecuteOptions options;
      options.io_uring = io_uring;
      const std::uint64_t before = read_chars();
      const Result<ExecuteReport> report =
          execute(stream_of({one.copy_of(box, 0)}), places_of(one.view), one_buffer(memory), options);
      const std::uint64_t read = read_chars() - before;
      ASSERT_TRUE(report.has_value()) << report.error().what;
      EXPECT_EQ(first_difference(memory, one.expected(box)), "");
      EXPECT_GE(report->bytes_read, memory.size());
      EXPECT_LE(report->bytes_read, memory.size() + memory.size() / 20);
      if (!report->used_io_uring) {  // a ring's reads are not all counted for the process
        EXPECT_GE(read, memory.size());
        EXPECT_LE(read, memory.size() + memory.size() / 20 + 4096);
      }
    }
  }
}

TEST(Execute, ReadsOnceWhatManyWant) {
  const TemporaryDirectory folder;
  const Shape shape{1000, 3000};
  const OneFile one(folder, shape, 8);
  std::vector<Bytes> memory;
  std::vector<PlannedCopy> copies;
  for (std::uint32_t i = 0; i < 6; ++i) {  // all of it; rows that overlap; columns side by side
    const Box box = i < 2   ? whole_box(shape)
                    : i < 4 ? Box{2, {100u * i, 0}, {500, 3000}}
                            : Box{2, {0, i == 4 ? 0u : 1500u}, {1000, 1500}};
    copies.push_back(one.copy_of(box, i));
    memory.emplace_back(4 * volume(box));
  }
  CopyTarget target;
  target.place = [&](std::uint32_t, std::uint32_t buffer) {
    return BufferPlace{memory[buffer].data(), 0, 0, memory[buffer].size()};
  };
  for (const std::uint64_t budget : {std::uint64_t{1} << 20, std::uint64_t{1} << 30}) {
    for (Bytes& bytes : memory) std::ranges::fill(bytes, std::byte{0});
    ExecuteOptions options;
    options.memory_bytes = budget;
    const Result<ExecuteReport> report = execute(stream_of(copies), places_of(one.view), target, options);
    ASSERT_TRUE(report.has_value()) << report.error().what;
    for (std::uint32_t i = 0; i < 6; ++i) EXPECT_EQ(first_difference(memory[i], one.expected(copies[i].box)), "") << i;
    EXPECT_LE(report->bytes_read, one.values.size() + one.values.size() / 20) << budget;
  }
}

// Sanitizers keep memory of their own, which would be counted: their trees have no tests of memory.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PAWL_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define PAWL_SANITIZED 1
#endif
#endif
#ifndef PAWL_SANITIZED

TEST(Execute, KeepsToItsBudget) {
  const TemporaryDirectory folder;
  const OneFile one(folder, {6000, 1024}, 11);  // 24 MiB
  CopyTarget target;
  for (const std::uint64_t budget : {1 << 20, 4 << 20, 16 << 20}) {
    SCOPED_TRACE(budget);
    const std::string path = folder.path(text("copy", budget));
    target.files = {{path, one.values.size() + 3, "abc"}};
    target.place = [&](std::uint32_t, std::uint32_t) { return BufferPlace{nullptr, 0, 3, one.values.size()}; };
    // In a child, so that what this process holds doesn't count.
    const pid_t child = ::fork();
    if (child == 0) {
      rusage usage{};
      ::getrusage(RUSAGE_SELF, &usage);
      std::ofstream("/proc/self/clear_refs") << 5;  // the peak begins anew
      const auto peak = [] {
        std::ifstream in("/proc/self/status");
        for (std::string line; std::getline(in, line);)
          if (line.starts_with("VmHWM:")) return std::strtoull(line.c_str() + 6, nullptr, 10) * 1024;
        return 0ull;
      };
      const std::uint64_t before = peak();
      ExecuteOptions options;
      options.memory_bytes = budget;
      const Box whole = whole_box(one.view.tensors[0].shape);
      const Result<ExecuteReport> report =
          execute(stream_of({one.copy_of(whole, 0)}), places_of(one.view), target, options);
      if (!report) ::_exit(2);
      if (report->buffer_bytes_max > budget) ::_exit(3);
      ::_exit(peak() - before > budget + (2 << 20) ? 4 : 0);  // beside the buffers: threads, rings, the allocator
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0) << "2: failed, 3: says that it took more, 4: took more";
    Bytes expected(3);
    std::memcpy(expected.data(), "abc", 3);
    expected.insert(expected.end(), one.values.begin(), one.values.end());
    EXPECT_EQ(first_difference(read_bytes(path), expected), "");
  }
}

// A cgroup that may use so much memory; empty if this process may not make one.
class MemoryGroup {
 public:
  explicit MemoryGroup(std::uint64_t bytes) {
    const bool is_first_version = path_exists("/sys/fs/cgroup/memory/memory.limit_in_bytes");
    path_ = text(is_first_version ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup", "/pawl_execute_", ::getpid());
    if (::mkdir(path_.c_str(), 0755) != 0) {
      path_.clear();
      return;
    }
    std::ofstream limit(text(path_, is_first_version ? "/memory.limit_in_bytes" : "/memory.max"));
    limit << bytes << std::flush;
    usable_ = limit.good();
  }
  ~MemoryGroup() {
    if (!path_.empty()) ::rmdir(path_.c_str());
  }
  MemoryGroup(const MemoryGroup&) = delete;
  MemoryGroup& operator=(const MemoryGroup&) = delete;
  [[nodiscard]] bool usable() const { return usable_; }
  [[nodiscard]] bool enter() const {
    std::ofstream members(text(path_, "/cgroup.procs"));
    members << ::getpid() << std::flush;
    return members.good();
  }

 private:
  std::string path_;
  bool usable_ = false;
};

TEST(Execute, LivesInACgroupOfLittleMoreThanItsBudget) {
  const std::uint64_t budget = 8 << 20;
  const TemporaryDirectory folder;
  const OneFile one(folder, {24 << 10, 1024}, 11);  // 96 MiB
  for (const bool direct : {true, false}) {
    // Beside the buffers: the process itself, and pages of files in passing, as many dirty ones as buffers.
    const MemoryGroup group(budget + ((direct ? 16 : 24) << 20));
    if (!group.usable()) GTEST_SKIP() << "privilege: this process may not make memory cgroups";
    const std::string path = folder.path(direct ? "direct" : "buffered");
    const pid_t child = ::fork();
    if (child == 0) {
      if (!group.enter()) ::_exit(5);
      CopyTarget target;
      target.files = {{path, one.values.size(), ""}};
      target.place = [&](std::uint32_t, std::uint32_t) { return BufferPlace{nullptr, 0, 0, one.values.size()}; };
      ExecuteOptions options;
      options.memory_bytes = budget;
      options.direct = direct;
      const Box whole = whole_box(one.view.tensors[0].shape);
      ::_exit(execute(stream_of({one.copy_of(whole, 0)}), places_of(one.view), target, options) ? 0 : 2);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status)) << path << ": killed by signal " << WTERMSIG(status) << ": out of memory";
    EXPECT_EQ(WEXITSTATUS(status), 0) << "2: failed, 5: could not enter the cgroup";
    EXPECT_EQ(first_difference(read_bytes(path), one.values), "");
  }
}

#endif  // PAWL_SANITIZED

// Targets of one row each, gathered from columns: what tensor-parallel ranks hold becomes one file.
TEST(Execute, GathersColumnsIntoOneFile) {
  const TemporaryDirectory folder;
  Random random(3);
  Stored stored;
  stored.files.resize(4);
  Tensor tensor{ElementType::bfloat16, {3000, 1024}, {}};
  tensor.versions.push_back(random_values(random, tensor.type, 3000 * 1024));
  StoredTensor known{"t", "weight", tensor.type, tensor.shape, {}, 1, {}};
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    StoredPiece piece;
    piece.box = {2, {0, rank * 256}, {3000, 256}};
    piece.file = rank;
    piece.offset_bytes = 100 + rank;
    piece.stride = dense_stride(piece.box);
    put_piece(stored, tensor, piece);
    known.pieces.push_back(piece);
  }
  stored.view.tensors.push_back(known);
  write_files(random, stored, folder, false);
  const Box whole = whole_box(tensor.shape);
  std::vector<PlannedCopy> copies;
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    copies.push_back({0,
                      tensor.type,
                      tensor.type,
                      known.pieces[rank].box,
                      {{rank, rank, 0, known.pieces[rank].stride}},
                      {0, 0, rank * 256, dense_stride(whole)}});
  }
  CopyTarget target;
  target.files = {{folder.path("all"), tensor.versions[0].size() + 129, ""}};
  target.place = [&](std::uint32_t, std::uint32_t) { return BufferPlace{nullptr, 0, 129, tensor.versions[0].size()}; };
  ExecuteOptions options;
  options.memory_bytes = 2 << 20;
  const Result<ExecuteReport> report = execute(stream_of(copies), places_of(stored.view), target, options);
  ASSERT_TRUE(report.has_value()) << report.error().what;
  Bytes expected(129);
  expected.insert(expected.end(), tensor.versions[0].begin(), tensor.versions[0].end());
  EXPECT_EQ(first_difference(read_bytes(target.files[0].path), expected), "");
  EXPECT_EQ(report->bytes_written, tensor.versions[0].size());
  EXPECT_LE(report->bytes_read, tensor.versions[0].size() * 105 / 100);
}

TEST(Execute, MovesPackedTypesWholeOnly) {
  const TemporaryDirectory folder;
  Random random(5);
  const Bytes packed = random_values(random, ElementType::uint8, 300'000);  // 400,000 of six bits
  Bytes file(13);
  file.insert(file.end(), packed.begin(), packed.end());
  write_bytes(folder.path("packed"), file);
  CheckpointView view;
  view.files.push_back({.path = folder.path("packed"), .content = {}});
  const Shape shape{400, 1000};
  view.tensors.push_back({"t", "weight", ElementType::float6_e2m3, shape, {whole_piece(shape, 0, 13)}, 1, {}});
  Bytes memory(packed.size());
  const PerDimension stride = dense_stride(whole_box(shape));
  PlannedCopy copy{
      0, ElementType::float6_e2m3, ElementType::float6_e2m3, whole_box(shape), {{0, 0, 0, stride}}, {0, 0, 0, stride}};
  Result<ExecuteReport> report = execute(stream_of({copy}), places_of(view), one_buffer(memory));
  ASSERT_TRUE(report.has_value()) << report.error().what;
  EXPECT_EQ(first_difference(memory, packed), "");
  copy.box.begin[0] = 1;
  copy.box.size[0] = 399;
  report = execute(stream_of({copy}), places_of(view), one_buffer(memory));
  ASSERT_FALSE(report.has_value());
  EXPECT_EQ(report.error().code, Code::invalid);
}

TEST(Execute, RoundsMastersToWeightsAsTheyAreRead) {
  const TemporaryDirectory folder;
  Random random(6);
  const std::uint64_t count = 500'000;
  const Bytes masters = random_values(random, ElementType::float32, count);
  Bytes file(40);
  file.insert(file.end(), masters.begin(), masters.end());
  write_bytes(folder.path("masters"), file);
  CheckpointView view;
  view.files.push_back({.path = folder.path("masters"),
                        .codec = StoredFile::Codec::bfloat16,
                        .offset_bytes = 40,
                        .length_bytes = 4 * count,
                        .decoded_bytes = 2 * count,
                        .content = {}});
  const Shape shape{count - 1000};
  view.tensors.push_back({"t", "weight", ElementType::bfloat16, shape, {whole_piece(shape, 0, 2000)}, 1, {}});
  for (const ElementType to : {ElementType::bfloat16, ElementType::float32, ElementType::float16}) {
    Bytes expected(shape[0] * unit_of(to)), rounded(shape[0] * 2), memory(expected.size());
    (void)cast(ElementType::float32, std::span(masters).subspan(4000), ElementType::bfloat16, rounded);
    (void)cast(ElementType::bfloat16, rounded, to, expected);
    const PlannedCopy copy{0, ElementType::bfloat16, to, whole_box(shape), {{0, 0, 0, {1}}}, {0, 0, 0, {1}}};
    const Result<ExecuteReport> report = execute(stream_of({copy}), places_of(view), one_buffer(memory));
    ASSERT_TRUE(report.has_value()) << report.error().what;
    EXPECT_EQ(first_difference(memory, expected), "") << name_of(to);
  }
}

// --- What goes wrong ----------------------------------------------------------------------------------------------

TEST(Execute, NamesFileAndOffsetWhereAFileWasCut) {
  const TemporaryDirectory folder;
  const OneFile one(folder, {3000, 1024}, 5);
  ASSERT_EQ(::truncate(one.view.files[0].path.c_str(), 7'000'001), 0);
  Bytes memory(one.values.size());
  for (const bool io_uring : {false, true}) {
    for (const bool direct : {false, true}) {
      ExecuteOptions options;
      options.io_uring = io_uring;
      options.direct = direct;
      const Result<ExecuteReport> report = execute(stream_of({one.copy_of(whole_box({3000, 1024}), 0)}),
                                                   places_of(one.view), one_buffer(memory), options);
      ASSERT_FALSE(report.has_value());
      EXPECT_EQ(report.error().code, Code::corrupt) << report.error().what;
      EXPECT_NE(report.error().what.find(one.view.files[0].path), std::string::npos) << report.error().what;
      EXPECT_NE(report.error().what.find("truncated"), std::string::npos) << report.error().what;
    }
  }
}

TEST(Execute, RefusesWhatLeavesItsPlace) {
  const TemporaryDirectory folder;
  const OneFile one(folder, {10, 10});
  Bytes memory(400);
  PlannedCopy copy = one.copy_of(whole_box({10, 10}), 0);
  const auto code = [&](const PlannedCopy& bad, const CopyTarget& target) {
    const Result<ExecuteReport> report = execute(stream_of({bad}), places_of(one.view), target);
    return report ? Code::broken : report.error().code;
  };
  EXPECT_EQ(code(copy, one_buffer(memory)), Code::broken);  // it is fine
  PlannedCopy bad = copy;
  bad.target.offset = 1;
  EXPECT_EQ(code(bad, one_buffer(memory)), Code::invalid);
  bad = copy;
  bad.sources[0].stride[0] = 11;
  EXPECT_EQ(code(bad, one_buffer(memory)), Code::invalid);
  bad = copy;
  bad.sources[0].stride[0] = ~std::uint64_t{0} / 4;
  EXPECT_EQ(code(bad, one_buffer(memory)), Code::invalid);
  bad = copy;
  bad.sources[0].buffer = 1;
  EXPECT_EQ(code(bad, one_buffer(memory)), Code::invalid);
  bad = copy;
  bad.to = ElementType::float32;
  EXPECT_EQ(code(bad, one_buffer(memory)), Code::invalid);
  bad = copy;
  bad.sources.push_back(bad.sources[0]);  // a mean of int32
  EXPECT_EQ(code(bad, one_buffer(memory)), Code::invalid);
  CopyTarget there;
  there.files = {{one.view.files[0].path, 400, ""}};
  there.place = [](std::uint32_t, std::uint32_t) { return BufferPlace{nullptr, 0, 0, 400}; };
  EXPECT_EQ(code(copy, there), Code::invalid);
  there.files = {{folder.path("new"), 300, "0123456789"}};
  EXPECT_EQ(code(copy, there), Code::invalid);
}

TEST(Execute, GivesOnThePlansError) {
  const TemporaryDirectory folder;
  const OneFile one(folder, {10, 10});
  Bytes memory(400);
  const CopyStream failing = [&](const CopySink& sink) -> Status {
    sink(one.copy_of(whole_box({10, 10}), 0));
    return Error{Code::not_found, "tensor t: held by nobody"};
  };
  const Result<ExecuteReport> report = execute(failing, places_of(one.view), one_buffer(memory));
  ASSERT_FALSE(report.has_value());
  EXPECT_EQ(report.error().code, Code::not_found);
}

TEST(Execute, SaysWhenThereIsNoRoom) {
  const TemporaryDirectory folder;
  const OneFile one(folder, {3000, 1024});
  CopyTarget target;
  target.place = [&](std::uint32_t, std::uint32_t) { return BufferPlace{nullptr, 0, 0, one.values.size()}; };
  target.files = {{folder.path("large"), one.values.size(), ""}};
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{5 << 20, 5 << 20};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const Result<ExecuteReport> report =
        execute(stream_of({one.copy_of(whole_box({3000, 1024}), 0)}), places_of(one.view), target);
    ::_exit(report ? 1 : report.error().code == Code::full ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// By any system call.
std::uint64_t bytes_read_by_this_process() {
  std::ifstream counts("/proc/self/io");
  std::string name;
  std::uint64_t bytes = 0;
  return counts >> name >> bytes && name == "rchar:" ? bytes : 0;
}

// Soon: after what was on its way. How long that takes is the machine's.
TEST(Execute, EndsSoonAfterItWasCancelled) {
  const TemporaryDirectory folder;
  const OneFile one(folder, {20000, 1024});  // 80 MiB
  Bytes memory(one.values.size());
  const CopyStream many = [&](const CopySink& sink) -> Status {
    PlannedCopy copy = one.copy_of(whole_box({20000, 1024}), 0);
    for (int i = 0; i < 8; ++i) sink(copy), ++copy.tensor;
    return {};
  };
  std::atomic<bool> cancel{false};
  std::once_flag first;
  std::uint64_t read_before = 0;
  ExecuteOptions options;
  options.threads = 1;
  options.io_uring = false;  // whose reads are not counted for the process
  options.cancel = &cancel;
  options.observe_read = [&](auto...) {
    std::call_once(first, [&] {
      read_before = bytes_read_by_this_process();
      cancel = true;
    });
  };
  const Result<ExecuteReport> report = execute(many, places_of(one.view), one_buffer(memory), options);
  ASSERT_FALSE(report.has_value());
  EXPECT_EQ(report.error().code, Code::cancelled);
  ASSERT_GT(read_before, 0u);
  // Requests of half a MiB, where a slab has 16: not even the one at hand is read to its end.
  EXPECT_LE(bytes_read_by_this_process() - read_before, 4u << 20);
}

TEST(Execute, TellsItsProgressToTheEnd) {
  const TemporaryDirectory folder;
  const OneFile one(folder, {100, 100});
  Bytes memory(one.values.size());
  ExecuteOptions options;
  options.bytes_expected = memory.size();
  std::vector<std::uint64_t> seen;
  options.progress = [&](const ExecuteProgress& now) {
    EXPECT_EQ(now.bytes_all, memory.size());
    seen.push_back(now.bytes_done);
  };
  ASSERT_TRUE(
      execute(stream_of({one.copy_of(whole_box({100, 100}), 0)}), places_of(one.view), one_buffer(memory), options)
          .has_value());
  ASSERT_FALSE(seen.empty());
  EXPECT_EQ(seen.back(), memory.size());
}

TEST(Execute, RefusesAnEncodedTensorLargerThanItsBudget) {
  const TemporaryDirectory folder;
  Random random(8);
  const Bytes values = random_values(random, ElementType::uint8, 3 << 20);
  const std::string frame = zstd_frame(values);
  Bytes file(frame.size());
  std::memcpy(file.data(), frame.data(), frame.size());
  write_bytes(folder.path("z"), file);
  CheckpointView view;
  view.files.push_back({.path = folder.path("z"),
                        .codec = StoredFile::Codec::zstd,
                        .length_bytes = frame.size(),
                        .decoded_bytes = values.size(),
                        .content = {}});
  const Shape shape{values.size()};
  view.tensors.push_back({"t", "weight", ElementType::uint8, shape, {whole_piece(shape, 0, 0)}, 1, {}});
  Bytes memory(values.size());
  const PlannedCopy copy{0, ElementType::uint8, ElementType::uint8, whole_box(shape), {{0, 0, 0, {1}}}, {0, 0, 0, {1}}};
  ExecuteOptions options;
  options.memory_bytes = 4 << 20;
  Result<ExecuteReport> report = execute(stream_of({copy}), places_of(view), one_buffer(memory), options);
  ASSERT_FALSE(report.has_value());
  EXPECT_EQ(report.error().code, Code::full) << report.error().what;
  options.memory_bytes = 16 << 20;
  report = execute(stream_of({copy}), places_of(view), one_buffer(memory), options);
  ASSERT_TRUE(report.has_value()) << report.error().what;
  EXPECT_EQ(first_difference(memory, values), "");
  EXPECT_LE(report->buffer_bytes_max, options.memory_bytes);
}

// --- A view as a plan's source ------------------------------------------------------------------------------------

TEST(FileSource, IsASourceForPlans) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const TemporaryDirectory folder;
    Stored stored = random_stored(random, 2000, 3);
    write_files(random, stored, folder, false);
    JobLayout layout;
    layout.world = 2;
    layout.meshes.push_back({"mesh", {{"dp", 2}}});
    for (const StoredTensor& tensor : stored.view.tensors) {
      JobTensor wanted{tensor.name, tensor.role, tensor.type, tensor.shape, {}, {}};
      if (!tensor.shape.empty()) wanted.placement.patterns.push_back(AxisPattern::shard(0, 0));
      layout.tensors.push_back(wanted);
    }
    ASSERT_TRUE(check_layout(layout).has_value());
    const Enumeration enumeration(layout);
    const ReshapeSource source = source_of(stored.view);
    const Result<ReshapePlan> plan = ReshapePlan::create(source, enumeration);
    ASSERT_TRUE(plan.has_value()) << plan.error().what;
    std::map<std::pair<std::uint32_t, std::uint32_t>, Bytes> memory;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      for (const Buffer& buffer : enumeration.buffers_of(rank))
        memory[{rank, buffer.number}].resize(buffer.size * unit_of(buffer.dtype));
    }
    CopyTarget target;
    target.place = [&](std::uint32_t holder, std::uint32_t buffer) {
      Bytes& bytes = memory.at({holder, buffer});
      return BufferPlace{bytes.data(), 0, 0, bytes.size()};
    };
    const Result<ExecuteReport> report =
        execute([&](const CopySink& sink) { return plan->plan_all(sink); }, places_of(stored.view), target);
    ASSERT_TRUE(report.has_value()) << report.error().what;
    for (std::uint32_t t = 0; t < stored.tensors.size(); ++t) {
      Bytes joined = memory.at({0, t});
      const Bytes& second = memory.at({1, t});
      if (!stored.tensors[t].shape.empty()) joined.insert(joined.end(), second.begin(), second.end());
      EXPECT_EQ(first_difference(joined, mean_of(stored.tensors[t])), "") << t;
    }
  }
}

TEST(FileSource, TakesOnlyTheTrustedCopyAndTheRolesAskedFor) {
  CheckpointView view;
  view.files.resize(2);
  const Shape shape{4};
  StoredTensor tensor{"a", "weight", ElementType::float32, shape, {}, 1, {}};
  for (std::uint32_t copy = 0; copy < 2; ++copy) {
    tensor.pieces.push_back(whole_piece(shape, copy, 0));
    tensor.pieces.back().copy = copy;
  }
  view.tensors.push_back(tensor);
  tensor.role = "exp_avg";
  view.tensors.push_back(tensor);
  const ReshapeSource source = source_of(view, {.trusted_copy = 1, .roles = {"exp_avg"}});
  ASSERT_EQ(source.tensors.size(), 1u);
  EXPECT_EQ(source.tensors[0].role, "exp_avg");
  std::vector<TensorPiece> pieces;
  source.append_pieces(0, pieces);
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].holder, 1u);
  EXPECT_EQ(pieces[0].buffer, 3u);
  EXPECT_EQ(places_of(view).place(1, 3).size_bytes, 16u);
  EXPECT_EQ(places_of(view).place(0, 3).size_bytes, 0u);  // that piece is in the other file
  EXPECT_EQ(places_of(view).place(0, 4).size_bytes, 0u);
}

// --- Replicas -----------------------------------------------------------------------------------------------------

TEST(CompareCopies, FindsNothingWhereAllAreEqual) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const TemporaryDirectory folder;
    Stored stored = random_stored(random, 3000, 3);
    write_files(random, stored, folder, seed % 2 == 0);
    std::vector<std::uint32_t> all;
    for (std::uint32_t t = 0; t < stored.view.tensors.size(); ++t) all.push_back(t);
    const Result<std::vector<CopyDifference>> found = compare_copies(stored.view, all);
    ASSERT_TRUE(found.has_value()) << found.error().what;
    EXPECT_TRUE(found->empty());
  }
}

TEST(CompareCopies, NamesTheTensorAndWhoWroteIt) {
  const TemporaryDirectory folder;
  Random random(9);
  const Bytes values = random_values(random, ElementType::uint8, 4 * 300'000);
  Bytes other = values;
  other[4 * 5000] ^= std::byte{1};
  other[4 * 5001 + 3] ^= std::byte{128};
  other[4 * 299'999] ^= std::byte{4};
  write_bytes(folder.path("a"), values);
  write_bytes(folder.path("b"), other);
  CheckpointView view;
  const Shape shape{300, 1000};
  StoredTensor tensor{"w", "exp_avg", ElementType::float32, shape, {}, 1, {}};
  for (std::uint32_t copy = 0; copy < 2; ++copy) {
    view.files.push_back({.path = folder.path(copy == 0 ? "a" : "b"), .content = {}});
    tensor.pieces.push_back(whole_piece(shape, copy, 0));
    tensor.pieces.back().copy = copy;
    tensor.pieces.back().rank = 3 + copy;
  }
  view.tensors.push_back(tensor);
  EXPECT_TRUE(has_copies(view));
  for (const std::uint64_t budget : {std::uint64_t{1} << 20, std::uint64_t{1} << 30}) {
    ExecuteOptions options;
    options.memory_bytes = budget;
    const Result<std::vector<CopyDifference>> found = compare_copies(view, {0}, options);
    ASSERT_TRUE(found.has_value()) << found.error().what;
    ASSERT_EQ(found->size(), 1u);
    EXPECT_EQ(found->front().elements, 3u);
    EXPECT_EQ(found->front().element, (Shape{5, 0}));
    const std::string sentence = sentence_of(found->front(), view);
    for (const char* part : {"w", "exp_avg", "rank 3", "rank 4", "3 elements", "[5,0]"})
      EXPECT_NE(sentence.find(part), std::string::npos) << sentence;
  }
}

// Files at held://: in memory, or of a server that says that they were replaced.
class HeldFiles final : public Files {
 public:
  void hold(const std::string& path, Bytes bytes) { held_[path] = std::move(bytes); }
  std::atomic<bool> is_stale{false};
  std::atomic<std::uint64_t> opened{0}, bytes_read{0}, longest{0}, at_once{0}, at_once_max{0};

  Result<std::unique_ptr<File>> open(const std::string& path, OpenOptions options) override {
    if (!options.shared || options.write) return Error{Code::broken, "not as the executor opens it"};
    if (!held_.contains(path)) return Error{Code::not_found, path};
    ++opened;
    return std::unique_ptr<File>(std::make_unique<Held>(*this, held_[path]));
  }
  Status rename(const std::string& /*from*/, const std::string& to) override { return check_no_address(to); }
  Status remove(const std::string& path) override { return check_no_address(path); }
  Result<std::vector<std::string>> list(const std::string& path) override { return Error{Code::not_found, path}; }
  Status sync_directory(const std::string& path) override { return check_no_address(path); }
  bool exists(const std::string& path) override { return held_.contains(path); }

 private:
  class Held final : public File {
   public:
    Held(HeldFiles& all, const Bytes& bytes) : all_(all), bytes_(bytes) {}
    Result<std::size_t> read_at(std::uint64_t offset_bytes, std::span<std::byte> buffer) override {
      if (all_.is_stale) return Error{Code::stale, "the object was replaced"};
      raise(all_.at_once_max, ++all_.at_once);
      raise(all_.longest, buffer.size());
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const std::size_t count =
          offset_bytes >= bytes_.size() ? 0 : std::min(buffer.size(), bytes_.size() - offset_bytes);
      std::memcpy(buffer.data(), bytes_.data() + offset_bytes, count);
      all_.bytes_read += count;
      --all_.at_once;
      return count;
    }
    Result<std::uint64_t> size() override { return bytes_.size(); }
    Status write_at(std::uint64_t /*offset_bytes*/, std::span<const std::byte> /*bytes*/) override { return {}; }
    Status sync() override { return {}; }
    Status truncate(std::uint64_t /*size_bytes*/) override { return {}; }
    Status close() override { return {}; }

   private:
    static void raise(std::atomic<std::uint64_t>& most, std::uint64_t value) {
      for (std::uint64_t now = most; now < value && !most.compare_exchange_weak(now, value);) {
      }
    }
    HeldFiles& all_;
    const Bytes& bytes_;
  };
  std::map<std::string, Bytes> held_;
};

HeldFiles& held_files() {
  static HeldFiles files;
  read_addresses_by("held", files);
  return files;
}

// One tensor in a file at `path`, to memory.
Result<ExecuteReport> read_from(const std::string& path, std::uint64_t size_bytes, StoredFile::Codec codec,
                                std::uint64_t stored_bytes, Bytes& out, std::uint64_t memory_bytes) {
  out.assign(size_bytes, std::byte{0});
  std::vector<StoredFile> files = {{.path = path, .content = {}}};
  files[0].codec = codec;
  if (codec != StoredFile::Codec::none) {
    files[0].length_bytes = stored_bytes;
    files[0].decoded_bytes = size_bytes;
  }
  const CopySource source{&files, [&](std::uint32_t, std::uint32_t) { return BufferPlace{nullptr, 0, 0, size_bytes}; }};
  CopyTarget target;
  target.place = [&](std::uint32_t, std::uint32_t) { return BufferPlace{out.data(), 0, 0, size_bytes}; };
  const Box box = whole_box({size_bytes});
  const PlannedCopy copy{0, ElementType::uint8, ElementType::uint8, box, {{0, 0, 0, {1}}}, {0, 0, 0, {1}}};
  ExecuteOptions options;
  options.memory_bytes = memory_bytes;
  return execute(stream_of({copy}), source, target, options);
}

TEST(ExecuteAddresses, AreReadInLongRequestsManyAtOnce) {
  Random random(11);
  const Bytes values = random_values(random, ElementType::uint8, 100'000'003);
  HeldFiles& held = held_files();
  held.hold("held://h/big", values);
  held.opened = held.bytes_read = held.longest = held.at_once_max = 0;
  Bytes out;
  const Result<ExecuteReport> done =
      read_from("held://h/big", values.size(), StoredFile::Codec::none, 0, out, std::uint64_t{1} << 30);
  ASSERT_TRUE(done) << done.error().what;
  EXPECT_TRUE(out == values);
  EXPECT_EQ(held.bytes_read, values.size());
  EXPECT_EQ(done->bytes_read, values.size());
  EXPECT_GE(held.longest, std::uint64_t{2} << 20);
  EXPECT_LE(held.longest, std::uint64_t{8} << 20);
  EXPECT_GE(held.at_once_max, 5u);
}

TEST(ExecuteAddresses, KeepToTheBudget) {
  Random random(12);
  const Bytes values = random_values(random, ElementType::uint8, 3'000'001);
  HeldFiles& held = held_files();
  held.hold("held://h/small", values);
  Bytes out;
  const Result<ExecuteReport> done =
      read_from("held://h/small", values.size(), StoredFile::Codec::none, 0, out, std::uint64_t{2} << 20);
  ASSERT_TRUE(done) << done.error().what;
  EXPECT_TRUE(out == values);
  EXPECT_LE(done->buffer_bytes_max, std::uint64_t{2} << 20);
}

TEST(ExecuteAddresses, AreDecoded) {
  const std::string words(1'000'000, 'a');
  Bytes packed(ZSTD_compressBound(words.size()));
  packed.resize(ZSTD_compress(packed.data(), packed.size(), words.data(), words.size(), 1));
  const std::uint64_t stored = packed.size();
  held_files().hold("held://h/zstd", std::move(packed));
  Bytes out;
  const auto done =
      read_from("held://h/zstd", words.size(), StoredFile::Codec::zstd, stored, out, std::uint64_t{64} << 20);
  ASSERT_TRUE(done) << done.error().what;
  EXPECT_TRUE(std::ranges::all_of(out, [](std::byte byte) { return byte == std::byte{'a'}; }));
  const auto cut =
      read_from("held://h/zstd", words.size(), StoredFile::Codec::zstd, stored + 1, out, std::uint64_t{64} << 20);
  EXPECT_EQ(cut.error().code, Code::corrupt);
}

TEST(ExecuteAddresses, TellWhatTheServerSays) {
  HeldFiles& held = held_files();
  held.hold("held://h/file", Bytes(1000));
  Bytes out;
  EXPECT_EQ(read_from("held://h/none", 1000, StoredFile::Codec::none, 0, out, 1 << 20).error().code, Code::not_found);
  EXPECT_EQ(read_from("held://h/file", 1001, StoredFile::Codec::none, 0, out, 1 << 20).error().code, Code::corrupt);
  held.is_stale = true;
  const Result<ExecuteReport> done = read_from("held://h/file", 1000, StoredFile::Codec::none, 0, out, 1 << 20);
  held.is_stale = false;
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, Code::stale);
  EXPECT_EQ(done.error().what, "the object was replaced");
}

TEST(ExecuteAddresses, AreNoTargets) {
  CopyTarget target;
  target.files.push_back({.path = "held://h/new", .size_bytes = 1});
  target.place = [](std::uint32_t, std::uint32_t) { return BufferPlace{}; };
  EXPECT_EQ(execute(stream_of({}), {}, target).error().code, Code::invalid);
}

}  // namespace
}  // namespace pawl::checkpoint
