// Options of pawl/checkpoint.h: JSON text in, structs out.
//
// Pure. Fails: `invalid`, naming the key: it is not known, or its value is not of its kind.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "checkpoint/formats/read_options.h"
#include "checkpoint/names/families.h"
#include "checkpoint/reshape/execute.h"
#include "checkpoint/reshape/file_source.h"
#include "checkpoint/store/store_folder.h"

namespace pawl::checkpoint {

enum class Names : std::uint8_t { stored, huggingface, megatron };

struct ViewOptions {
  ReadOptions read;
  Names names = Names::stored;
  FamilySettings family;
};

struct AccessOptions {
  ExecuteOptions execute;
  FileSourceOptions source;
  bool prove = false;     // of reads: shares of checksums are kept
  std::string seen = {};  // of prove: such shares
};

// nullptr and "" are no options.
[[nodiscard]] Result<ViewOptions> parse_view_options(const char* json);
[[nodiscard]] Result<AccessOptions> parse_access_options(const char* json, AccessOptions options = {});
[[nodiscard]] Result<StoreOptions> parse_store_options(const char* json);

}  // namespace pawl::checkpoint
