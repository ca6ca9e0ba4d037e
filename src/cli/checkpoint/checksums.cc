#include "cli/checkpoint/checksums.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/text.h"
#include "checkpoint/containers/zip.h"
#include "checkpoint/formats/dcp/dcp.h"
#include "checkpoint/formats/native/store_view.h"
#include "checkpoint/reshape/stored_file.h"
#include "env/byte_source.h"
#include "env/files.h"

namespace pawl::checkpoint {
namespace {

constexpr std::string_view kZipMagic = "PK\3\4";
constexpr std::uint64_t kObjectBytesMax = 256 << 20;  // of an item that is no tensor

bool is_zip(ByteSource& source) {
  const Result<std::string> head =
      source.size_bytes() < 4 ? Result<std::string>(std::string()) : read_text(source, 0, 4);
  return head && *head == kZipMagic;
}

class Prover {
 public:
  Prover(ChecksumReport& report, const std::atomic<bool>& cancel, const std::function<void(std::uint64_t)>& progress)
      : report_(report), cancel_(cancel), progress_(progress) {}

  // An archive, all of `source`. What is not one has no checksums.
  Status archive(ByteSource& source, const std::string& name) {
    if (!is_zip(source)) {
      has_unproven_ = true;
      return {};
    }
    const Result<ZipDirectory> directory = ZipDirectory::read(source);
    if (!directory) return failed(name, directory.error());
    for (const ZipRecord& record : directory->records()) PAWL_TRY(prove(source, record, name));
    return {};
  }

  // An item of DCP: an archive of at most so many bytes, perhaps packed; its frame need not say its size.
  Status item(ByteSource& file, const std::string& name, const DcpPlace& place, std::uint64_t bytes_max) {
    Result<RangeBytes> range = RangeBytes::open(file, place.offset_bytes, place.length_bytes);
    if (!range) return failed(name, range.error());
    if (place.transforms.empty()) return archive(*range, name);
    if (place.transforms.size() != 1 || !place.transforms[0].starts_with("stream.zstd")) {
      has_unproven_ = true;
      return {};
    }
    const Result<std::string> encoded = read_text(*range, 0, place.length_bytes);
    if (!encoded) return failed(name, encoded.error());
    MemoryBytes packed(*encoded);
    const Result<ZstdEnds> ends = zstd_ends(packed, bytes_max, 1);
    if (!ends) return failed(name, ends.error());
    const Result<std::string> decoded = decode_zstd(*encoded, ends->size_bytes);
    if (!decoded) return failed(name, decoded.error());
    MemoryBytes memory(*decoded);
    return archive(memory, name);
  }

  void end_file() { report_.unproven_files += std::exchange(has_unproven_, false); }

 private:
  Status prove(ByteSource& source, const ZipRecord& record, const std::string& name) {
    if (cancel_.load()) return Error{Code::cancelled, "interrupted"};
    if (record.crc32 == 0 && record.size_bytes != 0) {
      ++report_.unproven_records;
      has_unproven_ = true;
      return {};
    }
    const Result<bool> agrees = checksum_agrees(source, record);
    if (!agrees) return failed(text(name, ": record ", record.name), agrees.error());
    if (!*agrees) {
      report_.wrong.push_back(text(name, ": record ", record.name, ": ", record.size_bytes,
                                   " bytes do not have the checksum that the archive gives"));
      return {};
    }
    ++report_.records;
    report_.bytes += record.unpacked_bytes;
    read_ += record.size_bytes;
    progress_(read_);
    return {};
  }

  Status failed(const std::string& name, const Error& error) {
    if (error.code == Code::cancelled) return error;
    report_.wrong.push_back(text(name, ": ", error.what));
    return {};
  }

  ChecksumReport& report_;
  const std::atomic<bool>& cancel_;
  const std::function<void(std::uint64_t)>& progress_;
  std::uint64_t read_ = 0;
  bool has_unproven_ = false;
};

bool is_dcp(const std::string& folder) {
  return path_exists(join_path(folder, ".metadata")) || path_exists(join_path(folder, "__0.metadata"));
}

Status prove_dcp(const std::string& folder, Prover& prover) {
  PAWL_ASSIGN(const DcpCheckpoint dcp, open_dcp(folder));
  using Item = std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>;
  struct Entry {
    const DcpPlace& place;
    const std::string& key;
    std::uint64_t bytes_max;  // decoded
  };
  std::map<Item, Entry> items;  // each once, in the order of the files
  const auto add = [&](const DcpPlace& place, const std::string& key, std::uint64_t bytes_max) {
    items.try_emplace(Item(place.file, place.offset_bytes, place.length_bytes), Entry{place, key, bytes_max});
  };
  for (const DcpTensor& tensor : dcp.tensors)
    for (const DcpChunk& chunk : tensor.chunks)
      add(chunk.place, tensor.key, decoded_bytes_max(tensor, chunk).value_or(0));
  for (const DcpObject& object : dcp.objects) add(object.place, object.key, kObjectBytesMax);
  std::unique_ptr<ByteSource> source;
  std::uint32_t opened = ~0u;
  for (const auto& [item, entry] : items) {
    const std::uint32_t file = std::get<0>(item);
    if (file != opened) {
      prover.end_file();
      PAWL_ASSIGN(source, open_bytes(dcp.files[file]));
      opened = file;
    }
    PAWL_TRY(prover.item(*source, text(dcp.files[file], ": item ", entry.key), entry.place, entry.bytes_max));
  }
  prover.end_file();
  return {};
}

bool is_store(const std::string& folder) {
  return path_exists(join_path(folder, kStoreMarkerName)) && path_exists(join_path(folder, kStoreManifestName));
}

Status prove_store_folder(const std::string& folder, const std::atomic<bool>& cancel,
                          const std::function<void(std::uint64_t)>& progress, ChecksumReport& report) {
  StoreProofOptions options;
  options.cancel = &cancel;
  options.progress = progress;
  PAWL_ASSIGN(const StoreProof proof, prove_store(folder, options));
  report.records += proof.records;
  report.bytes += proof.bytes;
  report.wrong.insert(report.wrong.end(), proof.wrong.begin(), proof.wrong.end());
  return {};
}

// What fails, but is not cancelled, is in the report.
Status into_report(const Status& done, ChecksumReport& report) {
  if (done) return {};
  if (done.error().code == Code::cancelled) return done.error();
  report.wrong.push_back(done.error().what);
  return {};
}

}  // namespace

Result<ChecksumReport> prove_checksums(const CheckpointView& view, const std::atomic<bool>& cancel,
                                       const std::function<void(std::uint64_t)>& progress) {
  ChecksumReport report;
  Prover prover(report, cancel, progress);
  std::set<std::string> files, folders, stores;
  for (const StoredFile& file : view.files) {
    if (view.format == "pawl" && is_store(parent_path(file.path)))
      stores.insert(parent_path(file.path));
    else if (is_dcp(parent_path(file.path)))
      folders.insert(parent_path(file.path));
    else if (path_exists(file.path))
      files.insert(file.path);
  }
  for (const std::string& folder : folders) PAWL_TRY(into_report(prove_dcp(folder, prover), report));
  for (const std::string& folder : stores)
    PAWL_TRY(into_report(prove_store_folder(folder, cancel, progress, report), report));
  for (const std::string& path : files) {
    Result<std::unique_ptr<ByteSource>> source = open_bytes(path);
    if (!source) {
      report.wrong.push_back(source.error().what);
      continue;
    }
    PAWL_TRY(prover.archive(**source, path));
    prover.end_file();
  }
  return report;
}

}  // namespace pawl::checkpoint
