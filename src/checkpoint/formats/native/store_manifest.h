// StoreManifest: what a checkpoint of our own store holds, as its manifest.json says it; and the marker beside it.
//
// The same text, of one data file, is what each writer of a part answers (a share); the manifest is all shares joined.
// Pure: text in, values out, and the other way. What the fields are: docs/format.md. A parsed manifest is only well
// formed: whether pieces tile their tensors is said by check_manifest_tiles(), whether files are there by
// checkpoint/formats/native/store_view.h.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "tensor/box.h"
#include "tensor/element_type.h"

namespace pawl::checkpoint {

inline constexpr std::string_view kStoreManifestName = "manifest.json";
inline constexpr std::string_view kStoreMarkerName = "committed";
inline constexpr std::string_view kStoreFormat = "pawl store";
inline constexpr std::string_view kStoreMetadataKey = "pawl.store";  // in each data file's own metadata: the version
inline constexpr std::uint64_t kStoreVersion = 1;

// Of tensors that only the job reads that wrote them (job/persist/seat_share.h): whoever else looks at the checkpoint does not see them.
inline constexpr std::string_view kSetAsidePrefix = "seat_";
[[nodiscard]] inline bool is_set_aside(std::string_view role) {
  return role.starts_with(kSetAsidePrefix);
}

struct StoreFile {
  std::string name;  // "data-00000.safetensors", in object storage "data-00000.ATTEMPT.safetensors"
  std::uint64_t size_bytes = 0;
  std::uint64_t header_bytes = 0;  // all before the data
  std::uint32_t header_crc32c = 0;
  bool operator==(const StoreFile&) const = default;
};

// Dense and row-major.
struct StoreManifestPiece {
  std::uint32_t file = 0;          // index in StoreManifest::files
  std::uint64_t offset_bytes = 0;  // in the file
  std::uint32_t crc32c = 0;        // of its bytes
  Box box;
  bool operator==(const StoreManifestPiece&) const = default;
};

struct StoreManifestTensor {
  std::string name;
  std::string role;
  ElementType type = ElementType::float32;
  Shape shape;
  std::vector<StoreManifestPiece> pieces;
  bool operator==(const StoreManifestTensor&) const = default;
};

struct StoreManifest {
  std::vector<StoreFile> files;
  std::vector<StoreManifestTensor> tensors;
  std::vector<std::pair<std::string, std::string>> aliases;
  std::string values = "{}";  // JSON, kept as it was given
};

// Names of one attempt to write a checkpoint, where several may lie beside each other. An attempt is of 1 to 64 lower-case letters,
// digits and '-'; empty: the folder is of one attempt only.
[[nodiscard]] std::string store_file_name(std::uint32_t part, std::string_view attempt = {});
[[nodiscard]] std::string store_manifest_name(std::string_view attempt);
[[nodiscard]] bool is_manifest_name(std::string_view name);  // exactly what that gives, for any attempt
// Of a piece in its data file: "name/role", and "[0:4,8:16]" behind it unless it is all of the tensor.
[[nodiscard]] std::string store_key(std::string_view name, std::string_view role, const Shape& shape, const Box& box);
[[nodiscard]] std::uint64_t piece_bytes(const StoreManifestTensor& tensor, const StoreManifestPiece& piece);

using pawl::text_of;  // of shapes
[[nodiscard]] std::string text_of(const StoreManifest& manifest);
// Exactly what text_of writes, in any order of keys; unknown keys are skipped. Fails: `corrupt`, with the offset; a
// piece lies in its tensor and its file. `invalid` if a later version wrote it.
[[nodiscard]] Result<StoreManifest> parse_store_manifest(std::string_view text);

// One manifest of many: tensors by name and role, in order of their first sight; files one after another.
// Fails: `invalid`, naming up to five tensors of which type or shape differ, or files that are there twice.
[[nodiscard]] Result<StoreManifest> join_manifests(std::span<const StoreManifest> shares);
// Fails: `invalid`, naming up to five tensors whose pieces overlap or leave something out.
[[nodiscard]] Status check_manifest_tiles(const StoreManifest& manifest);

// Which checkpoint it is, among those of a job. Random, so a step that is written again is another one.
struct StoreName {
  std::uint64_t step = 0;
  std::string id;  // letters, digits and '-', 64 at most
  bool operator==(const StoreName&) const = default;
};

// What a job says of its checkpoint. Others say nothing: an empty id.
struct StoreIdentity {
  std::string id;
  std::vector<StoreName> before;  // those of its history that were there when it was begun, the newest first
  std::uint64_t written_ms = 0;   // since 1970, by the clock of who published it
  bool operator==(const StoreIdentity&) const = default;
};
inline constexpr std::size_t kHistoryMax = 1024;  // of `before`; older ones are not named

// The marker: which manifest it makes valid, the identity, if there is one, and the name of the manifest's file unless that is manifest.json.
[[nodiscard]] std::string marker_of(std::string_view manifest_text, const StoreIdentity& identity = {},
                                    std::string_view manifest_name = kStoreManifestName);
// Fails: `corrupt`, also where the name is none of a manifest.
[[nodiscard]] Result<std::string> manifest_name_in(std::string_view marker);
// Fails: `corrupt` unless it is that manifest's.
[[nodiscard]] Status check_marker(std::string_view marker, std::string_view manifest_text);
// Fails: `corrupt`.
[[nodiscard]] Result<StoreIdentity> identity_in(std::string_view marker);

}  // namespace pawl::checkpoint
