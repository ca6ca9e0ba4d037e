// For tests: a reader's view against golden.safetensors, bit for bit.
//
// Tensors are put together naively, element by element, by index arithmetic: no code of reshape that plans or
// moves.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "checkpoint/containers/safetensors.h"
#include "checkpoint/formats/fixtures.h"
#include "checkpoint/reshape/cast.h"
#include "checkpoint/reshape/stored_file.h"
#include "checkpoint/view/checkpoint_view.h"
#include "env/byte_source.h"

namespace pawl::checkpoint::fixtures {

// The decoded bytes of each file of a view, read once.
class Contents {
 public:
  explicit Contents(const CheckpointView& view) : view_(view) {}
  const std::string& operator[](std::uint32_t file) {
    auto [at, is_new] = bytes_.try_emplace(file);
    if (!is_new) return at->second;
    Result<std::unique_ptr<ByteSource>> source = open_stored(view_.files[file]);
    EXPECT_TRUE(source.has_value()) << (source ? "" : source.error().what);
    if (!source) return at->second;
    Result<std::string> bytes = read_text(**source, 0, (*source)->size_bytes());
    EXPECT_TRUE(bytes.has_value()) << (bytes ? "" : bytes.error().what);
    if (bytes) at->second = std::move(*bytes);
    return at->second;
  }

 private:
  const CheckpointView& view_;
  std::map<std::uint32_t, std::string> bytes_;
};

// One version and copy of a tensor, row-major and little-endian; what no piece covers is 0x5a. Notices elements that
// two pieces claim and bytes outside their file.
inline std::string version_of(const StoredTensor& tensor, Contents& contents, std::uint32_t version,
                              std::uint32_t copy) {
  std::uint64_t count = 1;
  for (const std::uint64_t extent : tensor.shape) count *= extent;
  if (size_bits(tensor.type) % 8 != 0) {  // packed: one dense piece
    if (tensor.pieces.empty()) return {};
    const StoredPiece& piece = tensor.pieces[0];
    return contents[piece.file].substr(piece.offset_bytes, count * size_bits(tensor.type) / 8);
  }
  const std::size_t element = size_bits(tensor.type) / 8;
  std::string whole(count * element, '\x5a');
  std::vector<bool> is_written(count, false);
  for (const StoredPiece& piece : tensor.pieces) {
    if (piece.version != version || piece.copy != copy) continue;
    const std::string& file = contents[piece.file];
    std::uint64_t elements = 1;
    for (std::uint32_t d = 0; d < piece.box.dimensions; ++d) elements *= piece.box.size[d];
    for (std::uint64_t i = 0; i < elements; ++i) {
      std::uint64_t rest = i, to = 0, from = 0, scale = 1;
      for (std::uint32_t d = piece.box.dimensions; d-- > 0; rest /= piece.box.size[d]) {
        const std::uint64_t at = rest % piece.box.size[d];
        from += at * piece.stride[d];
        to += (piece.box.begin[d] + at) * scale;
        scale *= tensor.shape[d];
      }
      const std::uint64_t byte = piece.offset_bytes + from * element;
      if (to >= count || byte + element > file.size()) {
        ADD_FAILURE() << tensor.name << ": a piece passes the end of its tensor or file";
        return whole;
      }
      EXPECT_FALSE(is_written[to]) << tensor.name << ": element " << to << " is there twice";
      is_written[to] = true;
      std::memcpy(whole.data() + to * element, file.data() + byte, element);
      if (piece.swapped)
        for (std::size_t first = to * element; first < (to + 1) * element; first += swapped_bytes(tensor.type))
          std::reverse(whole.begin() + static_cast<std::ptrdiff_t>(first),
                       whole.begin() + static_cast<std::ptrdiff_t>(first + swapped_bytes(tensor.type)));
    }
  }
  EXPECT_EQ(std::ranges::count(is_written, true), static_cast<std::ptrdiff_t>(count)) << tensor.name << " has holes";
  return whole;
}

// The tensor's value: of several versions the mean; all copies of one version have to be equal.
inline std::string whole_of(const StoredTensor& tensor, Contents& contents) {
  std::vector<std::string> versions;
  for (std::uint32_t version = 0; version < tensor.versions; ++version) {
    versions.push_back(version_of(tensor, contents, version, 0));
    std::set<std::uint32_t> copies;
    for (const StoredPiece& piece : tensor.pieces)
      if (piece.version == version) copies.insert(piece.copy);
    for (const std::uint32_t copy : copies)
      EXPECT_TRUE(version_of(tensor, contents, version, copy) == versions.back())
          << tensor.name << "/" << tensor.role << ": copy " << copy << " differs";
  }
  if (versions.size() == 1 || versions[0].empty()) return versions[0];
  std::vector<const std::byte*> at;
  for (const std::string& version : versions) at.push_back(reinterpret_cast<const std::byte*>(version.data()));
  std::string mean(versions[0].size(), '\0');
  average(tensor.type, at, mean.size() / (size_bits(tensor.type) / 8), reinterpret_cast<std::byte*>(mean.data()));
  return mean;
}

// Every golden tensor is in the view under its <name>/<role>, with its type, shape and bytes; nothing is missing, and
// the view has no problems. `may_differ` are golden keys that the files can't have (say why at the call); tensors of
// the view that the golden lacks are allowed only if `allow_more`. Returns how many were compared.
inline std::size_t expect_golden(const CheckpointView& view, const std::string& golden_path,
                                 const std::set<std::string>& may_lack = {}, bool allow_more = true) {
  const std::string bytes = content(golden_path);
  MemoryBytes source(bytes);
  Result<SafetensorsFile> golden = read_safetensors(source);
  EXPECT_TRUE(golden.has_value()) << (golden ? "" : golden.error().what);
  if (!golden) return 0;
  for (const std::string& problem : view.problems) ADD_FAILURE() << golden_path << ": " << problem;
  std::map<std::string, const StoredTensor*> tensors;
  for (const StoredTensor& tensor : view.tensors)
    EXPECT_TRUE(tensors.emplace(tensor.name + "/" + tensor.role, &tensor).second)
        << tensor.name << "/" << tensor.role << " is there twice";
  std::map<std::string, std::string> kept;
  for (const auto& [alias, name] : view.aliases) kept[alias] = name;
  Contents contents(view);
  std::set<std::string> compared;  // an alias and the name that is kept may both be in the golden
  std::size_t count = 0;
  for (const SafetensorsEntry& entry : golden->tensors) {
    std::string key = entry.name;
    const std::size_t slash = key.rfind('/');
    if (!tensors.contains(key) && kept.contains(key.substr(0, slash)))
      key = kept[key.substr(0, slash)] + key.substr(slash);
    if (!tensors.contains(key)) {
      EXPECT_TRUE(may_lack.contains(entry.name)) << golden_path << ": no " << entry.name;
      continue;
    }
    const StoredTensor& tensor = *tensors[key];
    compared.insert(key);
    ++count;
    if (entry.type == tensor.type) {
      EXPECT_EQ(entry.shape, tensor.shape) << key;
    }
    EXPECT_TRUE(whole_of(tensor, contents) == bytes.substr(entry.offset_bytes, entry.size_bytes))
        << golden_path << ": " << key << " differs";
  }
  if (!allow_more)
    for (const auto& [key, tensor] : tensors)
      if (!compared.contains(key)) ADD_FAILURE() << golden_path << " has no " << key;
  return count;
}

}  // namespace pawl::checkpoint::fixtures
