// ISA-L, Intel's library of erasure codes, as a peer: loaded while the bench runs, so nothing of pawl depends on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pawl::job::bench {

class Isal {
 public:
  // A path, or a name that the loader finds. nullopt: there is none, and `why` says so.
  static std::optional<Isal> load(const std::string& path, std::string& why);
  [[nodiscard]] const std::string& path() const { return path_; }

  using Tables = std::vector<unsigned char>;
  [[nodiscard]] Tables tables_of(std::span<const std::uint8_t> coefficients, std::size_t sources) const;
  void multiply(const Tables& tables, std::span<std::byte* const> sources, std::span<std::byte* const> to,
                std::size_t size) const;
  // The last one is the sum of the others.
  void exclusive_or(std::span<std::byte* const> all, std::size_t size) const;

 private:
  using InitTables = void (*)(int sources, int rows, unsigned char* coefficients, unsigned char* tables);
  using Encode = void (*)(int size, int sources, int rows, unsigned char* tables, unsigned char** from,
                          unsigned char** to);
  using Xor = int (*)(int count, int size, void** all);
  std::string path_;
  InitTables init_tables_ = nullptr;
  Encode encode_ = nullptr;
  Xor xor_ = nullptr;
};

}  // namespace pawl::job::bench
