#include "checkpoint/formats/native/store_view.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "base/contains.h"
#include "base/crc32c.h"
#include "base/first_few.h"
#include "base/text.h"
#include "checkpoint/containers/safetensors.h"

namespace pawl::checkpoint {
namespace {

constexpr std::uint64_t kManifestBytesMax = std::uint64_t{1} << 32;
constexpr std::uint64_t kMarkerBytesMax = std::uint64_t{1} << 20;
constexpr std::uint64_t kReadBytes = 1 << 20;
constexpr std::uint32_t kThreadsMax = 4;

// A range of a data file with its checksum.
struct Range {
  std::uint32_t file = 0;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
  std::uint32_t crc32c = 0;
  std::uint32_t tensor = 0;
  std::uint32_t piece = 0;
  bool is_header = false;
};

std::vector<Range> ranges_of(const StoreManifest& manifest, const StoreProofOptions& options) {
  std::vector<Range> ranges;
  for (std::uint32_t i = 0; i < manifest.files.size() && !options.chosen; ++i) {
    const StoreFile& file = manifest.files[i];
    ranges.push_back({i, 0, file.header_bytes, file.header_crc32c, 0, 0, true});
  }
  for (std::uint32_t t = 0; t < manifest.tensors.size(); ++t)
    for (std::uint32_t p = 0; p < manifest.tensors[t].pieces.size(); ++p) {
      if (options.chosen && !options.chosen(t, p)) continue;
      const StoreManifestPiece& piece = manifest.tensors[t].pieces[p];
      ranges.push_back(
          {piece.file, piece.offset_bytes, piece_bytes(manifest.tensors[t], piece), piece.crc32c, t, p, false});
    }
  std::ranges::sort(ranges, {}, [](const Range& range) { return std::pair(range.file, range.begin); });
  return ranges;
}

// Several threads, each with the file that it reads: takes one range after another.
class Prover {
 public:
  Prover(const std::string& folder, const StoreManifest& manifest, const StoreProofOptions& options, Files& files)
      : folder_(folder), manifest_(manifest), options_(options), files_(files), ranges_(ranges_of(manifest, options)) {}

  Result<StoreProof> run() {
    std::uint32_t count = options_.threads != 0 ? options_.threads : std::max(1u, std::thread::hardware_concurrency());
    count = std::min<std::uint32_t>({count, kThreadsMax, static_cast<std::uint32_t>(ranges_.size())});
    std::vector<std::thread> threads;
    for (std::uint32_t i = 1; i < count; ++i) threads.emplace_back([this] { take_ranges(); });
    take_ranges();
    for (std::thread& thread : threads) thread.join();
    if (is_cancelled()) return Error{Code::cancelled, "interrupted"};
    std::ranges::sort(proof_.wrong);
    return std::move(proof_);
  }

 private:
  [[nodiscard]] bool is_cancelled() const { return options_.cancel != nullptr && options_.cancel->load(); }

  void take_ranges() {
    std::vector<std::byte> buffer(kReadBytes);
    std::unique_ptr<File> file;
    std::uint32_t opened = ~0u;
    for (std::size_t i = next_++; i < ranges_.size() && !is_cancelled(); i = next_++) {
      const Range& range = ranges_[i];
      Status status;
      if (range.file != opened) {
        file.reset();
        opened = ~0u;
        Result<std::unique_ptr<File>> open = files_.open(join_path(folder_, manifest_.files[range.file].name), {});
        if (open) {
          file = std::move(*open);
          opened = range.file;
        } else {
          status = open.error();
        }
      }
      if (status) status = prove(*file, range, buffer);
      note(range, status);
    }
  }

  Status prove(File& file, const Range& range, std::vector<std::byte>& buffer) {
    std::uint32_t sum = 0;
    for (std::uint64_t done = 0; done < range.bytes && !is_cancelled();) {
      const std::uint64_t wanted = std::min<std::uint64_t>(range.bytes - done, buffer.size());
      PAWL_ASSIGN(const std::size_t count, file.read_at(range.begin + done, std::span(buffer).first(wanted)));
      if (count < wanted) return Error{Code::corrupt, text("the file ends at ", range.begin + done + count)};
      sum = crc32c(std::span(buffer).first(count), sum);
      done += count;
      add_read(count);
    }
    if (sum != range.crc32c && !is_cancelled())
      return Error{Code::corrupt, text(range.bytes, " bytes do not have the checksum that the manifest gives")};
    return {};
  }

  void add_read(std::uint64_t bytes) {
    if (!options_.progress) return;
    const std::lock_guard lock(mutex_);
    options_.progress(read_ += bytes);
  }

  void note(const Range& range, const Status& status) {
    const std::lock_guard lock(mutex_);
    if (status) {
      ++proof_.records;
      proof_.bytes += range.bytes;
      return;
    }
    std::string what = "its header";
    if (!range.is_header) {
      const StoreManifestTensor& tensor = manifest_.tensors[range.tensor];
      what = store_key(tensor.name, tensor.role, tensor.shape, tensor.pieces[range.piece].box);
    }
    proof_.wrong.push_back(text(join_path(folder_, manifest_.files[range.file].name), " at ", range.begin, ": ", what,
                                ": ", status.error().what));
  }

