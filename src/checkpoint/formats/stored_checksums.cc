#include "checkpoint/formats/stored_checksums.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
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

using Form = StoredChecksum::Form;
using Span64 = std::pair<std::uint64_t, std::uint64_t>;

constexpr std::string_view kZipMagic = "PK\3\4";
constexpr std::uint64_t kObjectBytesMax = 256 << 20;  // of an item that is no tensor
constexpr std::uint64_t kBesideBytesMax = 1 << 20;    // of a record beside the tensors that is proven when it is listed
constexpr std::uint64_t kReadBytes = 1 << 20;
constexpr std::uint32_t kThreadsMax = 4;

bool is_zip(ByteSource& source) {
  const Result<std::string> head =
      source.size_bytes() < 4 ? Result<std::string>(std::string()) : read_text(source, 0, 4);
  return head && *head == kZipMagic;
}

Error damage(std::uint64_t bytes, std::string_view who) {
  return Error{Code::corrupt, text(bytes, " bytes do not have the checksum that the ", who, " gives")};
}

std::string_view giver(ChecksumKind kind) {
  return kind == ChecksumKind::crc32 ? "archive" : "manifest";
}

// Where the bytes of tensors lie.
class Touched {
 public:
  // `copy`: of a tensor that has a copy of this number, only that one.
  void add(const CheckpointView& view, const StoredTensor& tensor, std::optional<std::uint32_t> copy) {
    const bool has_copy =
        copy && std::ranges::any_of(tensor.pieces, [&](const StoredPiece& piece) { return piece.copy == *copy; });
    for (const StoredPiece& piece : tensor.pieces) {
      const StoredFile& file = view.files[piece.file];
      if (file.codec == StoredFile::Codec::content || (has_copy && piece.copy != *copy)) continue;
      if (file.codec == StoredFile::Codec::none)
        places_[file.path].emplace_back(piece.offset_bytes, piece.offset_bytes + span_bytes(piece, tensor.type));
      else
        places_[file.path].emplace_back(file.offset_bytes, file.offset_bytes + file.length_bytes);
    }
  }

  // Afterwards meets() may be asked.
  void join() {
    for (auto& [path, spans] : places_) {
      std::ranges::sort(spans);
      std::vector<Span64> joined;
      for (const Span64& span : spans) {
        if (joined.empty() || joined.back().second < span.first)
          joined.push_back(span);
        else
          joined.back().second = std::max(joined.back().second, span.second);
      }
      spans = std::move(joined);
    }
  }

  [[nodiscard]] bool meets(const std::string& path, std::uint64_t begin, std::uint64_t end) const {
    const auto spans = places_.find(path);
    if (spans == places_.end() || begin == end) return false;
    const auto next = std::ranges::upper_bound(spans->second, begin, {}, &Span64::second);
    return next != spans->second.end() && next->first < end;
  }

 private:
  std::map<std::string, std::vector<Span64>> places_;
};

// Lists the checksums of files, one after another.
class Lister {
 public:
  Lister(StoredChecksums& out, const Touched* touched) : out_(out), touched_(touched) {}

  // Whether anything there is to be listed.
  [[nodiscard]] bool wants(const std::string& path, std::uint64_t begin, std::uint64_t end) const {
    return touched_ == nullptr || touched_->meets(path, begin, end);
  }
  void begin_file(const std::string& path) { out_.paths.push_back(path); }
  void end_file() { out_.unproven_files += std::exchange(has_unproven_, false); }

  // An archive, all of `source`, which begins at `at` in the file. What is not one has no checksums.
  // `beside`: records that are not wanted are proven at once, unless they are large.
  void archive(ByteSource& source, std::uint64_t at, const std::string& name, bool beside) {
    if (!is_zip(source)) {
      has_unproven_ = true;
      return;
    }
    const Result<ZipDirectory> directory = ZipDirectory::read(source);
    if (!directory) return failed(name, directory.error());
    for (const ZipRecord& record : directory->records()) {
      const std::uint64_t begin = at + record.offset_bytes;
      if (!wants(out_.paths.back(), begin, begin + record.size_bytes)) {
        if (beside && record.unpacked_bytes <= kBesideBytesMax) prove_beside(source, record, name);
        continue;
      }
      if (record.crc32 == 0 && record.size_bytes != 0) {
        ++out_.unproven_records;
        has_unproven_ = true;
        continue;
      }
      StoredChecksum& checksum =
          add(begin, record.size_bytes, text(name, name.empty() ? "" : ": ", "record ", record.name));
      checksum.form = record.deflated ? Form::deflate : Form::plain;
      checksum.value = record.crc32;
      checksum.unpacked_bytes = record.unpacked_bytes;
    }
  }

