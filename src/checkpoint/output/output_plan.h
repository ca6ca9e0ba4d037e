// OutputPlan: what a writer of a format decides: which tensors of a view, under which keys, as which types, at which
// places of which files, and the bytes around them. And write_output(), which does it.
//
// What always holds: each planned tensor is whole, dense, row-major and little-endian, in one file; tensors and texts
// of a file don't overlap, and what neither covers is zero. All data is written first, then the texts, and each file's
// first bytes last of all, files in the order of the plan: a file in the making begins with zeros, which no reader
// takes, and the last file is the one that makes the others a checkpoint.
// Several processes may write one output, each a share of it (checkpoint/output/output_shares.h): one makes the files,
// each writes and syncs its share, and one that has all their reports finishes. The structs and the planning functions
// are pure: checkpoint/formats/huggingface/safetensors_writer.h, checkpoint/formats/dcp/dcp_writer.h,
// checkpoint/formats/deepspeed/universal_writer.h. Names are given to finished files by
// checkpoint/output/partial_output.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "checkpoint/output/partial_output.h"
#include "checkpoint/reshape/execute.h"
#include "checkpoint/reshape/file_source.h"
#include "checkpoint/view/checkpoint_view.h"

namespace pawl::checkpoint {

class RangeChecksums;  // checkpoint/reshape/range_checksums.h

// What of a view is to be written, for every format alike.
struct WriteOptions {
  std::vector<std::string> roles;                // only these; empty: what the format holds
  std::optional<ElementType> type;               // floating-point tensors become that; steps stay. Nothing: as stored
  std::uint64_t file_bytes_max = 5'000'000'000;  // of formats that spread tensors over files; one tensor may be larger
  std::string file_name = "data";                // of a format that is one file
  bool flat_names = false;                       // DCP: weights under their own names, not below "model"
};

struct PlannedTensor {
  std::uint32_t tensor = 0;  // in the view
  std::string key;           // what the format calls it
  ElementType type = ElementType::float32;
  std::uint32_t file = 0;  // in OutputPlan::files
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
};

struct PlannedText {
  std::uint64_t offset_bytes = 0;
  std::string text;
};

struct PlannedRange {
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
};

struct PlannedFile {
  std::string name;  // in the output's folder, and may lie in folders below it: "a/b/c.pt"
  std::uint64_t size_bytes = 0;
  std::vector<PlannedText> texts = {};  // ascending, disjoint: all that is no tensor's data and known beforehand
  // Ranges of data whose CRC-32 (of zip) `finish` asks for: ascending, disjoint.
  std::vector<PlannedRange> checked = {};
  // The texts that need them. Called once, after the data is written. May stay empty.
  std::function<std::vector<PlannedText>(const RangeChecksums& checksums)> finish = {};
};

struct OutputPlan {
  bool is_folder = false;              // else one file
  std::vector<PlannedTensor> tensors;  // in the order of the view
  std::vector<PlannedFile> files;
  // Of a folder that is replaced as a whole: the file without which a folder there is no checkpoint of this format, and
  // is left alone. Empty: files are taken over one by one, and strange ones stay (checkpoint/output/partial_output.h).
  std::string marker;
  std::uint64_t data_bytes = 0;  // all tensors
  std::uint64_t all_bytes = 0;   // all files
  std::vector<std::string> notes;
};

// Indices in view.tensors of those whose role is named; all without names. Fails: `not_found`, with the roles there
// are.
[[nodiscard]] Result<std::vector<std::uint32_t>> with_roles(const CheckpointView& view,
                                                            const std::vector<std::string>& roles);
// Numbers of steps stay what they are: a narrower type would round them.
[[nodiscard]] ElementType written_type(const StoredTensor& tensor, const std::optional<ElementType>& wanted);
// The plan's tensors for `chosen`, with index, type and size, and data_bytes. Keys and places are the format's. A note
// says which tensors keep their type although another is wanted.
// Fails: `not_found` where nothing is chosen; `invalid` for a tensor that is no whole number of bytes.
[[nodiscard]] Result<OutputPlan> plan_tensors(const CheckpointView& view, const std::vector<std::uint32_t>& chosen,
                                              const WriteOptions& options);

// Which file each tensor goes to, files filled in the order given, none above `file_bytes_max` unless one tensor is.
[[nodiscard]] std::vector<std::uint32_t> split_into_files(std::span<const std::uint64_t> size_bytes,
                                                          std::uint64_t file_bytes_max);
// A note of each name that is tied to another, of formats that hold it once.
void note_ties(const CheckpointView& view, OutputPlan& plan);

struct OutputOptions {
  ExecuteOptions execution;
  std::optional<std::uint32_t> trusted_copy;  // as FileSourceOptions
};

// Row-major elements [begin, end) of a tensor of the plan.
struct TensorStretch {
  std::uint32_t tensor = 0;  // in OutputPlan::tensors
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  bool operator==(const TensorStretch&) const = default;
};

// What one process writes of an output.
struct OutputShare {
  std::vector<TensorStretch> stretches;  // ascending
  std::uint64_t bytes = 0;
};

// What a process that wrote a share tells the one that finishes.
struct ShareReport {
  std::uint64_t bytes = 0;                                               // of tensors, that it wrote
  std::uint64_t bytes_read = 0;                                          // as ExecuteReport has it
  std::vector<std::pair<std::uint32_t, std::uint64_t>> overflowed = {};  // likewise: tensor of the plan, how many
  // Its part of the checksums of the plan's checked ranges, counted over all files: index, RangeChecksums::share_at.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> sums = {};
  std::vector<std::string> texts = {};  // of formats that have shares of their own (pawl's store)
  bool operator==(const ShareReport&) const = default;
};

[[nodiscard]] PartialOptions partial_options(const OutputPlan& plan, bool overwrite);
// What write_output() would find wrong with the view, before anything is made: `not_found` where a region of a tensor
// has no piece, `invalid` for a cast that can't be, ...
[[nodiscard]] Status check_output(const OutputPlan& plan, const CheckpointView& view, const OutputOptions& options);
// Makes all files of the plan; publishing is the caller's. Fails as ReshapePlan, execute() and the disk do; what was
// made is then removed with `output`. `execution` gets what the plan knows (bytes_expected, observe).
[[nodiscard]] Result<ExecuteReport> write_output(const OutputPlan& plan, const CheckpointView& view,
                                                 PartialOutput& output, const OutputOptions& options);

// The same in three steps, of which the second may be done by several processes at once, each its share.
// The files of the plan, at their full size and empty, and their paths, in order. Ends early once *cancel.
[[nodiscard]] Result<std::vector<std::string>> make_files(const OutputPlan& plan, PartialOutput& output,
                                                          const std::atomic<bool>* cancel = nullptr);
// Writes and syncs what the share says, and no other byte of these files.
[[nodiscard]] Result<ShareReport> write_share(const OutputPlan& plan, const CheckpointView& view,
                                              const OutputShare& share, std::span<const std::string> paths,
                                              const OutputOptions& options);
// With the reports of all shares: the texts, and each file's first bytes last. Fails also: `corrupt` where the reports
// are not of all the data.
[[nodiscard]] Status finish_files(const OutputPlan& plan, std::span<const ShareReport> reports,
                                  std::span<const std::string> paths);
// All reports as one.
[[nodiscard]] ExecuteReport sum_of(std::span<const ShareReport> reports);

}  // namespace pawl::checkpoint
