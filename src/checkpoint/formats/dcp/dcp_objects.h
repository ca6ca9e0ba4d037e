// DcpObjects: reads the objects that optimizers keep in a DCP tree. A flattened one has an object for each
// hyperparameter of each parameter, so each file is kept open. One thread at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "checkpoint/containers/torch_file.h"
#include "checkpoint/formats/dcp/dcp.h"
#include "checkpoint/view/checkpoint_view.h"
#include "env/byte_source.h"
#include "env/files.h"

namespace pawl::checkpoint {

class DcpObjects {
 public:
  // Both outlive this.
  DcpObjects(const DcpCheckpoint& checkpoint, Files& files) : checkpoint_(checkpoint), files_(files) {}

  // An object that an optimizer keeps. What can't be read is one of the view's problems, and nothing here.
  [[nodiscard]] std::optional<TorchFile> read(const DcpObject& object, CheckpointView& view);

 private:
  [[nodiscard]] Result<ByteSource*> source(std::uint32_t file);
  [[nodiscard]] Result<TorchFile> read_at(const DcpPlace& place);  // Fails: also `full` for more than 64 MiB

  const DcpCheckpoint& checkpoint_;
  Files& files_;
  std::vector<std::unique_ptr<ByteSource>> sources_;  // of each file; empty: not opened yet
  std::unordered_set<std::string> told_;              // keys of objects that are problems
};

}  // namespace pawl::checkpoint