  // An item of DCP: an archive of at most so many bytes, perhaps packed; its frame need not say its size.
  void item(ByteSource& file, const std::string& key, const DcpPlace& place, std::uint64_t bytes_max, bool beside) {
    const std::string name = text("item ", key);
    Result<RangeBytes> range = RangeBytes::open(file, place.offset_bytes, place.length_bytes);
    if (!range) return failed(name, range.error());
    if (place.transforms.empty()) return archive(*range, place.offset_bytes, name, beside);
    if (place.transforms.size() != 1 || !place.transforms[0].starts_with("stream.zstd")) {
      has_unproven_ = true;
      return;
    }
    StoredChecksum& checksum = add(place.offset_bytes, place.length_bytes, name);
    checksum.form = Form::zstd;
    checksum.unpacked_bytes = bytes_max;
  }

  // Of a data file of our store: its first bytes, which are proven at once.
  void header(const std::string& path, std::uint64_t bytes, std::uint32_t crc32c) {
    begin_file(path);
    const Result<std::unique_ptr<ByteSource>> source = open_bytes(path);
    if (!source) return failed("its header", source.error());
    const Result<std::string> head = read_text(**source, 0, bytes);
    if (!head) return failed("its header", head.error());
    if (checksum(ChecksumKind::crc32c, std::as_bytes(std::span(*head))) != crc32c)
      failed("its header", damage(bytes, giver(ChecksumKind::crc32c)));
  }

  void piece(std::uint64_t at, std::uint64_t bytes, std::uint32_t crc32c, std::string name) {
    if (!wants(out_.paths.back(), at, at + bytes)) return;
    add(at, bytes, std::move(name)).value = crc32c;
  }

 private:
  void prove_beside(ByteSource& source, const ZipRecord& record, const std::string& name) {
    const bool is_storage = record.name.find("/data/") != std::string::npos;
    if (record.crc32 == 0 || (name.empty() && is_storage)) return;  // another tensor's, which is not wanted
    if (const Result<std::string> content = read_record(source, record, kBesideBytesMax); !content)
      failed(name, content.error());
  }

  StoredChecksum& add(std::uint64_t at, std::uint64_t bytes, std::string name) {
    StoredChecksum& checksum = out_.all.emplace_back();
    checksum.path = static_cast<std::uint32_t>(out_.paths.size() - 1);
    checksum.begin = at;
    checksum.end = at + bytes;
    checksum.name = std::move(name);
    return checksum;
  }

  void failed(const std::string& name, const Error& error) {
    out_.wrong.push_back(text(out_.paths.back(), ": ", name, name.empty() ? "" : ": ", error.what));
  }

  StoredChecksums& out_;
  const Touched* touched_;
  bool has_unproven_ = false;
};

bool is_dcp(const std::string& folder) {
  return path_exists(join_path(folder, ".metadata")) || path_exists(join_path(folder, "__0.metadata"));
}

Status list_dcp(const std::string& folder, Lister& lister) {
  PAWL_ASSIGN(const DcpCheckpoint dcp, open_dcp(folder));
  using Item = std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>;
  struct Entry {
    const DcpPlace& place;
    const std::string& key;
    std::uint64_t bytes_max;  // decoded
    bool is_object;
  };
  std::map<Item, Entry> items;  // each once, in the order of the files
  const auto add = [&](const DcpPlace& place, const std::string& key, std::uint64_t bytes_max, bool is_object) {
    items.try_emplace(Item(place.file, place.offset_bytes, place.length_bytes),
                      Entry{place, key, bytes_max, is_object});
  };
  for (const DcpTensor& tensor : dcp.tensors) {
    const bool is_object = tensor.key.find("param_groups") != std::string::npos;  // a hyperparameter, read as a number
    for (const DcpChunk& chunk : tensor.chunks)
      add(chunk.place, tensor.key, decoded_bytes_max(tensor, chunk).value_or(0), is_object);
  }
  for (const DcpObject& object : dcp.objects) add(object.place, object.key, kObjectBytesMax, true);
  std::unique_ptr<ByteSource> source;  // null: missing, which is a problem of the view
  std::uint32_t opened = ~0u;
  for (const auto& [item, entry] : items) {
    const auto& [file, offset, length] = item;
    if (!entry.is_object && !lister.wants(dcp.files[file], offset, offset + length)) continue;
    if (file != opened) {
      lister.end_file();
      Result<std::unique_ptr<ByteSource>> open = open_bytes(dcp.files[file]);
      if (!open && open.error().code != Code::not_found) return std::move(open).error();
      source = open ? std::move(*open) : nullptr;
      lister.begin_file(dcp.files[file]);
      opened = file;
    }
    if (source) lister.item(*source, entry.key, entry.place, entry.bytes_max, entry.is_object);
  }
  lister.end_file();
  return {};
}

