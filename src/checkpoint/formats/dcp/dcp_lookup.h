// DcpLookup: the tables by which one DCP metadata file is read: keys by number, places by key.
//
// Metadata name hundreds of thousands of tensors: each text is looked up once and is a number from then on, and tables
// lie in one piece of memory. Pure.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/index_table.h"
#include "checkpoint/containers/pickle.h"
#include "checkpoint/formats/dcp/dcp.h"
#include "checkpoint/formats/dcp/dcp_data_files.h"
#include "env/huge_pages.h"
#include "tensor/box.h"

namespace pawl::checkpoint {

// Names that objects by the hundred thousand have their fields under; these are the first keys' numbers.
constexpr std::array<std::string_view, 10> kDcpFieldNames = {
    "fqn",        "offset", "relative_path", "length",  "transform_descriptors",
    "properties", "size",   "chunks",        "offsets", "sizes"};
enum DcpField : std::uint32_t {
  kFqn,
  kOffset,
  kRelativePath,
  kLength,
  kTransforms,
  kProperties,
  kSize,
  kChunks,
  kOffsets,
  kSizes,
};

struct DcpKey {
  static constexpr std::uint32_t kNone = ~0u;
  std::string_view text;
  Pickle::Value path = Pickle::kNothing;
  std::uint32_t order = 0;
  std::uint32_t tensor = kNone;  // in DcpCheckpoint
  bool is_object = false;        // one of DcpCheckpoint's
  DcpDataFile* file = nullptr;   // if it is a file's name that was asked for
};

// The texts of one metadata file, each with a number.
class DcpKeys {
 public:
  void clear(const Pickle& pickle) {
    numbers_.assign(pickle.text_count(), DcpKey::kNone);
    key_numbers_.clear(pickle.text_count() + kDcpFieldNames.size());
    keys_.clear();
    for (const std::string_view name : kDcpFieldNames) add(name);
  }
  void expect(std::size_t more) { keys_.reserve(keys_.size() + more); }
  [[nodiscard]] DcpKey& operator[](std::uint32_t number) { return keys_[number]; }

  // Of a string. Picklers write each once, so that its text is looked up once.
  std::uint32_t number_of(const Pickle& pickle, Pickle::Value key) {
    std::uint32_t& number = numbers_[pickle.text_number(key)];
    if (number != DcpKey::kNone) return number;
    return number = add(pickle.text(key));
  }
  // What the object's state holds under that name: the last one, as Python has it.
  Pickle::Value field_of(const Pickle& pickle, Pickle::Value object, DcpField name) {
    const Pickle::Value state = pickle.object(object).state;
    if (!pickle.is(state, PickleKind::dict)) return Pickle::kNothing;
    const std::span<const Pickle::Value> pairs = pickle.items(state);
    if (pairs.size() > Pickle::kRecordItemsMax) return Pickle::kNothing;
    for (std::size_t i = pairs.size(); i >= 2; i -= 2)
      if (pickle.is(pairs[i - 2], PickleKind::string) && number_of(pickle, pairs[i - 2]) == name) return pairs[i - 1];
    return Pickle::kNothing;
  }

 private:
  std::uint32_t add(std::string_view key) {
    const auto next = static_cast<std::uint32_t>(keys_.size());
    const std::uint64_t hash = std::hash<std::string_view>()(key);
    const std::uint32_t number =
        key_numbers_.find_or_add(hash, next, [&](std::uint32_t one) { return keys_[one].text == key; });
    if (number == next) keys_.push_back({key});
    return number;
  }

  std::vector<DcpKey> keys_;
  IndexTable key_numbers_;
  std::vector<std::uint32_t> numbers_;  // by the pickle's text_number; kNone: not asked yet
};

// What a place is looked up by: the key's number and, of a tensor's chunk, its offset.
struct DcpPlaceKey {
  static constexpr std::uint32_t kObject = ~0u;  // as dimensions: no tensor's
  std::uint32_t key = 0;
  std::uint32_t dimensions = 0;
  PerDimension offset{};
  bool operator==(const DcpPlaceKey&) const = default;
};

// For an IndexTable: tensors that have one place have their cells in a row.
inline std::uint64_t hash_of(const DcpPlaceKey& key) {
  std::uint64_t hash = 0;
  for (std::uint32_t d = 0; key.dimensions != DcpPlaceKey::kObject && d < key.dimensions; ++d)
    hash = (hash ^ key.offset[d] ^ hash >> 29) * 0xbf58476d1ce4e5b9u;
  const std::uint64_t mixed = (hash ^ (std::uint64_t{key.key} << 32 | key.dimensions)) * 0x9e3779b97f4a7c15u;
  return mixed >> 32 << 32 | static_cast<std::uint32_t>(key.key + (hash >> 32));
}

inline DcpPlaceKey place_key(std::uint32_t key, const Shape& offset) {
  DcpPlaceKey out{key, static_cast<std::uint32_t>(offset.size()), {}};
  std::ranges::copy(offset, out.offset.begin());
  return out;
}

struct DcpFoundPlace {
  DcpPlaceKey key;
  DcpPlace place;
  bool is_lost = false;  // its bytes aren't there
};

// Places by their keys, in the order in which they came.
class DcpPlaces {
 public:
  void clear(std::size_t expected) {
    found_.clear();
    found_.reserve(expected);
    prefer_huge_pages(found_);
    numbers_.clear(expected);
  }
  // False if the key is there. At most as many as were expected.
  bool add(DcpFoundPlace found) {
    const auto next = static_cast<std::uint32_t>(found_.size());
    const auto is_equal = [&](std::uint32_t number) { return found_[number].key == found.key; };
    if (numbers_.find_or_add(hash_of(found.key), next, is_equal) != next) return false;
    found_.push_back(std::move(found));
    return true;
  }
  [[nodiscard]] const DcpFoundPlace* find(const DcpPlaceKey& key) const {
    const std::uint32_t number = numbers_.find(hash_of(key), [&](std::uint32_t n) { return found_[n].key == key; });
    return number == IndexTable::kNone ? nullptr : &found_[number];
  }

 private:
  std::vector<DcpFoundPlace> found_;
  IndexTable numbers_;
};

}  // namespace pawl::checkpoint
