// `pawl verify`: whether a checkpoint is what its format says, byte for byte as far as the format can prove it.
#include <algorithm>

#include "base/text.h"
#include "checkpoint/formats/stored_checksums.h"
#include "checkpoint/reshape/compare_copies.h"
#include "cli/checkpoint/access.h"
#include "cli/checkpoint/commands.h"
#include "cli/checkpoint/numbers.h"
#include "cli/checkpoint/portions.h"
#include "cli/checkpoint/progress.h"
#include "cli/checkpoint/text.h"
#include "cli/exit_codes.h"
#include "cli/output.h"

namespace pawl::checkpoint {
namespace {

constexpr std::size_t kVerifyShownMax = 20;

struct Special {
  std::uint32_t tensor = 0;
  SpecialNumbers numbers;
};

struct Verification {
  CheckpointView view;
  ChecksumReport checksums;
  std::vector<CopyDifference> differences;
  bool has_copies = false;
  std::vector<std::string> wrong;  // sentences: what could not be read or decoded
  std::vector<Special> special;
  std::uint64_t bytes_read = 0;  // of tensors, once each
  std::uint64_t tensors_read = 0;
  std::uint64_t tensors_incomplete = 0;
};

bool is_damaged(const Verification& found) {
  return !found.checksums.wrong.empty() || !found.differences.empty() || !found.wrong.empty();
}

const char* verdict_of(const Verification& found) {
  if (is_damaged(found)) return "damaged";
  if (!found.view.problems.empty()) return "incomplete";
  if (found.checksums.records == 0) return "structure sound, bytes unproven";
  return found.checksums.unproven_files == 0 ? "sound" : "structure sound, bytes proven in part";
}

// One portion; what can't be read is tried again tensor by tensor, so that one bad tensor hides no other.
class Reader {
 public:
  Reader(const VerifyOptions& options, Verification& found, std::vector<std::uint32_t> view_index,
         std::uint64_t bytes_all)
      : found_(found),
        reader_(found.view),
        view_index_(std::move(view_index)),
        execution_(execute_options(options.memory_bytes / 2)),
        progress_("verify", bytes_all) {}

  Status read(const Portion& portion) {
    const Status done = reader_.read(portion, view_index_, buffers_, execution_);
    if (done) return look_through(portion);
    if (done.error().code == Code::cancelled) return done.error();
    if (portion.tensors.size() == 1) return note_failure(portion, done.error());
    for (const std::uint32_t tensor : portion.tensors) {
      Portion one;
      one.tensors = {tensor};
      PAWL_TRY(read(one));
    }
    return {};
  }

 private:
  Status look_through(const Portion& portion) {
    for (std::size_t i = 0; i < portion.tensors.size(); ++i) {
      const std::uint32_t tensor = view_index_[portion.tensors[i]];
      SpecialNumbers numbers;
      count_special(found_.view.tensors[tensor].type, buffers_[i], numbers);
      found_.bytes_read += buffers_[i].size();
      found_.tensors_read += portion.part == 0;
      if (numbers.nan + numbers.infinite == 0) continue;
      if (found_.special.empty() || found_.special.back().tensor != tensor) found_.special.push_back({tensor, {}});
      found_.special.back().numbers.nan += numbers.nan;
      found_.special.back().numbers.infinite += numbers.infinite;
    }
    progress_.at(found_.bytes_read);
    return {};
  }

  // What is known to be missing is a problem of the view already.
  Status note_failure(const Portion& portion, const Error& error) {
    if (error.code == Code::not_found && !found_.view.problems.empty()) {
      found_.tensors_incomplete += portion.part == 0;
      return {};
    }
    if (portion.part == 0 || found_.wrong.empty() || found_.wrong.back() != error.what)
      found_.wrong.push_back(error.what);
    return {};
  }