bool is_store(const std::string& folder) {
  const Result<std::vector<std::string>> names = real_files().list(folder);
  return names && is_store_folder(*names);
}

Status list_store(const std::string& folder, Lister& lister) {
  PAWL_ASSIGN(const StoreManifest manifest, read_store_manifest(folder));
  std::vector<std::pair<const StoreManifestTensor*, const StoreManifestPiece*>> pieces;
  for (const StoreManifestTensor& tensor : manifest.tensors)
    for (const StoreManifestPiece& piece : tensor.pieces) pieces.emplace_back(&tensor, &piece);
  std::ranges::sort(pieces, {},
                    [](const auto& pair) { return std::pair(pair.second->file, pair.second->offset_bytes); });
  std::uint32_t opened = ~0u;
  for (const auto& [tensor, piece] : pieces) {
    if (const StoreFile& file = manifest.files[piece->file]; piece->file != opened)
      lister.header(join_path(folder, file.name), file.header_bytes, file.header_crc32c);
    opened = piece->file;
    lister.piece(piece->offset_bytes, piece_bytes(*tensor, *piece), piece->crc32c,
                 store_key(tensor->name, tensor->role, tensor->shape, piece->box));
  }
  return {};
}

// What a view's files are parts of.
struct Sources {
  std::set<std::string> files, folders, stores;
};

Sources sources_of(const CheckpointView& view) {
  Sources sources;
  std::map<std::string, bool> dcp;  // by folder
  for (const StoredFile& file : view.files) {
    const std::string folder = parent_path(file.path);
    if (view.format == "pawl" && is_store(folder)) {
      sources.stores.insert(folder);
      continue;
    }
    const auto [known, is_new] = dcp.try_emplace(folder, false);
    if (is_new) known->second = is_dcp(folder);
    if (known->second)
      sources.folders.insert(folder);
    else if (file.codec != StoredFile::Codec::content)
      sources.files.insert(file.path);
  }
  return sources;
}

Status list_files(const Sources& sources, Lister& lister, StoredChecksums& out) {
  for (const std::string& path : sources.files) {
    Result<std::unique_ptr<ByteSource>> source = open_bytes(path);
    if (!source && source.error().code == Code::not_found) continue;  // a problem of the view
    if (!source) {
      out.wrong.push_back(source.error().what);
      continue;
    }
    lister.begin_file(path);
    lister.archive(**source, 0, {}, true);
    lister.end_file();
  }
  return {};
}

struct Proven {
  std::uint64_t records = 0, bytes = 0;
};

std::string place_of(const StoredChecksums& checksums, std::size_t number) {
  const StoredChecksum& checksum = checksums.all[number];
  return text(checksums.paths[checksum.path], ": ", checksum.name);
}

// Several threads, each with the file that it reads, take one checksum after another.
class Prover {
 public:
  Prover(const StoredChecksums& checksums, const std::vector<std::size_t>& chosen, const ChecksumProofOptions& options)
      : checksums_(checksums), chosen_(chosen), options_(options) {}

  Result<ChecksumReport> run() {
    std::uint32_t count = options_.threads != 0 ? options_.threads : std::max(1u, std::thread::hardware_concurrency());
    count = static_cast<std::uint32_t>(std::min<std::size_t>({count, kThreadsMax, chosen_.size()}));
    std::vector<std::thread> threads;
    for (std::uint32_t i = 1; i < count; ++i) threads.emplace_back([this] { take(); });
    take();
    for (std::thread& thread : threads) thread.join();
    if (is_cancelled()) return Error{Code::cancelled, "interrupted"};
    for (auto& [number, sentence] : wrong_) report_.wrong.push_back(std::move(sentence));
    return std::move(report_);
  }

 private:
  [[nodiscard]] bool is_cancelled() const { return options_.cancel != nullptr && options_.cancel->load(); }

