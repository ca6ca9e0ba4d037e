// The fuzzers without libFuzzer, for any compiler: each seed as it is, then damaged in many ways. The smoke test that
// `make test` runs under the address sanitizer; what searches for days is the preset `fuzz`.
//
//   <fuzzer> FOLDER [RUNS]    exits with 0, or as the sanitizer or abort() wants it; the damage is reproducible
//
// One that takes longer than kSecondsMax ends early, and says how far it came: the machine may be anybody's.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size);
// Of the fuzzers of whole folders (folder_input.h): one that refuses every sound seed tries nothing.
extern "C" __attribute__((weak)) std::uint64_t FuzzerAccepted();

namespace {

using Input = std::vector<unsigned char>;
using Random = std::mt19937_64;
constexpr std::uint64_t kRuns = 10'000;
constexpr double kSecondsMax = 4;
constexpr std::size_t kLengthMax = 64 << 10;  // of a damaged seed: longer ones are tried as they are

std::vector<Input> read_seeds(const char* folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) paths.push_back(entry.path());
  std::ranges::sort(paths);
  std::vector<Input> seeds;
  for (const std::filesystem::path& path : paths) {
    std::ifstream in(path, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return seeds;
}

std::size_t below(Random& random, std::size_t limit) {
  return limit == 0 ? 0 : random() % limit;
}

// One of the ways in which a file is damaged, or made to lie.
void damage(Random& random, Input& input) {
  constexpr std::uint64_t kNumbers[] = {0,      1,      0x7F,       0x80,       0xFF,
                                        0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, ~std::uint64_t{0}};
  const std::size_t at = below(random, input.size());
  switch (random() % 7) {
    case 0:
      if (!input.empty()) input[at] ^= static_cast<unsigned char>(1 << random() % 8);
      return;
    case 1:
      if (!input.empty()) input[at] = static_cast<unsigned char>(random());
      return;
    case 2:
      input.resize(at);
      return;
    case 3:
      input.insert(input.begin() + static_cast<std::ptrdiff_t>(at), 1 + below(random, 8),
                   static_cast<unsigned char>(random()));
      return;
    case 4:
      input.erase(input.begin() + static_cast<std::ptrdiff_t>(at),
                  input.begin() + static_cast<std::ptrdiff_t>(std::min(input.size(), at + below(random, 16))));
      return;
    case 5: {  // a size or an offset
      const std::uint64_t number = kNumbers[random() % std::size(kNumbers)];
      const std::size_t width = std::size_t{1} << random() % 4;
      for (std::size_t i = 0; i < width && at + i < input.size(); ++i)
        input[at + i] = static_cast<unsigned char>(number >> (8 * i));
      return;
    }
    default: {  // a part of it elsewhere again
      const std::size_t from = below(random, input.size());
      const std::size_t size = std::min({input.size() - from, input.size() - at, 1 + below(random, 64)});
      std::copy_n(Input(input.begin() + static_cast<std::ptrdiff_t>(from),
                        input.begin() + static_cast<std::ptrdiff_t>(from + size))
                      .begin(),
                  size, input.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
}

void run(const Input& input) {
  // Exactly as large as the input: a byte read beyond it is found.
  const std::unique_ptr<unsigned char[]> exact(new unsigned char[input.size()]);
  std::ranges::copy(input, exact.get());
  (void)LLVMFuzzerTestOneInput(exact.get(), input.size());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s FOLDER [RUNS]\n", argv[0]);
    return 2;
  }
  const std::uint64_t runs = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : kRuns;
  std::vector<Input> seeds = read_seeds(argv[1]);
  run({});
  for (const Input& seed : seeds) run(seed);
  if (FuzzerAccepted != nullptr && FuzzerAccepted() == 0) {
    std::fprintf(stderr, "none of %zu seeds was read to the end: this fuzzer reaches nothing\n", seeds.size());
    return 1;
  }
  if (seeds.empty()) seeds.emplace_back(64, static_cast<unsigned char>(0));
  const auto begin = std::chrono::steady_clock::now();
  Random random(1);
  std::uint64_t done = 0;
  for (; done < runs; ++done) {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    if (passed.count() > kSecondsMax) break;
    Input input = seeds[done % seeds.size()];
    if (input.size() > kLengthMax) input.resize(kLengthMax);
    for (std::uint64_t damages = 1 + random() % 4; damages > 0; --damages) damage(random, input);
    run(input);
  }
  std::printf("%zu seeds, and %llu damaged ones of %llu\n", seeds.size(), static_cast<unsigned long long>(done),
              static_cast<unsigned long long>(runs));
  return 0;
}
