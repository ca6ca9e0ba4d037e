// Options of pawl/checkpoint.h: structs of the C interface in, ours out.
//
// Pure. nullptr stands for the defaults. Fails: `invalid`, naming the struct and the field.
#pragma once

#include <cstdint>
#include <string>

#include "base/c_struct.h"
#include "base/result.h"
#include "checkpoint/formats/read_options.h"
#include "checkpoint/names/families.h"
#include "checkpoint/reshape/execute.h"
#include "checkpoint/reshape/file_source.h"
#include "checkpoint/store/division.h"
#include "checkpoint/store/store_folder.h"
#include "pawl/checkpoint.h"

namespace pawl::checkpoint {

// What is known of the structs of pawl/checkpoint.h.
inline constexpr CStruct kRequestStruct{"pawl_checkpoint_request", sizeof(pawl_checkpoint_request),
                                        sizeof(pawl_checkpoint_request)};
inline constexpr CStruct kReportStruct{"pawl_checkpoint_report", sizeof(pawl_checkpoint_report),
                                       sizeof(pawl_checkpoint_report)};
inline constexpr CStruct kStorePieceStruct{"pawl_checkpoint_store_piece", sizeof(pawl_checkpoint_store_piece),
                                           sizeof(pawl_checkpoint_store_piece)};
inline constexpr CStruct kHeldPieceStruct{"pawl_checkpoint_held_piece", sizeof(pawl_checkpoint_held_piece),
                                          sizeof(pawl_checkpoint_held_piece)};

enum class Names : std::uint8_t { stored, huggingface, megatron };

struct ViewOptions {
  ReadOptions read;
  Names names = Names::stored;
  FamilySettings family;
};

struct AccessOptions {
  ExecuteOptions execute;
  FileSourceOptions source;
  bool prove = false;                      // of reads: shares of checksums are kept
  std::string seen = {};                   // of prove: such shares
  pawl_checkpoint_watch* watch = nullptr;  // the caller's, during the call
};

[[nodiscard]] Result<ViewOptions> view_options_of(const pawl_checkpoint_open_options* given);
// `defaults`: what the caller's zeros mean.
[[nodiscard]] Result<AccessOptions> access_options_of(const pawl_checkpoint_access_options* given,
                                                      AccessOptions defaults = {});
[[nodiscard]] Result<StoreOptions> store_options_of(const pawl_checkpoint_store_options* given);
[[nodiscard]] Result<DivisionOptions> division_options_of(const pawl_checkpoint_division_options* given);

}  // namespace pawl::checkpoint
