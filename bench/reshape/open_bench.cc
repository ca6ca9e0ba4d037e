// open_bench WHAT PATH [ROUNDS]: milliseconds to open a checkpoint of many tensors, one number a line. For metadata.py.
//
// WHAT: metadata (of a DCP folder: which boxes lie where), dcp (the same, with each item located and named),
// safetensors.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "checkpoint/containers/safetensors.h"
#include "checkpoint/formats/dcp/dcp.h"

namespace {

// How many tensors there are; nothing on an error, which is printed.
template <class Opened>
std::size_t count_of(const pawl::Result<Opened>& opened) {
  if (opened) return opened.value().tensors.size();
  std::fprintf(stderr, "%s\n", opened.error().what.c_str());
  return 0;
}

std::size_t open(std::string_view what, const std::string& path) {
  if (what == "metadata") return count_of(pawl::checkpoint::open_dcp(path));
  if (what == "dcp") return count_of(pawl::checkpoint::view_dcp(path));
  return count_of(pawl::checkpoint::view_safetensors(path));
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) {
    std::fprintf(stderr, "open_bench metadata|dcp|safetensors PATH [ROUNDS]\n");
    return 2;
  }
  const int rounds = count > 3 ? std::atoi(arguments[3]) : 1;
  for (int round = 0; round < rounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    if (open(arguments[1], arguments[2]) == 0) return 1;
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    std::printf("%.3f\n", took.count());
  }
  return 0;
}
