// StoreView: a checkpoint of our own store (checkpoint/store/store_folder.h), read as any other format; and its
// checksums, proven.
//
// A folder is one if its marker is there and agrees with the manifest: the marker is written last, so a folder without
// it is a save that did not finish, and opening it fails. Opening reads the manifest and the sizes of the data files,
// none of their bytes; prove_store() reads all of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/formats/native/store_manifest.h"
#include "checkpoint/view/checkpoint_view.h"
#include "env/files.h"

namespace pawl::checkpoint {

// Whether a folder with these names in it is one; or else has data files of one: a save that did not end.
[[nodiscard]] bool is_store_folder(const std::vector<std::string>& names);
[[nodiscard]] bool is_unfinished_store(const std::string& folder, const std::vector<std::string>& names,
                                       Files& files = real_files());

// The manifest, where the marker agrees with it. Fails: `not_found` without a marker: the save did not end; `corrupt`;
// `io`.
[[nodiscard]] Result<StoreManifest> read_store_manifest(const std::string& folder, Files& files = real_files());
// What the marker says. Fails: `not_found`, `corrupt`, `io`.
[[nodiscard]] Result<StoreIdentity> read_store_identity(const std::string& folder, Files& files = real_files());
// `values` of the view are those of publish(). What is_set_aside() is not among its tensors. Fails also: `corrupt`, naming up to five data files that are not
// there, or not as long as the manifest says.
[[nodiscard]] Result<CheckpointView> view_store(const std::string& folder, Files& files = real_files());

struct StoreProof {
  std::uint64_t records = 0;       // headers and pieces whose checksum agrees
  std::uint64_t bytes = 0;         // of those
  std::vector<std::string> wrong;  // sentences: file, tensor, box
};

struct StoreProofOptions {
  // Only pieces for which it says true, by index of tensor and piece in the manifest (the view's are the same, where it sets
  // nothing aside), and no headers. Empty: all, and the headers.
  std::function<bool(std::uint32_t tensor, std::uint32_t piece)> chosen = {};
  std::uint32_t threads = 0;  // 0: all cores, four at most: a disk is no faster with more
  const std::atomic<bool>* cancel = nullptr;
  std::function<void(std::uint64_t bytes)> progress = {};  // read so far; one call at a time
};

// Reads through the page cache, so that what is loaded next is there where memory allows. Fails: `cancelled`, and as
// read_store_manifest(). What is damaged or can't be read is in the proof.
[[nodiscard]] Result<StoreProof> prove_store(const std::string& folder, const StoreProofOptions& options = {},
                                             Files& files = real_files());

}  // namespace pawl::checkpoint
