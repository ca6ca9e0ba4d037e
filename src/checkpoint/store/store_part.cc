#include "checkpoint/store/store_part.h"

#include <algorithm>
#include <map>
#include <unordered_set>
#include <utility>

#include "base/crc32c.h"
#include "base/first_few.h"
#include "base/text.h"
#include "checkpoint/containers/json_scan.h"
#include "checkpoint/reshape/alignment.h"

namespace pawl::checkpoint {
namespace {

std::string fault_of(const StorePiece& piece) {
  if (size_bits(piece.type) % 8 != 0) return "elements of four or six bits are not stored";
  if (piece.name.empty() || piece.role.empty()) return "it has no name or role";
  if (const Result<std::uint64_t> count = element_count(piece.shape); !count) return count.error().what;
  if (piece.box.dimensions != piece.shape.size()) return "its box has another number of dimensions";
  if (const Status inside = check_inside(piece.box, piece.shape); !inside) return inside.error().what;
  if (volume(piece.box) == 0) return {};
  if (piece.memory == nullptr) return "it has no memory";
  for (std::uint32_t d = 0; d < piece.box.dimensions; ++d)
    if (piece.box.size[d] > 1 && piece.stride_bytes[d] % (size_bits(piece.type) / 8) != 0)
      return text("its stride of dimension ", d, ", ", piece.stride_bytes[d],
                  " bytes, is not a multiple of an element");
  return {};
}

Status check_pieces(std::span<const StorePiece> pieces) {
  FirstFew faults;
  for (const StorePiece& piece : pieces)
    if (const std::string fault = fault_of(piece); !fault.empty())
      faults.add(text("piece of ", piece.name, " (", piece.role, "): ", fault));
  if (faults.any()) return Error{Code::invalid, faults.sentence()};
  return {};
}

Status check_values(std::string_view values) {
  JsonScan scan(values);
  if (scan.skip() && scan.finish()) return {};
  return Error{Code::invalid, text("values are not JSON: ", scan.error().what)};
}

Status check_aliases(const StoreManifest& manifest) {
  if (manifest.aliases.empty()) return {};
  std::unordered_set<std::string_view> names, aliases;
  for (const StoreManifestTensor& tensor : manifest.tensors) names.insert(tensor.name);
  FirstFew faults;
  for (const auto& [alias, kept] : manifest.aliases) {
    if (!names.contains(kept)) faults.add(text("alias ", alias, ": there is no tensor ", kept));
    if (!aliases.insert(alias).second) faults.add(text("alias ", alias, " is there twice"));
  }
  if (faults.any()) return Error{Code::invalid, faults.sentence()};
  return {};
}

Status keep_first_boxes(StoreManifest& manifest, const StorePublishOptions& options) {
  using Place = std::pair<PerDimension, PerDimension>;
  FirstFew faults;
  for (StoreManifestTensor& tensor : manifest.tensors) {
    if (tensor.pieces.size() < 2) continue;
    const bool may_differ = options.may_differ.contains({tensor.name, tensor.role});
    std::map<Place, std::uint32_t> seen;  // and their sums
    std::erase_if(tensor.pieces, [&](const StoreManifestPiece& piece) {
      const auto [known, is_new] = seen.try_emplace({piece.box.begin, piece.box.size}, piece.crc32c);
      if (!is_new && !may_differ && known->second != piece.crc32c)
        faults.add(text(tensor.name, " (", tensor.role, "), ", text_of(piece.box)));
      return !is_new;
    });
  }
  if (!faults.any()) return {};
  return Error{Code::invalid, text("parts hold different values of one tensor: ", faults.sentence(),
                                   "; give it a name of its own in each of them, or make it equal")};
}

}  // namespace

Result<PartPlan> plan_part(std::span<const StorePiece> pieces) {
  PAWL_TRY(check_pieces(pieces));
  PartPlan plan;
  std::vector<SafetensorsTensor> entries;
  for (const StorePiece& piece : pieces) {
    if (volume(piece.box) == 0) continue;
    plan.order.push_back(static_cast<std::uint32_t>(plan.pieces.size()));
    plan.pieces.push_back(&piece);
    entries.push_back({store_key(piece.name, piece.role, piece.shape, piece.box), piece.type,
                       Shape(piece.box.size.begin(), piece.box.size.begin() + piece.box.dimensions)});
  }
  PAWL_ASSIGN(plan.layout,
              lay_out_safetensors(entries, {{"format", "pt"}, {std::string(kStoreMetadataKey), text(kStoreVersion)}},
                                  kDirectUnit));
  std::ranges::sort(plan.order, {}, [&](std::uint32_t i) { return plan.layout.offset_bytes[i]; });
  return plan;
}

bool is_dense(const StorePiece& piece) {
  const std::uint64_t unit = size_bits(piece.type) / 8;
  const PerDimension dense = dense_stride(piece.box);
  for (std::uint32_t d = 0; d < piece.box.dimensions; ++d)
    if (piece.box.size[d] > 1 && piece.stride_bytes[d] != dense[d] * unit) return false;
  return true;
}

Result<std::string> share_text(std::span<const StorePiece> all, const PartPlan& plan, const std::string& file_name,
                               const PieceSums& sums) {
  const std::string& header = plan.layout.header;
  StoreManifest share;
  share.files = {{file_name, plan.layout.file_bytes, header.size(), crc32c(std::as_bytes(std::span(header)))}};
  std::size_t number = 0;  // of the next piece that is not empty
  for (const StorePiece& piece : all) {
    StoreManifestTensor tensor{piece.name, piece.role, piece.type, piece.shape, {}};
    if (volume(piece.box) != 0) {
      tensor.pieces.push_back({0, plan.layout.offset_bytes[number], sums[number], piece.box});
      ++number;
    }
    share.tensors.push_back(std::move(tensor));
  }
  // One entry a tensor, though several pieces of it may be here.
  PAWL_ASSIGN(const StoreManifest joined, join_manifests(std::span(&share, 1)));
  return text_of(joined);
}

Result<StoreManifest> join_shares(std::span<const std::string> shares, const StorePublishOptions& options,
                                  const CheckFile& check) {
  PAWL_TRY(check_values(options.values));
  std::vector<StoreManifest> parsed;
  for (const std::string& share : shares) {
    PAWL_ASSIGN(StoreManifest manifest, parse_store_manifest(share));
    if (manifest.files.size() != 1) return Error{Code::corrupt, "a share is of one data file"};
    PAWL_TRY(check(manifest.files[0]));
    parsed.push_back(std::move(manifest));
  }
  PAWL_ASSIGN(StoreManifest all, join_manifests(parsed));
  if (options.equal_boxes == EqualBoxes::keep_first) PAWL_TRY(keep_first_boxes(all, options));
  PAWL_TRY(check_manifest_tiles(all));
  all.values = options.values;
  all.aliases = options.aliases;
  PAWL_TRY(check_aliases(all));
  return all;
}

}  // namespace pawl::checkpoint
