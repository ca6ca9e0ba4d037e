// DcpDataFiles: the files that DCP metadata name, whether they are there, and what was lost with those that are not.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "checkpoint/formats/dcp/dcp.h"
#include "env/files.h"

namespace pawl::checkpoint {

// A file that metadata names, and what is wrong with it.
struct DcpDataFile {
  std::uint32_t number = 0;  // in DcpCheckpoint::files
  bool is_missing = false;
  std::size_t lost = 0;                     // items that lie in it, or beyond its end
  std::vector<std::string> lost_keys = {};  // the first of them

  void lose(std::string_view key);
};

class DcpDataFiles {
 public:
  DcpDataFiles(std::string folder, Files& files) : folder_(std::move(folder)), files_(files) {}

  // The file of that name; a new one becomes the next of `out`. Stays where it is. Fails: `corrupt` for a name that is
  // none of a file in the folder; `io`.
  [[nodiscard]] Result<DcpDataFile*> named(std::string_view name, DcpCheckpoint& out);
  // What is missing or too short is a problem; what no place names is of an older save, or of something else.
  // `names`: all in the folder.
  void note(const std::vector<std::string>& names, DcpCheckpoint& out) const;

 private:
  std::string folder_;
  Files& files_;
  std::map<std::string, DcpDataFile, std::less<>> found_;
};

}  // namespace pawl::checkpoint
