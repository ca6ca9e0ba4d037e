#include "isal.h"

#include <dlfcn.h>

#include <filesystem>

namespace pawl::job::bench {

std::optional<Isal> Isal::load(const std::string& path, std::string& why) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    why = dlerror();
    return std::nullopt;
  }
  Isal isal;
  isal.init_tables_ = reinterpret_cast<InitTables>(dlsym(library, "ec_init_tables"));
  isal.encode_ = reinterpret_cast<Encode>(dlsym(library, "ec_encode_data"));
  isal.xor_ = reinterpret_cast<Xor>(dlsym(library, "xor_gen"));
  if (isal.init_tables_ == nullptr || isal.encode_ == nullptr || isal.xor_ == nullptr) {
    why = path + " is not ISA-L";
    return std::nullopt;
  }
  Dl_info found{};
  dladdr(reinterpret_cast<void*>(isal.encode_), &found);
  isal.path_ = std::filesystem::weakly_canonical(found.dli_fname).string();
  return isal;
}

Isal::Tables Isal::tables_of(std::span<const std::uint8_t> coefficients, std::size_t sources) const {
  std::vector<unsigned char> copy(coefficients.begin(), coefficients.end());
  Tables tables(32 * coefficients.size());
  init_tables_(static_cast<int>(sources), static_cast<int>(coefficients.size() / sources), copy.data(), tables.data());
  return tables;
}

void Isal::multiply(const Tables& tables, std::span<std::byte* const> sources, std::span<std::byte* const> to,
                    std::size_t size) const {
  std::vector<unsigned char*> from, into;
  for (std::byte* each : sources) from.push_back(reinterpret_cast<unsigned char*>(each));
  for (std::byte* each : to) into.push_back(reinterpret_cast<unsigned char*>(each));
  encode_(static_cast<int>(size), static_cast<int>(from.size()), static_cast<int>(into.size()),
          const_cast<unsigned char*>(tables.data()), from.data(), into.data());
}

void Isal::exclusive_or(std::span<std::byte* const> all, std::size_t size) const {
  std::vector<void*> pieces(all.begin(), all.end());
  xor_(static_cast<int>(pieces.size()), static_cast<int>(size), pieces.data());
}

}  // namespace pawl::job::bench
