// For tests of writers: what Python makes of the bytes that they write.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <string>

namespace pawl::checkpoint {

// What `program`, without single quotes, prints of a file of these bytes, which is sys.argv[1]; no newline at the end.
inline std::string python_says(const std::string& bytes, const std::string& program) {
  char path[] = "/tmp/pawl-written-XXXXXX";
  const int file = mkstemp(path);
  EXPECT_EQ(write(file, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  close(file);
  const std::string command = std::string(PAWL_PYTHON3) + " -c '" + program + "' " + path + " 2>&1";
  std::string out;
  FILE* pipe = popen(command.c_str(), "r");
  char buffer[4096];
  while (const std::size_t count = fread(buffer, 1, sizeof buffer, pipe)) out.append(buffer, count);
  pclose(pipe);
  unlink(path);
  return out.substr(0, out.find_last_not_of('\n') + 1);
}

}  // namespace pawl::checkpoint
