#include "checkpoint/store/store_folder.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/text.h"
#include "checkpoint/formats/native/store_manifest.h"
#include "checkpoint/reshape/alignment.h"
#include "checkpoint/reshape/open_files.h"
#include "checkpoint/reshape/range_checksums.h"
#include "checkpoint/store/part_writer.h"
#include "checkpoint/store/store_part.h"
#include "env/files.h"

namespace pawl::checkpoint {
namespace {

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
  PAWL_ASSIGN(WrittenPieces written,
              write_dense_pieces(file, together, options.proof, options.execution, options.pace));
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

// What a share says is there: the file as long as it was written, by somebody who made it in this folder.
Status check_file(const std::string& folder, const StoreFile& file) {
  Result<std::unique_ptr<File>> open = open_file(join_path(folder, file.name), {});
  if (!open && open.error().code == Code::not_found)
    return Error{Code::invalid, text("part ", file.name, " is not in ", folder, ": it was written to another folder")};
  if (!open) return std::move(open).error();
  PAWL_ASSIGN(const std::uint64_t size, (*open)->size());
  if (size != file.size_bytes)
    return Error{Code::corrupt, text("part ", file.name, ": ", size, " bytes instead of ", file.size_bytes)};
  return {};
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
  Result<PartPlan> plan = plan_part(pieces);
  if (!plan) return failed(std::move(plan).error());
  const Result<PieceSums> sums = write_data(*plan, path, options);
  if (!sums) return failed(Error(sums.error()));
  Result<std::string> share = share_text(pieces, *plan, store_file_name(part), *sums);
  if (!share) return failed(std::move(share).error());
  return share;
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
  const auto check = [this](const StoreFile& file) { return check_file(folder_, file); };
  PAWL_ASSIGN(const StoreManifest manifest, join_shares(shares, options, check));
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
