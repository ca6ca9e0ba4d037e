#include "checkpoint/store/store_folder.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/first_few.h"
#include "base/text.h"
#include "checkpoint/containers/json_scan.h"
#include "checkpoint/containers/safetensors_layout.h"
#include "checkpoint/formats/native/store_manifest.h"
#include "checkpoint/reshape/alignment.h"
#include "checkpoint/reshape/open_files.h"
#include "checkpoint/reshape/range_checksums.h"
#include "checkpoint/store/part_writer.h"
#include "env/files.h"

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

// One part: which pieces have bytes, and where these go.
struct PartPlan {
  std::vector<const StorePiece*> pieces;  // not empty ones
  SafetensorsLayout layout;               // of those
  std::vector<std::uint32_t> order;       // of those, by offset in the file
};

Result<PartPlan> plan_part(std::span<const StorePiece> pieces) {
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

PlannedCopy copy_of(const StorePiece& piece, std::uint32_t number) {
  const std::uint64_t unit = size_bits(piece.type) / 8;
  PlannedEnd source{0, number, 0, {}};
  for (std::uint32_t d = 0; d < piece.box.dimensions; ++d)
    source.stride[d] = piece.box.size[d] > 1 ? piece.stride_bytes[d] / unit : 1;
  PlannedCopy copy;
  copy.tensor = number;
  copy.from = copy.to = piece.type;
  copy.box = piece.box;
  copy.sources = {source};
  copy.target = {0, number, 0, dense_stride(piece.box)};
  return copy;
}

// Whether its bytes lie in memory as they do in the file.
bool is_dense(const StorePiece& piece) {
  const std::uint64_t unit = size_bits(piece.type) / 8;
  const PerDimension dense = dense_stride(piece.box);
  for (std::uint32_t d = 0; d < piece.box.dimensions; ++d)
    if (piece.box.size[d] > 1 && piece.stride_bytes[d] != dense[d] * unit) return false;
  return true;
}

BufferPlace memory_of(const StorePiece& piece) {
  const std::uint64_t unit = size_bits(piece.type) / 8;
  std::uint64_t size = unit;
  for (std::uint32_t d = 0; d < piece.box.dimensions; ++d)
    if (piece.box.size[d] > 1) size += (piece.box.size[d] - 1) * piece.stride_bytes[d];
  BufferPlace place;
  place.memory = const_cast<std::byte*>(piece.memory);  // a source: it is only read
  place.size_bytes = size;
  return place;
}

using PieceSums = std::vector<std::uint32_t>;  // CRC32C of plan.pieces[i]

// Of the piece numbers in `strided`, which are in order of the file.
Status write_strided(const PartPlan& plan, const std::vector<std::uint32_t>& strided, const std::string& path,
                     const ExecuteOptions& options, PieceSums& sums) {
  std::vector<FileRange> ranges;
  for (const std::uint32_t i : strided)
    ranges.push_back({0, plan.layout.offset_bytes[i], plan.layout.offset_bytes[i] + plan.layout.size_bytes[i]});
  PAWL_ASSIGN(RangeChecksums checksums, RangeChecksums::create(std::move(ranges), ChecksumKind::crc32c));
  CopySource source;
  source.place = [&plan](std::uint32_t, std::uint32_t buffer) { return memory_of(*plan.pieces[buffer]); };
  CopyTarget target;
  target.files = {{path, plan.layout.file_bytes, {}, true}};
  target.place = [&plan](std::uint32_t, std::uint32_t buffer) {
    return BufferPlace{nullptr, 0, plan.layout.offset_bytes[buffer], plan.layout.size_bytes[buffer]};
  };
  // In the order of the file, so that what is written at once lies together.
  const CopyStream copies = [&](const CopySink& sink) -> Status {
    for (const std::uint32_t i : strided) sink(copy_of(*plan.pieces[i], i));
    return {};
  };
  ExecuteOptions execution = options;
  execution.observe = checksums.observer();
  PAWL_TRY(execute(copies, source, target, execution));
  for (std::size_t k = 0; k < strided.size(); ++k) sums[strided[k]] = checksums.value_at(k);
  return {};
}

Status sync_data(const std::string& path) {
  PAWL_ASSIGN(const std::shared_ptr<OpenFile> file, OpenFile::open(path, true, false));
  if (::fdatasync(file->plain()) != 0) return disk_error("sync", path, 0, errno);
  return {};
}

Result<PieceSums> write_data(const PartPlan& plan, const std::string& path, const StorePartOptions& options) {
  std::vector<std::uint32_t> dense, strided;
  std::vector<DensePiece> together;
  for (const std::uint32_t i : plan.order) {
    (is_dense(*plan.pieces[i]) ? dense : strided).push_back(i);
    if (is_dense(*plan.pieces[i]))
      together.push_back({plan.pieces[i]->memory, plan.layout.offset_bytes[i], plan.layout.size_bytes[i]});
  }
  const TargetFile file{path, plan.layout.file_bytes, plan.layout.header};
  PAWL_TRY(make_target({path, plan.layout.file_bytes}));
  PAWL_ASSIGN(WrittenPieces written, write_dense_pieces(file, together, options.proof, options.execution));
  PieceSums sums(plan.pieces.size());
  for (std::size_t k = 0; k < dense.size(); ++k) sums[dense[k]] = written.crc32c[k];
  if (!strided.empty()) {
    ExecuteOptions execution = options.execution;
    std::uint64_t before = 0;
    for (const DensePiece& piece : together) before += piece.size_bytes;
    if (options.execution.progress)
      execution.progress = [&options, before](ExecuteProgress done) {
        done.bytes_done += before;
        options.execution.progress(done);
      };
    PAWL_TRY(write_strided(plan, strided, path, execution, sums));
  } else if (options.execution.sync) {
    PAWL_TRY(sync_data(path));
  }
  if (options.proof != nullptr) PAWL_TRY(prove(*options.proof, std::move(written.ranges)));
  return sums;
}

StoreManifest share_of(std::span<const StorePiece> all, const PartPlan& plan, std::uint32_t part,
                       const PieceSums& sums) {
  const std::string& header = plan.layout.header;
  StoreManifest share;
  share.files = {
      {store_file_name(part), plan.layout.file_bytes, header.size(), crc32c(std::as_bytes(std::span(header)))}};
  std::size_t number = 0;  // of the next piece that is not empty
  for (const StorePiece& piece : all) {
    StoreManifestTensor tensor{piece.name, piece.role, piece.type, piece.shape, {}};
    if (volume(piece.box) != 0) {
      tensor.pieces.push_back({0, plan.layout.offset_bytes[number], sums[number], piece.box});
      ++number;
    }
    share.tensors.push_back(std::move(tensor));
  }
  return share;
}

// What a share says is there: the file as long as it was written, by somebody who made it in this folder.
Status check_share(const std::string& folder, const StoreManifest& share) {
  if (share.files.size() != 1) return Error{Code::corrupt, "a share is of one data file"};
  const StoreFile& file = share.files[0];
  Result<std::unique_ptr<File>> open = open_file(join_path(folder, file.name), {});
  if (!open && open.error().code == Code::not_found)
    return Error{Code::invalid, text("part ", file.name, " is not in ", folder, ": it was written to another folder")};
  if (!open) return std::move(open).error();
  PAWL_ASSIGN(const std::uint64_t size, (*open)->size());
  if (size != file.size_bytes)
    return Error{Code::corrupt, text("part ", file.name, ": ", size, " bytes instead of ", file.size_bytes)};
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

Result<StoreManifest> join_shares(const std::string& folder, std::span<const std::string> shares,
                                  const StorePublishOptions& options) {
  PAWL_TRY(check_values(options.values));
  std::vector<StoreManifest> parsed;
  for (const std::string& share : shares) {
    PAWL_ASSIGN(StoreManifest manifest, parse_store_manifest(share));
    PAWL_TRY(check_share(folder, manifest));
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

Status write_file(const std::string& path, std::string_view content) {
  PAWL_ASSIGN(const std::unique_ptr<File> file, open_file(path, {.write = true, .create = true, .exclusive = true}));
  PAWL_TRY(file->write_at(0, std::as_bytes(std::span(content))));
  PAWL_TRY(file->sync());
  return file->close();
}

Status write_synced(const std::string& path, std::string_view content) {
  Status status = write_file(path, content);
  if (status || status.error().code != Code::full) return status;
  return Error{Code::full, text(status.error().what, ": free some space there, or write elsewhere")};
}

}  // namespace

Result<std::string> write_store_part(const std::string& folder, std::uint32_t part, std::span<const StorePiece> pieces,
                                     const StorePartOptions& options) {
  const std::string path = join_path(folder, store_file_name(part));
  const auto failed = [&](Error error) { return std::move(error).within(text("save part ", part)); };
  if (Status status = check_pieces(pieces); !status) return failed(std::move(status).error());
  Result<PartPlan> plan = plan_part(pieces);
  if (!plan) return failed(std::move(plan).error());
  const Result<PieceSums> sums = write_data(*plan, path, options);
  if (!sums) return failed(Error(sums.error()));
  // One entry a tensor, though several pieces of it may be here.
  const StoreManifest share = share_of(pieces, *plan, part, *sums);
  Result<StoreManifest> joined = join_manifests(std::span(&share, 1));
  if (!joined) return failed(std::move(joined).error());
  return text_of(*joined);
}

Result<StoreFolder> StoreFolder::begin(const std::string& path, const StoreOptions& options) {
  PartialOptions partial;
  partial.folder = true;
  partial.overwrite = options.overwrite;
  partial.bytes = options.bytes;
  partial.attempt = options.attempt;
  partial.marker = std::string(kStoreMarkerName);
  PAWL_ASSIGN(PartialOutput output, PartialOutput::begin(path, partial));
  std::string folder = parent_path(output.path_of(std::string(kStoreManifestName)));
  return StoreFolder(std::move(output), std::move(folder));
}

Status StoreFolder::publish(std::span<const std::string> shares, const StorePublishOptions& options) {
  if (!output_) return Error{Code::invalid, "publish: the save has ended already"};
  PAWL_ASSIGN(const StoreManifest manifest, join_shares(folder_, shares, options));
  const std::string content = text_of(manifest);
  if (const Result<StoreManifest> again = parse_store_manifest(content); !again)  // e.g. an alias that is no UTF-8
    return Error{Code::invalid, text("publish: ", again.error().what)};
  for (const StoreFile& file : manifest.files) (void)output_->path_of(file.name);
  PAWL_TRY(write_synced(join_path(folder_, kStoreManifestName), content));
  PAWL_TRY(write_synced(output_->path_of(std::string(kStoreMarkerName)), marker_of(content, options.identity)));
  PAWL_TRY(output_->publish());
  output_.reset();
  return {};
}

}  // namespace pawl::checkpoint
