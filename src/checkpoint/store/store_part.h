// StorePart: what the data file of a part is to hold and where, its share of the manifest, and the manifest of all shares.
//
// Pure: it is the same wherever the file lies. Who writes it: store_folder.h to a file system, job/persist/s3_checkpoint_store.h to
// object storage.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/containers/safetensors_layout.h"
#include "checkpoint/formats/native/store_manifest.h"
#include "checkpoint/store/store_folder.h"

namespace pawl::checkpoint {

// Which pieces have bytes, and where these go. What lies between them is zero.
struct PartPlan {
  std::vector<const StorePiece*> pieces;  // not empty ones
  SafetensorsLayout layout;               // of those
  std::vector<std::uint32_t> order;       // of those, by offset in the file
};

// Of pieces that outlive it. Fails: `invalid`, as write_store_part.
[[nodiscard]] Result<PartPlan> plan_part(std::span<const StorePiece> pieces);

[[nodiscard]] bool is_dense(const StorePiece& piece);  // whether its bytes lie in memory as they do in the file

using PieceSums = std::vector<std::uint32_t>;  // CRC32C of plan.pieces[i]

// `all`: also those without bytes. Fails: `invalid`, as join_manifests.
[[nodiscard]] Result<std::string> share_text(std::span<const StorePiece> all, const PartPlan& plan,
                                             const std::string& file_name, const PieceSums& sums);

using CheckFile = std::function<Status(const StoreFile&)>;  // whether the file of a share is there, as long as it says

// Fails as StoreFolder::publish, and as `check`.
[[nodiscard]] Result<StoreManifest> join_shares(std::span<const std::string> shares, const StorePublishOptions& options,
                                                const CheckFile& check);

}  // namespace pawl::checkpoint