  Verification& found_;
  PortionReader reader_;
  std::vector<std::uint32_t> view_index_;
  ExecuteOptions execution_;
  ProgressBar progress_;
  std::vector<std::vector<std::byte>> buffers_;
};

Status read_tensors(const VerifyOptions& options, Verification& found) {
  std::vector<PortionTensor> tensors;
  std::vector<std::uint32_t> view_index;
  std::uint64_t bytes_all = 0;
  for (std::uint32_t i = 0; i < found.view.tensors.size(); ++i) {
    tensors.push_back({found.view.tensors[i].type, found.view.tensors[i].shape});
    view_index.push_back(i);
    bytes_all += bytes_of(found.view.tensors[i]);
  }
  Reader reader(options, found, std::move(view_index), bytes_all);
  for (const Portion& portion : plan_portions(tensors, std::max<std::uint64_t>(options.memory_bytes / 4, 1 << 18)))
    PAWL_TRY(reader.read(portion));
  return {};
}

Status compare_replicas(const VerifyOptions& options, Verification& found) {
  found.has_copies = has_copies(found.view);
  if (!found.has_copies) return {};
  std::vector<std::uint32_t> all;
  for (std::uint32_t i = 0; i < found.view.tensors.size(); ++i) all.push_back(i);
  Result<std::vector<CopyDifference>> differences =
      compare_copies(found.view, all, execute_options(options.memory_bytes));
  if (differences)
    found.differences = std::move(*differences);
  else if (differences.error().code == Code::cancelled)
    return differences.error();
  else
    found.wrong.push_back(differences.error().what);
  return {};
}

Status verify(const VerifyOptions& options, Verification& found) {
  PAWL_ASSIGN(found.view, open_proven(options.path, options.read));
  std::uint64_t stored_bytes = 0;
  PAWL_ASSIGN(const std::vector<std::uint64_t> sizes, file_sizes_of(found.view));
  for (const std::uint64_t size : sizes) stored_bytes += size;
  {
    ProgressBar progress("checksums", stored_bytes);
    PAWL_ASSIGN(found.checksums,
                prove_all_checksums(found.view, {.cancel = &interrupted(),
                                                 .progress = [&](std::uint64_t bytes) { progress.at(bytes); }}));
  }
  PAWL_TRY(compare_replicas(options, found));
  return read_tensors(options, found);
}

std::string checksums_text(const ChecksumReport& checksums) {
  if (checksums.records == 0) return "none in this format";
  std::string out = text(checksums.records, " agree (", bytes_text(checksums.bytes), ")");
  if (checksums.unproven_files != 0) out += text("; ", checksums.unproven_files, " files have parts without checksums");
  return out;
}

void append_wrong(std::string& out, const std::vector<std::string>& sentences) {
  for (std::size_t i = 0; i < sentences.size() && i < kVerifyShownMax; ++i)
    out += text("WRONG: ", printable(sentences[i]), "\n");
  if (sentences.size() > kVerifyShownMax) out += text("WRONG: ", sentences.size() - kVerifyShownMax, " more\n");
}

std::vector<std::string> differences_text(const Verification& found) {
  std::vector<std::string> out;
  for (const CopyDifference& difference : found.differences) out.push_back(sentence_of(difference, found.view));
  return out;
}

std::string summary_of(const VerifyOptions& options, const Verification& found) {
  std::string out = table({{"format", printable(found.view.format)},
                           {"path", printable(options.path)},
                           {"read", text(found.tensors_read, " tensors, ", bytes_text(found.bytes_read))},
                           {"checksums", checksums_text(found.checksums)},
                           {"copies", !found.has_copies           ? "none"
                                      : found.differences.empty() ? "equal"
                                                                  : text(found.differences.size(), " differ")}});
  append_wrong(out, found.checksums.wrong);
  append_wrong(out, differences_text(found));
  append_wrong(out, found.wrong);
  for (const std::string& problem : found.view.problems) out += text("PROBLEM: ", printable(problem), "\n");
  for (std::size_t i = 0; i < found.view.unsupported.size() && i < kVerifyShownMax; ++i)
    out += text("remark: not read: ", printable(found.view.unsupported[i]), "\n");
  if (found.view.unsupported.size() > kVerifyShownMax)
    out += text("remark: ", found.view.unsupported.size() - kVerifyShownMax, " more tensors are not read\n");
  for (std::size_t i = 0; i < found.special.size() && i < kVerifyShownMax; ++i) {
    const StoredTensor& tensor = found.view.tensors[found.special[i].tensor];
    out += text("remark: ", printable(tensor.name), " (", printable(tensor.role), ") holds ",
                found.special[i].numbers.nan, " NaN and ", found.special[i].numbers.infinite, " infinite numbers\n");
  }
  if (found.special.size() > kVerifyShownMax)
    out += text("remark: ", found.special.size() - kVerifyShownMax, " more tensors hold NaN or infinite numbers\n");
  return out + verdict_of(found) + "\n";
}

json document_of(const VerifyOptions& options, const Verification& found) {
  json document = {{"path", options.path},
                   {"format", found.view.format},
                   {"verdict", verdict_of(found)},
                   {"tensors_read", found.tensors_read},
                   {"tensors_incomplete", found.tensors_incomplete},
                   {"bytes_read", found.bytes_read},
                   {"checksums",
                    {{"records", found.checksums.records},
                     {"bytes", found.checksums.bytes},
                     {"unproven_files", found.checksums.unproven_files},
                     {"wrong", found.checksums.wrong}}},
                   {"copies", {{"present", found.has_copies}, {"differences", differences_text(found)}}},
                   {"wrong", found.wrong},
                   {"unsupported", found.view.unsupported},
                   {"problems", found.view.problems},
                   {"special", json::array()}};
  for (const Special& special : found.special) {
    const StoredTensor& tensor = found.view.tensors[special.tensor];
    document["special"].push_back({{"name", tensor.name},
                                   {"role", tensor.role},
                                   {"nan", special.numbers.nan},
                                   {"infinite", special.numbers.infinite}});
  }
  return document;
}

}  // namespace

int command_verify(const VerifyOptions& options) {
  (void)interrupted();
  Verification found;
  if (const Status done = verify(options, found); !done) return report_checkpoint_error(done.error(), options.json);
  if (options.json)
    print(json_text(document_of(options, found)) + "\n");
  else
    print(summary_of(options, found));
  return is_damaged(found) || !found.view.problems.empty() ? kExitDegraded : kExitOk;
}

}  // namespace pawl::checkpoint
