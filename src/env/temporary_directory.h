// A directory of a test's own, gone with it. For tests only: what goes wrong here fails the test that runs.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "env/files.h"

namespace pawl {

class TemporaryDirectory {
 public:
  // `below`: "/tmp" where a socket lies in it, since only a short path has room in a socket's address.
  explicit TemporaryDirectory(const std::string& below = std::filesystem::temp_directory_path())
      : path_(join_path(below, "pawl-test-XXXXXX")) {
    EXPECT_NE(::mkdtemp(path_.data()), nullptr) << path_;
  }
  ~TemporaryDirectory() {
    const Status removed = remove_tree(parent_path(path_), path_);
    EXPECT_TRUE(removed) << removed.error().what;
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string path(std::string_view name) const { return join_path(path_, name); }

 private:
  std::string path_;
};

}  // namespace pawl
