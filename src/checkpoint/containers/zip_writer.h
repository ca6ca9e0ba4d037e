// A zip archive as torch.save lays it out, planned before its large members exist.
//
// Members are stored, each from a multiple of 64 bytes, under one folder named as the archive. Sizes are known
// beforehand; contents of large ones are written by somebody else, and their checksums come last: so a file is texts
// that are known (ZipLayout::file.texts) and texts that need them (file.finish). What always holds: with those texts
// and the members' bytes in place, our own reader (checkpoint/containers/zip.h), torch and unzip take the file,
// checksums proven. Zip64 where sizes or places need it; its end records always, as torch writes them. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/output/output_plan.h"

namespace pawl::checkpoint {

struct ZipMember {
  std::string name;  // in the archive's folder: "data/0"
  std::uint64_t size_bytes = 0;
  std::optional<std::string> content;  // nothing: somebody else writes `size_bytes` bytes there
};

struct ZipLayout {
  PlannedFile file;                         // without a name
  std::vector<std::uint64_t> offset_bytes;  // of each member's first byte
};

// `index` is what the file will be in OutputPlan::files, and `at` where in it the archive begins: a file may hold
// several, one after another (DCP's do). All places that come back count in the file. Fails: `full` past 2^62 bytes;
// `invalid` for more than 65535 members, or a name that is longer.
[[nodiscard]] Result<ZipLayout> lay_out_zip(std::string_view archive, const std::vector<ZipMember>& members,
                                            std::uint32_t index, std::uint64_t at = 0);

}  // namespace pawl::checkpoint
