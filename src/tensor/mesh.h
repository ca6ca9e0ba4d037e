// Mesh: a grid of ranks with named axes. Several may lie over the same ranks (dense and expert meshes).
//
// Ranks are counted row-major: the last axis runs fastest. The sizes multiply to the job's world. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace pawl {

inline constexpr std::size_t kNameBytesMax = 512;
inline constexpr std::size_t kAxesMax = 8;

// Names of meshes, axes, tensors and roles: 1..512 bytes, without control characters (no newline, no tab). UTF-8
// passes.
[[nodiscard]] bool is_name(std::string_view name);

struct Mesh {
  struct Axis {
    std::string name;
    std::uint64_t size = 1;
    bool operator==(const Axis&) const = default;
  };
  std::string name;
  std::vector<Axis> axes;  // at least one
  bool operator==(const Mesh&) const = default;
};

// Fails: `invalid` unless names are names, axes differ by name, and sizes multiply to `world`.
[[nodiscard]] Status check_mesh(const Mesh& mesh, std::uint32_t world);
// Where `rank` sits, one index an axis. `mesh` was checked and rank < world.
[[nodiscard]] std::vector<std::uint64_t> coordinates_of(const Mesh& mesh, std::uint32_t rank);
[[nodiscard]] std::uint32_t rank_at(const Mesh& mesh, const std::vector<std::uint64_t>& coordinates);

}  // namespace pawl