  const std::string& folder_;
  const StoreManifest& manifest_;
  const StoreProofOptions& options_;
  Files& files_;
  const std::vector<Range> ranges_;
  std::atomic<std::size_t> next_{0};
  std::mutex mutex_;
  std::uint64_t read_ = 0;
  StoreProof proof_;
};

Status check_files(const std::string& folder, const StoreManifest& manifest, Files& files) {
  FirstFew missing, other;
  for (const StoreFile& file : manifest.files) {
    const Result<std::unique_ptr<File>> open = files.open(join_path(folder, file.name), {});
    if (!open && open.error().code == Code::not_found) {
      missing.add(file.name);
      continue;
    }
    if (!open) return Error{open.error()};
    PAWL_ASSIGN(const std::uint64_t size, (*open)->size());
    if (size != file.size_bytes) other.add(text(file.name, " has ", size, " bytes instead of ", file.size_bytes));
  }
  if (missing.any())
    return Error{Code::corrupt, text(folder, ": not there: ", missing.sentence(),
                                     "; the folder has to be copied whole, or another checkpoint taken")};
  if (other.any())
    return Error{Code::corrupt, text(folder, ": ", other.sentence(), "; take another checkpoint or copy it again")};
  return {};
}

}  // namespace

bool is_store_folder(const std::vector<std::string>& names) {
  return contains(names, kStoreMarkerName) && std::ranges::any_of(names, is_manifest_name);
}

bool is_unfinished_store(const std::string& folder, const std::vector<std::string>& names, Files& files) {
  for (const std::string& name : names) {
    if (!name.starts_with("data-") || !name.ends_with(".safetensors")) continue;
    const Result<SafetensorsFile> file = open_safetensors(join_path(folder, name), files);
    return file &&
           std::ranges::any_of(file->metadata, [](const auto& pair) { return pair.first == kStoreMetadataKey; });
  }
  return false;
}

Result<StoreIdentity> read_store_identity(const std::string& folder, Files& files) {
  PAWL_ASSIGN(const std::string marker, read_file(join_path(folder, kStoreMarkerName), kMarkerBytesMax, files));
  Result<StoreIdentity> identity = identity_in(marker);
  if (!identity) return std::move(identity).error().within(folder);
  return identity;
}

Result<StoreManifest> read_store_manifest(const std::string& folder, Files& files) {
  Result<std::string> marker = read_file(join_path(folder, kStoreMarkerName), kMarkerBytesMax, files);
  if (!marker && marker.error().code == Code::not_found)
    return Error{Code::not_found, text(folder, ": no ", kStoreMarkerName, ", which is written last: the save did not ",
                                       "end, or the folder was not copied whole")};
  if (!marker) return std::move(marker).error();
  const Result<std::string> name = manifest_name_in(*marker);
  if (!name) return Error{name.error()}.within(folder);
  PAWL_ASSIGN(const std::string content, read_file(join_path(folder, *name), kManifestBytesMax, files));
  if (Status agrees = check_marker(*marker, content); !agrees) return std::move(agrees).error().within(folder);
  Result<StoreManifest> manifest = parse_store_manifest(content);
  if (!manifest) return std::move(manifest).error().within(folder);
  return manifest;
}

Result<CheckpointView> view_store(const std::string& folder, Files& files) {
  PAWL_ASSIGN(StoreManifest manifest, read_store_manifest(folder, files));
  PAWL_TRY(check_files(folder, manifest, files));
  CheckpointView view;
  view.format = "pawl";
  view.facts = {{"writer", "pawl"}, {"parts", text(manifest.files.size())}};
  view.values = std::move(manifest.values);
  view.aliases = std::move(manifest.aliases);
  for (const StoreFile& file : manifest.files) view.files.push_back({join_path(folder, file.name)});
  view.tensors.reserve(manifest.tensors.size());
  std::set<std::string> seats;
  std::uint64_t aside_bytes = 0;
  for (StoreManifestTensor& tensor : manifest.tensors) {
    if (is_set_aside(tensor.role)) {
      seats.insert(tensor.name);
      for (const StoreManifestPiece& piece : tensor.pieces) aside_bytes += piece_bytes(tensor, piece);
      continue;
    }
    StoredTensor& stored = view.tensors.emplace_back();
    stored.name = std::move(tensor.name);
    stored.role = std::move(tensor.role);
    stored.type = tensor.type;
    stored.shape = std::move(tensor.shape);
    for (const StoreManifestPiece& piece : tensor.pieces)
      stored.pieces.push_back({piece.box, piece.file, piece.offset_bytes, dense_stride(piece.box)});
  }
  if (!seats.empty())
    view.facts.emplace_back("job", text("of ", seats.size(), " seats, with ", aside_bytes,
                                        " bytes by which `pawl run --resume` goes on exactly"));
  return view;
}

Result<StoreProof> prove_store(const std::string& folder, const StoreProofOptions& options, Files& files) {
  PAWL_ASSIGN(const StoreManifest manifest, read_store_manifest(folder, files));
  return Prover(folder, manifest, options, files).run();
}

}  // namespace pawl::checkpoint
