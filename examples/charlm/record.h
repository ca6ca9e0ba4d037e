// Record: what one process writes down, so that others can judge its run.
//
//   start.<pid>.json         when the process came up: start time in clock ticks, nonce
//   loss.<seat>.<pid>.jsonl  one line per finished step, on disk before the next step begins; steps that were redone
//                            stand there again
//   final.<seat>.bin, .json  every tensor after the last step, and where each lies in the file
// Hashes are 64-bit FNV-1a over the raw bytes, in hex. Times are CLOCK_MONOTONIC in nanoseconds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "outcome.h"

namespace charlm {

struct StepRecord {
  std::uint64_t step = 0;
  double loss = 0.0;  // mean over the global batch
  std::uint64_t samples_hash = 0;
  std::uint64_t updates = 0;  // optimizer updates that this process has done, redone ones included
  std::uint64_t fence_wait_ns = 0;
};

// A tensor of the run; the memory stays its owner's.
struct HeldTensor {
  std::string name;
  std::string role;
  std::string lifetime;  // stable, volatile, derived
  const void* data = nullptr;
  std::size_t size_bytes = 0;
};

struct FinalRecord {
  std::uint64_t step = 0;
  std::uint64_t samples = 0;
  std::uint64_t samples_hash = 0;
  std::uint64_t rng_hash = 0;
  std::uint64_t updates = 0;
};

class Record {
 public:
  // `folder` empty: every call below does nothing. Makes the folder if it is missing, and writes start.<pid>.json.
  Outcome begin(const std::string& folder);
  Outcome write_step(std::uint32_t seat, const StepRecord& step);
  // Both files appear whole or not at all.
  Outcome write_final(std::uint32_t seat, const FinalRecord& final, const std::vector<HeldTensor>& tensors);

 private:
  std::string folder_;
  std::string process_;  // "pid":..,"nonce":".." as it stands in every line
  int pid_ = 0;
};

}  // namespace charlm
