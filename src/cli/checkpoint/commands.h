// The commands that look into checkpoints of any format: inspect, convert, diff, verify, ls, prune. One file each.
//
// They need no job and no daemon: what they call is src/formats (open_checkpoint) and src/reshape (plan, execute). Exit
// codes as of all commands (cli/exit_codes.h): 1 also where diff finds a difference, 4 where something of a checkpoint is
// missing, damaged or left out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/formats/read_options.h"
#include "checkpoint/names/families.h"

namespace pawl::checkpoint {

struct InspectOptions {
  std::string path;
  ReadOptions read;
  bool all = false;              // every tensor, object and note; else the first ones
  std::string layout;            // "tp=2,pp=2": show what each rank would hold (layout_report.h) instead
  std::optional<Family> family;  // of `layout`; detected from the names if not given
  bool json = false;
};
int command_inspect(const InspectOptions& options);

struct ConvertOptions {
  enum class To : std::uint8_t { safetensors, huggingface, dcp, universal, atomic, pawl };
  std::string source, target;
  To to = To::safetensors;
  ReadOptions read;
  std::vector<std::string> roles;  // empty: all; of huggingface: weight and buffer
  std::string dtype;               // torch's name; empty: as stored
  bool keep_names = false;         // huggingface: no renaming, even where the family is recognised
  FamilySettings family;
  std::string config_file;  // a config.json that tells what of the family is missing
  std::uint64_t memory_bytes = std::uint64_t{1} << 30;
  std::uint32_t workers = 1;  // processes that write it together
  std::optional<std::uint32_t>
      worker;                       // this one is that of them, and somebody starts the others; else they are forked
  std::string job;                  // of such processes: whose they are
  std::uint64_t wait_ms = 600'000;  // likewise: how long one is waited for that says nothing
  std::optional<std::uint32_t> trusted_replica;
  std::uint64_t file_bytes_max = 5'000'000'000;  // huggingface, dcp
  bool flat_names = false;                       // dcp: weights under their own names, not below "model"
  bool despite_problems = false;  // tensors that are whole go out although something else is missing or damaged
  bool skip_unsupported = false;  // the others go out although some have no form in the target
  bool overwrite = false;
  bool dry_run = false;
  bool json = false;
};
int command_convert(const ConvertOptions& options);

struct DiffOptions {
  std::string a, b;
  ReadOptions read;  // of both
  std::vector<std::string> roles;
  double tolerance = 0;  // absolute
  std::uint64_t memory_bytes = std::uint64_t{1} << 30;
  bool skip_unsupported = false;  // the others are compared although some can't be read
  bool all = false;
  bool json = false;
};
int command_diff(const DiffOptions& options);

struct LsOptions {
  std::string path;  // a folder with checkpoints, or one of them
  bool json = false;
};
int command_ls(const LsOptions& options);

struct PruneOptions {
  std::string path;  // a folder with checkpoints
  std::uint64_t keep_last = 0;
  std::uint64_t keep_every = 0;
  bool left_behind = false;  // those of other histories than the last one go as well
  bool damaged = false;      // these go as well, as long as one is sound
  bool dry_run = false;
  bool json = false;
};
int command_prune(const PruneOptions& options);

struct VerifyOptions {
  std::string path;
  ReadOptions read;
  std::uint64_t memory_bytes = std::uint64_t{1} << 30;
  bool json = false;
};
int command_verify(const VerifyOptions& options);

}  // namespace pawl::checkpoint