  void take() {
    std::unique_ptr<ByteSource> source;
    std::uint32_t opened = ~0u;
    for (std::size_t i = next_++; i < chosen_.size() && !is_cancelled(); i = next_++) {
      const StoredChecksum& checksum = checksums_.all[chosen_[i]];
      if (checksum.path != opened) {
        Result<std::unique_ptr<ByteSource>> open = open_bytes(checksums_.paths[checksum.path]);
        if (!open) {
          note(chosen_[i], Result<Proven>(open.error()));
          continue;
        }
        source = std::move(*open);
        opened = checksum.path;
      }
      note(chosen_[i], prove(*source, checksum));
    }
  }

  Result<Proven> prove(ByteSource& source, const StoredChecksum& checksum) {
    std::unique_lock packed(packed_mutex_, std::defer_lock);
    if (checksum.form != Form::plain) packed.lock();
    switch (checksum.form) {
      case Form::plain:
        return prove_plain(source, checksum);
      case Form::deflate:
        return prove_deflated(source, checksum);
      case Form::zstd:
        return prove_packed_archive(source, checksum);
    }
    return Error{Code::broken, "no such form"};
  }

  Result<Proven> prove_plain(ByteSource& source, const StoredChecksum& checksum) {
    std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(kReadBytes, checksum.end - checksum.begin)));
    std::uint32_t sum = 0;
    for (std::uint64_t at = checksum.begin; at < checksum.end && !is_cancelled();) {
      const std::span<std::byte> part =
          std::span(buffer).first(static_cast<std::size_t>(std::min<std::uint64_t>(checksum.end - at, buffer.size())));
      PAWL_TRY(source.read(at, part));
      sum = pawl::checkpoint::checksum(checksums_.kind, part, sum);
      at += part.size();
      add_read(part.size());
    }
    const std::uint64_t bytes = checksum.end - checksum.begin;
    if (sum != checksum.value && !is_cancelled()) return damage(bytes, giver(checksums_.kind));
    return Proven{1, bytes};
  }

  Result<Proven> prove_deflated(ByteSource& source, const StoredChecksum& checksum) {
    const std::uint64_t bytes = checksum.end - checksum.begin;
    const ZipRecord record{checksum.name, checksum.begin, bytes, checksum.unpacked_bytes, checksum.value, true};
    PAWL_ASSIGN(const bool agrees, checksum_agrees(source, record));
    add_read(bytes);
    if (!agrees) return damage(bytes, giver(checksums_.kind));
    return Proven{1, checksum.unpacked_bytes};
  }

  Result<Proven> prove_packed_archive(ByteSource& source, const StoredChecksum& checksum) {
    const std::uint64_t bytes = checksum.end - checksum.begin;
    PAWL_ASSIGN(const std::string encoded, read_text(source, checksum.begin, bytes));
    add_read(bytes);
    MemoryBytes packed(encoded);
    PAWL_ASSIGN(const ZstdEnds ends, zstd_ends(packed, checksum.unpacked_bytes, 1));
    PAWL_ASSIGN(const std::string decoded, decode_zstd(encoded, ends.size_bytes));
    MemoryBytes memory(decoded);
    PAWL_ASSIGN(const ZipDirectory directory, ZipDirectory::read(memory));
    Proven proven;
    for (const ZipRecord& record : directory.records()) {
      if (record.crc32 == 0 && record.size_bytes != 0) continue;
      PAWL_ASSIGN(const bool agrees, checksum_agrees(memory, record));
      if (!agrees) return damage(record.size_bytes, giver(checksums_.kind)).within(text("record ", record.name));
      ++proven.records;
      proven.bytes += record.unpacked_bytes;
    }
    return proven;
  }

  void add_read(std::uint64_t bytes) {
    if (!options_.progress) return;
    const std::lock_guard lock(mutex_);
    options_.progress(read_ += bytes);
  }

  void note(std::size_t number, const Result<Proven>& proven) {
    const std::lock_guard lock(mutex_);
    if (proven) {
      report_.records += proven->records;
      report_.bytes += proven->bytes;
      return;
    }
    wrong_.emplace(number, text(place_of(checksums_, number), ": ", proven.error().what));
  }

  const StoredChecksums& checksums_;
  const std::vector<std::size_t>& chosen_;
  const ChecksumProofOptions& options_;
  std::atomic<std::size_t> next_{0};
  std::mutex packed_mutex_;  // one is unpacked at a time: it is in memory whole
  std::mutex mutex_;
  std::uint64_t read_ = 0;
  ChecksumReport report_;
  std::map<std::size_t, std::string> wrong_;  // in the order of the list, whoever found it first
};

