// The C border of pawl_checkpoint_store_*: strings and arrays in and out. The work is done in
// checkpoint/store/store_folder.h.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/c_struct.h"
#include "base/first_few.h"
#include "base/text.h"
#include "checkpoint/library/options.h"
#include "checkpoint/library/status.h"
#include "checkpoint/library/watch.h"
#include "checkpoint/store/store_folder.h"
#include "pawl/checkpoint.h"

struct pawl_checkpoint_store {
  explicit pawl_checkpoint_store(pawl::checkpoint::StoreFolder begun) : folder(std::move(begun)) {}
  pawl::checkpoint::StoreFolder folder;
};

namespace {

using pawl::Code;
using pawl::Error;
using pawl::Result;
using pawl::Status;
using pawl::text;

thread_local std::string last_share;

// What of a piece can be wrong before its numbers mean anything.
Result<pawl::checkpoint::StorePiece> piece_of(const pawl_checkpoint_store_piece& given) {
  if (given.name == nullptr || given.dtype == nullptr) return Error{Code::invalid, "a piece without name or dtype"};
  const std::optional<pawl::ElementType> type = pawl::element_type_named(given.dtype);
  if (!type) return Error{Code::invalid, text(given.name, ": no type is called \"", given.dtype, "\"")};
  const std::uint32_t count = given.dimension_count;
  if (count > pawl::kDimensionsMax || (count != 0 && given.shape == nullptr))
    return Error{Code::invalid, text(given.name, ": ", count, " dimensions, or no shape")};
  pawl::checkpoint::StorePiece piece;
  piece.name = given.name;
  if (given.role != nullptr) piece.role = given.role;
  piece.type = *type;
  if (count != 0) piece.shape.assign(given.shape, given.shape + count);
  piece.box = pawl::whole_box(piece.shape);
  for (std::uint32_t d = 0; d < count; ++d) {
    if (given.begin != nullptr) piece.box.begin[d] = given.begin[d];
    const std::uint64_t left = piece.shape[d] - std::min(piece.shape[d], piece.box.begin[d]);
    piece.box.size[d] = given.size != nullptr ? given.size[d] : left;
  }
  piece.memory = static_cast<const std::byte*>(given.memory);
  const pawl::PerDimension dense = pawl::dense_stride(piece.box);
  for (std::uint32_t d = 0; d < count; ++d)
    piece.stride_bytes[d] =
        given.stride_bytes != nullptr ? given.stride_bytes[d] : dense[d] * pawl::size_bits(*type) / 8;
  return piece;
}

Status write_part(const char* folder, std::uint32_t part, const pawl_checkpoint_store_piece* given, std::size_t count,
                  const pawl_checkpoint_access_options* options_given, const char** share) {
  if (folder == nullptr || share == nullptr) return Error{Code::invalid, "no folder, or nowhere to put the share"};
  if (given == nullptr && count != 0) return Error{Code::invalid, "the pieces are NULL"};
  PAWL_TRY(pawl::check_input_structs(given, count, pawl::checkpoint::kStorePieceStruct));
  pawl::checkpoint::StorePartOptions writing;
  PAWL_ASSIGN(const pawl::checkpoint::AccessOptions options,
              pawl::checkpoint::access_options_of(options_given, {writing.execution, {}}));
  writing.execution = options.execute;
  std::vector<pawl::checkpoint::StorePiece> pieces;
  pawl::FirstFew faults;
  for (std::size_t i = 0; i < count; ++i) {
    Result<pawl::checkpoint::StorePiece> piece = piece_of(pawl::read_struct_at<pawl_checkpoint_store_piece>(given, i));
    if (piece)
      pieces.push_back(std::move(*piece));
    else
      faults.add(piece.error().what);
  }
  if (faults.any()) return Error{Code::invalid, faults.sentence()};
  std::uint64_t bytes = 0;
  for (const pawl::checkpoint::StorePiece& piece : pieces)
    bytes += pawl::volume(piece.box) * pawl::size_bits(piece.type) / 8;
  pawl::checkpoint::watch_execution(options.watch, writing.execution, bytes);
  PAWL_ASSIGN(last_share, pawl::checkpoint::write_store_part(folder, part, pieces, writing));
  *share = last_share.c_str();
  return {};
}

Status publish(pawl_checkpoint_store& store, const char* const* shares, std::size_t share_count, const char* values,
               const char* const* aliases, std::size_t alias_count) {
  if ((shares == nullptr && share_count != 0) || (aliases == nullptr && alias_count != 0))
    return Error{Code::invalid, "shares or aliases are NULL"};
  for (std::size_t i = 0; i < share_count; ++i)
    if (shares[i] == nullptr) return Error{Code::invalid, text("share ", i, " is NULL")};
  pawl::checkpoint::StorePublishOptions options;
  if (values != nullptr) options.values = values;
  for (std::size_t i = 0; i < alias_count; ++i) {
    const char* const alias = aliases[2 * i];
    const char* const name = aliases[2 * i + 1];
    if (alias == nullptr || name == nullptr) return Error{Code::invalid, text("alias ", i, " is NULL")};
    options.aliases.emplace_back(alias, name);
  }
  return store.folder.publish(std::vector<std::string>(shares, shares + share_count), options);
}

Result<std::unique_ptr<pawl_checkpoint_store>> begin(const char* path, const pawl_checkpoint_store_options* given) {
  if (path == nullptr || *path == '\0') return Error{Code::invalid, "no path"};
  PAWL_ASSIGN(const pawl::checkpoint::StoreOptions options, pawl::checkpoint::store_options_of(given));
  PAWL_ASSIGN(pawl::checkpoint::StoreFolder folder, pawl::checkpoint::StoreFolder::begin(path, options));
  return std::make_unique<pawl_checkpoint_store>(std::move(folder));
}

}  // namespace

pawl_status pawl_checkpoint_store_begin(const char* path, const pawl_checkpoint_store_options* options,
                                        pawl_checkpoint_store** store) {
  if (store == nullptr) return pawl::checkpoint::failed({Code::invalid, "there is nowhere to put the handle"});
  *store = nullptr;
  Result<std::unique_ptr<pawl_checkpoint_store>> begun = begin(path, options);
  if (!begun) return pawl::checkpoint::failed(std::move(begun).error());
  *store = begun->release();
  return PAWL_OK;
}

const char* pawl_checkpoint_store_folder(const pawl_checkpoint_store* store) {
  return store == nullptr ? "" : store->folder.folder().c_str();
}

pawl_status pawl_checkpoint_store_write_part(const char* folder, uint32_t part,
                                             const pawl_checkpoint_store_piece* pieces, size_t count,
                                             const pawl_checkpoint_access_options* options, const char** share) {
  return pawl::checkpoint::answer(write_part(folder, part, pieces, count, options, share));
}

pawl_status pawl_checkpoint_store_publish(pawl_checkpoint_store* store, const char* const* shares, size_t share_count,
                                          const char* values, const char* const* aliases, size_t alias_count) {
  if (store == nullptr) return pawl::checkpoint::failed({Code::invalid, "the store is NULL"});
  return pawl::checkpoint::answer(publish(*store, shares, share_count, values, aliases, alias_count));
}

void pawl_checkpoint_store_end(pawl_checkpoint_store* store) {
  delete store;
}
