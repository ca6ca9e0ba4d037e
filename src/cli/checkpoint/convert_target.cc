#include "cli/checkpoint/convert_target.h"

#include <sys/stat.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "base/text.h"
#include "checkpoint/output/partial_output.h"
#include "env/files.h"

namespace pawl::checkpoint {
namespace {

// Without links, and without ways up. Nothing where nothing is there.
std::optional<std::string> true_path(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> found(::realpath(path.c_str(), nullptr), &std::free);
  if (!found) return std::nullopt;
  return std::string(found.get());
}

bool lies_in(const std::string& path, const std::string& folder) {
  return path == folder || path.starts_with(folder + "/");
}

// Equal for all names of one file.
std::optional<std::pair<dev_t, ino_t>> identity(const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return std::nullopt;
  return std::pair(found.st_dev, found.st_ino);
}

bool is_folder(const std::string& path) {
  struct stat found {};
  return ::stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

}  // namespace

Status check_target_is_no_source(const CheckpointView& view, const std::string& source, const std::string& target) {
  std::set<std::string> sources = {source};
  for (const StoredFile& file : view.files)
    if (file.codec != StoredFile::Codec::content) sources.insert(file.path);
  for (const std::string& written : {target, partial_folder(target)}) {
    const std::optional<std::string> place = true_path(written);
    if (!place) continue;
    for (const std::string& file : sources) {
      const std::optional<std::string> there = true_path(file);
      if (!there) continue;
      // A folder's own small files are part of it, too.
      const bool is_of_folder = !is_folder(*place) && parent_path(*place) == *there;
      if (lies_in(*there, *place) || is_of_folder || identity(*there) == identity(*place))
        return Error{Code::invalid, text(target, " is part of the source or holds it (", file,
                                         "): writing there would replace what is read; choose another target")};
    }
  }
  return {};
}

}  // namespace pawl::checkpoint