Status prove_store_folder(const std::string& folder, const ChecksumProofOptions& options, ChecksumReport& report) {
  StoreProofOptions proof_options;
  proof_options.threads = options.threads;
  proof_options.cancel = options.cancel;
  proof_options.progress = options.progress;
  PAWL_ASSIGN(const StoreProof proof, prove_store(folder, proof_options));
  report.records += proof.records;
  report.bytes += proof.bytes;
  report.wrong.insert(report.wrong.end(), proof.wrong.begin(), proof.wrong.end());
  return {};
}

// What fails, but is not cancelled, is in the report.
Status into_report(const Status& done, std::vector<std::string>& wrong) {
  if (done) return {};
  if (done.error().code == Code::cancelled) return done.error();
  wrong.push_back(done.error().what);
  return {};
}

}  // namespace

Result<StoredChecksums> checksums_of(const CheckpointView& view) {
  Touched touched;
  for (const StoredTensor& tensor : view.tensors) touched.add(view, tensor, {});
  touched.join();
  StoredChecksums out;
  Lister lister(out, &touched);
  const Sources sources = sources_of(view);
  for (const std::string& folder : sources.stores) {
    out.kind = ChecksumKind::crc32c;
    PAWL_TRY(list_store(folder, lister));
  }
  for (const std::string& folder : sources.folders) PAWL_TRY(list_dcp(folder, lister));
  PAWL_TRY(list_files(sources, lister, out));
  std::ranges::stable_sort(out.all, {}, [](const StoredChecksum& one) { return std::pair(one.path, one.begin); });
  return out;
}

std::vector<std::size_t> checksums_meeting(const StoredChecksums& checksums, const CheckpointView& view,
                                           const std::vector<std::uint32_t>& tensors,
                                           std::optional<std::uint32_t> trusted_copy) {
  Touched touched;
  for (const std::uint32_t tensor : tensors) touched.add(view, view.tensors[tensor], trusted_copy.value_or(0));
  touched.join();
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < checksums.all.size(); ++i)
    if (const StoredChecksum& one = checksums.all[i]; touched.meets(checksums.paths[one.path], one.begin, one.end))
      out.push_back(i);
  return out;
}

std::vector<std::size_t> plain_checksums(const StoredChecksums& checksums) {
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < checksums.all.size(); ++i) {
    if (checksums.all[i].form != Form::plain) continue;
    const StoredChecksum* before = out.empty() ? nullptr : &checksums.all[out.back()];
    if (before == nullptr || before->path != checksums.all[i].path || before->end <= checksums.all[i].begin)
      out.push_back(i);
  }
  return out;
}

std::vector<std::uint32_t> paths_of_files(const StoredChecksums& checksums, std::span<const StoredFile> files) {
  std::map<std::string_view, std::uint32_t> numbers;
  for (std::uint32_t i = 0; i < checksums.paths.size(); ++i) numbers.emplace(checksums.paths[i], i);
  std::vector<std::uint32_t> out;
  for (const StoredFile& file : files) {
    const auto found = numbers.find(file.path);
    out.push_back(file.codec == StoredFile::Codec::none && found != numbers.end() ? found->second : kNoPath);
  }
  return out;
}

Result<ChecksumReport> prove_checksums(const StoredChecksums& checksums, const std::vector<std::size_t>& chosen,
                                       const ChecksumProofOptions& options) {
  return Prover(checksums, chosen, options).run();
}

Result<ChecksumReport> prove_all_checksums(const CheckpointView& view, const ChecksumProofOptions& options) {
  const Sources sources = sources_of(view);
  StoredChecksums listed;
  Lister lister(listed, nullptr);
  for (const std::string& folder : sources.folders) PAWL_TRY(into_report(list_dcp(folder, lister), listed.wrong));
  PAWL_TRY(list_files(sources, lister, listed));
  std::vector<std::size_t> all(listed.all.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  PAWL_ASSIGN(ChecksumReport report, prove_checksums(listed, all, options));
  report.wrong.insert(report.wrong.begin(), listed.wrong.begin(), listed.wrong.end());
  report.unproven_records = listed.unproven_records;
  report.unproven_files = listed.unproven_files;
  for (const std::string& folder : sources.stores)
    PAWL_TRY(into_report(prove_store_folder(folder, options, report), report.wrong));
  return report;
}

std::string sentence_of_damage(const StoredChecksums& checksums, std::size_t number) {
  const StoredChecksum& checksum = checksums.all[number];
  return text(place_of(checksums, number), ": ", damage(checksum.end - checksum.begin, giver(checksums.kind)).what);
}

}  // namespace pawl::checkpoint
