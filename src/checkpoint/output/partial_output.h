// PartialOutput: a file or folder that gets its name only when it is complete.
//
// It grows in a folder beside its place, `<name>.pawl-partial`, and is renamed last, after everything was synced. What
// always holds: a process killed at any instant leaves at `<name>` what stood there before, or all of the new; and at
// most the partial folder, which says what it is, and which the next run to the same place empties and takes over. Two
// runs at once: the second fails, because the first holds a lock.
// A folder that has content and is to be overwritten is exchanged with the new one as a whole, if it holds the marker
// that makes it a checkpoint of the same format; otherwise that is an error, because it may hold anything.
// One exception: without a marker (Hugging Face) such a folder is taken over file by file: its index and weights go
// first and the new index comes last, so that a kill in between leaves no checkpoint there, the new one lying in the
// partial folder. Other files of the folder (config.json) stay.
// Writes no data: whoever does makes the files that path_of names. One thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "env/fd.h"

namespace pawl::checkpoint {

inline constexpr const char* kPartialSuffix = ".pawl-partial";
// Of a folder of Hugging Face: comes last, where such a folder is taken over.
inline constexpr std::string_view kHuggingFaceIndexName = "model.safetensors.index.json";

struct PartialOptions {
  bool folder = false;      // else one file
  bool overwrite = false;   // what stands there is replaced; else it is refused
  std::uint64_t bytes = 0;  // that will be written: refused at once where the disk has less
  std::string marker = {};  // of a folder that is replaced as a whole: a file that the one there must hold
  // Of several processes that write one output: the name of a folder in the partial one, other each time, in which it
  // grows. A process of an earlier attempt, wherever it still runs, then finds none of its files. Empty: one process.
  std::string attempt = {};
};

// Where the output for that path grows, if its options name an attempt; beside it: what is not the output's own.
[[nodiscard]] std::string partial_folder(const std::string& path);

class PartialOutput {
 public:
  // Fails: `invalid` if something stands there and overwrite is off, or is of the other kind; `not_found` if the folder
  // above is not there; `full` without room; `stale` if another run is at it; `io`.
  [[nodiscard]] static Result<PartialOutput> begin(const std::string& path, PartialOptions options);
  // What begin() would refuse, without touching anything.
  [[nodiscard]] static Status check(const std::string& path, const PartialOptions& options);
  PartialOutput(PartialOutput&& other) noexcept = default;
  PartialOutput& operator=(PartialOutput&&) = delete;
  PartialOutput(const PartialOutput&) = delete;
  PartialOutput& operator=(const PartialOutput&) = delete;
  ~PartialOutput();  // what was not published is removed

  // Where to make a file of the folder; of an output that is one file, the name does not matter. Nothing is there yet,
  // but the folders that the name goes through ("a/b/c.pt"): if these can't be made, neither can the file.
  [[nodiscard]] std::string path_of(const std::string& name);
  // Syncs all of them, and gives them their names. Afterwards they are on the disk. Fails: `io`, `full`, `not_found` if
  // one was not made.
  [[nodiscard]] Status publish();
  // Where path_of's files are.
  [[nodiscard]] const std::string& folder() const { return root_; }

 private:
  PartialOutput(std::string path, std::string partial, Fd lock, PartialOptions options)
      : path_(std::move(path)),
        partial_(std::move(partial)),
        root_(options.attempt.empty() ? partial_ : partial_ + "/" + options.attempt),
        lock_(std::move(lock)),
        options_(std::move(options)) {}
  [[nodiscard]] Status publish_file();
  [[nodiscard]] Status publish_folder();
  [[nodiscard]] Status exchange_folder();
  [[nodiscard]] Status take_over_folder();

  std::string path_;
  std::string partial_;
  std::string root_;  // where the files grow: the partial folder, or the attempt's in it
  Fd lock_;           // of the partial folder; none: moved from, or published
  PartialOptions options_;
  std::vector<std::string> names_;
  bool keep_ = false;  // what was to be replaced is gone: this is all there is
};

}  // namespace pawl::checkpoint
