// DecodedFiles: encoded ranges of a checkpoint's files, decoded once each while somebody needs them.
//
// Thread-safe. Memory stays within the budget: a decoded file that nobody uses is dropped for others, and a caller that
// needs room waits for it. A caller that waits holds no file itself, so one of them always goes on.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/reshape/open_files.h"
#include "checkpoint/view/checkpoint_view.h"

namespace pawl::checkpoint {

class DecodedFiles {
 public:
  // `files`, and the same ones to be opened, outlive this object. `stopped` ends the waiting.
  DecodedFiles(const std::vector<StoredFile>* files, OpenFiles& opened, std::uint64_t bytes_max,
               std::function<bool()> stopped)
      : files_(files), opened_(opened), bytes_max_(bytes_max), stopped_(std::move(stopped)) {}

  using Bytes = std::shared_ptr<const std::string>;
  // Let go of it before asking for another. Fails: `corrupt`; `full` if it can't be held at all; `cancelled`.
  [[nodiscard]] Result<Bytes> get(std::uint32_t file);

  [[nodiscard]] std::uint64_t held_bytes_max();
  [[nodiscard]] std::uint64_t read_bytes();

 private:
  struct Entry {
    Bytes bytes;  // null: being decoded
    std::uint64_t used = 0;
  };
  [[nodiscard]] Result<std::string> read_encoded(std::uint32_t number);
  [[nodiscard]] Result<Bytes> decode(std::uint32_t number);
  bool drop_one();

  const std::vector<StoredFile>* files_;
  OpenFiles& opened_;
  std::uint64_t bytes_max_;
  std::function<bool()> stopped_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint32_t, Entry> entries_;
  std::uint64_t held_ = 0, held_max_ = 0, read_ = 0, clock_ = 0;
};

}  // namespace pawl::checkpoint
