// For tests: torch_dist checkpoints of any geometry, written naively: what the real fixtures are too few to show.
//
// The metadata is a pickle in the form of torch's; tensors lie in safetensors files, which DCP allows too.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "env/files.h"
#include "tensor/box.h"

namespace pawl::checkpoint::fixtures {

// Opcodes of protocol 2, just enough.
namespace pickled {
inline std::string global(std::string_view module, std::string_view name) {
  return text('c', module, '\n', name, '\n');
}
inline std::string number(std::uint64_t value) {
  std::string out = "\x8a\x09";
  for (int i = 0; i < 9; ++i) out.push_back(i < 8 ? static_cast<char>(value >> 8 * i) : '\0');
  return out;
}
inline std::string string(std::string_view value) {
  std::string out = "X";
  for (int i = 0; i < 4; ++i) out.push_back(static_cast<char>(value.size() >> 8 * i));
  return out += value;
}
inline std::string tuple(const std::vector<std::uint64_t>& values) {
  std::string out = "(";
  for (const std::uint64_t value : values) out += number(value);
  return out += 't';
}
inline std::string dict(const std::vector<std::pair<std::string, std::string>>& pairs) {
  std::string out = "}(";
  for (const auto& [key, value] : pairs) out += key + value;
  return out += 'u';
}
inline std::string object(std::string_view module, std::string_view name,
                          const std::vector<std::pair<std::string, std::string>>& fields) {
  std::vector<std::pair<std::string, std::string>> state;
  for (const auto& [key, value] : fields) state.emplace_back(string(key), value);
  return global(module, name) + ")\x81" + dict(state) + 'b';
}

// torch.save of [{"0": {"float32": {role: flat tensor}}}], as a stream: what an item may be.
inline std::string torch_stream(const std::vector<std::pair<std::string, std::string>>& flat) {
  const std::string kBegin = "\x80\x02";
  std::vector<std::pair<std::string, std::string>> tensors;
  std::vector<std::pair<std::string, std::string>> storages;  // key, bytes
  for (const auto& [role, bytes] : flat) {
    const std::string key = text(storages.size());
    storages.emplace_back(key, bytes);
    const std::string storage = "(" + string("storage") + global("torch", "FloatStorage") + string(key) +
                                string("cpu") + number(bytes.size() / 4) + "NtQ";
    tensors.emplace_back(string(role), global("torch._utils", "_rebuild_tensor_v2") + "(" + storage + number(0) +
                                           tuple({bytes.size() / 4}) + tuple({1}) + "\x89" +
                                           global("collections", "OrderedDict") + ")R" + "tR");
  }
  const std::string object = dict({{string("0"), dict({{string("float32"), dict(tensors)}})}});
  std::string keys = "](";
  for (const auto& [key, bytes] : storages) keys += string(key);
  std::string out("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15);
  out += kBegin + number(1001) + '.';
  out += kBegin + dict({{string("protocol_version"), number(1001)}, {string("little_endian"), "\x88"}}) + '.';
  out += kBegin + "](" + object + "e." + kBegin + keys + "e.";
  for (const auto& [key, bytes] : storages) {
    for (int i = 0; i < 8; ++i) out.push_back(static_cast<char>(bytes.size() / 4 >> 8 * i));
    out += bytes;
  }
  return out;
}
}  // namespace pickled

class MadeCheckpoint {
 public:
  // A chunk of a tensor. `type` is torch's name of it, "float32" or "bfloat16".
  void add(const std::string& key, const std::string& type, const Shape& whole, const Shape& offset, const Shape& shape,
           std::string bytes) {
    Tensor& tensor = tensors_[key];
    tensor.type = type;
    tensor.whole = whole;
    tensor.chunks.push_back({offset, shape, std::move(bytes)});
  }
  void add_object(const std::string& key, std::string bytes) { objects_[key] = std::move(bytes); }

  void save(const std::string& folder) const {
    using namespace pickled;
    const std::string kModule = "torch.distributed.checkpoint.metadata";
    ASSERT_TRUE(make_directories(folder).has_value());
    std::vector<std::pair<std::string, std::string>> entries;
    std::vector<std::pair<std::string, std::string>> places;
    std::size_t files = 0;
    const auto place = [&](const std::string& key, const Shape* offset, const std::string& bytes) {
      const std::string name = text("__0_", files++, ".distcp");
      write(folder, name, bytes);
      places.emplace_back(
          object(kModule, "MetadataIndex",
                 {{"fqn", string(key)}, {"offset", offset == nullptr ? "N" : tuple(*offset)}}),
          object("torch.distributed.checkpoint.filesystem", "_StorageInfo",
                 {{"relative_path", string(name)}, {"offset", number(0)}, {"length", number(bytes.size())}}));
    };
    for (const auto& [key, tensor] : tensors_) {
      std::string chunks = "](";
      for (const Chunk& chunk : tensor.chunks) {
        chunks +=
            object(kModule, "ChunkStorageMetadata", {{"offsets", tuple(chunk.offset)}, {"sizes", tuple(chunk.shape)}});
        std::string shape = text_of(chunk.shape);
        std::string header = text(R"({")", key, R"(":{"dtype":")", tensor.type == "float32" ? "F32" : "BF16",
                                  R"(","shape":)", shape, R"(,"data_offsets":[0,)", chunk.bytes.size(), "]}}");
        while (header.size() % 256 == 0x80) header += ' ';  // what would begin as a pickle does
        std::string file;
        for (int i = 0; i < 8; ++i) file.push_back(static_cast<char>(header.size() >> 8 * i));
        place(key, &chunk.offset, file + header + chunk.bytes);
      }
      entries.emplace_back(
          string(key),
          object(kModule, "TensorStorageMetadata",
                 {{"properties", object(kModule, "TensorProperties", {{"dtype", global("torch", tensor.type)}})},
                  {"size", tuple(tensor.whole)},
                  {"chunks", chunks + 'e'}}));
    }
    for (const auto& [key, bytes] : objects_) {
      entries.emplace_back(string(key), object(kModule, "BytesStorageMetadata", {}));
      place(key, nullptr, bytes);
    }
    write(folder, ".metadata",
          "\x80\x02" +
              object(kModule, "Metadata", {{"state_dict_metadata", dict(entries)}, {"storage_data", dict(places)}}) +
              '.');
    write(folder, "metadata.json", R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1})");
  }

 private:
  struct Chunk {
    Shape offset;
    Shape shape;
    std::string bytes;
  };
  struct Tensor {
    std::string type;
    Shape whole;
    std::vector<Chunk> chunks;
  };
  static void write(const std::string& folder, const std::string& name, const std::string& bytes) {
    Result<std::unique_ptr<File>> file =
        open_file(join_path(folder, name), {.write = true, .create = true, .truncate = true});
    ASSERT_TRUE(file.has_value()) << name;
    ASSERT_TRUE((*file)->write_at(0, std::as_bytes(std::span(bytes))).has_value());
  }
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::string> objects_;
};

}  // namespace pawl::checkpoint::fixtures
