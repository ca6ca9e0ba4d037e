#include "checkpoint/formats/proven_checkpoint.h"

#include <sys/stat.h>

#include <cerrno>
#include <unordered_map>
#include <unordered_set>

#include "base/text.h"
#include "checkpoint/formats/huggingface/safetensors_writer.h"
#include "checkpoint/formats/open_checkpoint.h"
#include "checkpoint/view/pieces.h"
#include "env/files.h"

namespace pawl::checkpoint {
namespace {

// Their numbers mean nothing without scale and zero point, which no reader has.
void take_out_quantised(CheckpointView& view) {
  std::unordered_set<std::string> taken;
  std::erase_if(view.tensors, [&](const StoredTensor& tensor) {
    const std::string_view type = name_of(tensor.type);
    if (!type.starts_with("qu") && !type.starts_with("qi")) return false;
    view.unsupported.push_back(text("tensor ", tensor.name, " (", tensor.role, ") is quantised (", type,
                                    "): its scale and zero point are not read; dequantise it before it is saved"));
    taken.insert(tensor.name);
    return true;
  });
  std::erase_if(view.aliases, [&](const auto& alias) { return taken.contains(alias.second); });
}

// Without opening it where that isn't needed: a person may see a file and not be let in.
Result<std::uint64_t> size_of(const std::string& path) {
  if (is_address(path)) return file_size(path);
  struct stat found {};
  if (::stat(path.c_str(), &found) == 0) return static_cast<std::uint64_t>(found.st_size);
  const int why = errno;
  Error error = system_error(path, why);
  if (why == ENOENT) error.code = Code::not_found;
  return error;
}

Result<std::uint64_t> stored_size(const std::string& path) {
  Result<std::uint64_t> size = size_of(path);
  if (size || size.error().code != Code::not_found) return size;
  return Error{Code::corrupt, text(path,
                                   ": this file of the checkpoint is missing; copy the checkpoint again, or take "
                                   "another one")};
}

}  // namespace

Result<std::vector<std::uint64_t>> file_sizes_of(const CheckpointView& view) {
  std::vector<std::uint64_t> sizes;
  std::unordered_map<std::string, std::uint64_t> known;
  for (const StoredFile& file : view.files) {
    if (file.codec == StoredFile::Codec::content) {
      sizes.push_back(file.content.size());
      continue;
    }
    const auto [at, is_new] = known.try_emplace(file.path, 0);
    if (is_new) {
      PAWL_ASSIGN(at->second, stored_size(file.path));
    }
    sizes.push_back(at->second);
  }
  return sizes;
}

Result<CheckpointView> open_proven(const std::string& path, const ReadOptions& options) {
  Result<CheckpointView> view = open_checkpoint(path, options);
  if (!view) return view;
  PAWL_TRY(take_roles_from_keys(*view));
  PAWL_TRY(take_true_types(*view));
  take_out_quantised(*view);
  PAWL_ASSIGN(const std::vector<std::uint64_t> sizes, file_sizes_of(*view));
  if (Status proven = check_view(*view, sizes); !proven) return std::move(proven).error().within(path);
  return view;
}

}  // namespace pawl::checkpoint
