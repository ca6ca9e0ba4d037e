#include "tensor/mesh.h"

#include <algorithm>

#include "base/text.h"

namespace pawl {

bool is_name(std::string_view name) {
  return !name.empty() && name.size() <= kNameBytesMax && std::ranges::all_of(name, [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte >= 0x20 && byte != 0x7F;
  });
}

Status check_mesh(const Mesh& mesh, std::uint32_t world) {
  if (!is_name(mesh.name)) return Error{Code::invalid, "a mesh's name is empty, too long or not printable"};
  if (mesh.axes.empty() || mesh.axes.size() > kAxesMax) {
    return Error{Code::invalid, text("mesh ", mesh.name, " has ", mesh.axes.size(), " axes; must be 1..8")};
  }
  std::uint64_t product = 1;
  for (std::size_t i = 0; i < mesh.axes.size(); ++i) {
    const Mesh::Axis& axis = mesh.axes[i];
    if (!is_name(axis.name)) return Error{Code::invalid, text("mesh ", mesh.name, ": axis ", i, " has no proper name")};
    for (std::size_t j = 0; j < i; ++j) {
      if (mesh.axes[j].name == axis.name) {
        return Error{Code::invalid, text("mesh ", mesh.name, ": two axes are named ", axis.name)};
      }
    }
    if (__builtin_mul_overflow(product, axis.size, &product)) product = 0;
  }
  if (world == 0 || product != world) {
    return Error{Code::invalid,
                 text("mesh ", mesh.name, ": the sizes of its axes do not multiply to the world of ", world)};
  }
  return {};
}

std::vector<std::uint64_t> coordinates_of(const Mesh& mesh, std::uint32_t rank) {
  std::vector<std::uint64_t> coordinates(mesh.axes.size());
  std::uint64_t rest = rank;
  for (std::size_t i = mesh.axes.size(); i-- > 0;) {
    coordinates[i] = rest % mesh.axes[i].size;
    rest /= mesh.axes[i].size;
  }
  return coordinates;
}

std::uint32_t rank_at(const Mesh& mesh, const std::vector<std::uint64_t>& coordinates) {
  std::uint64_t rank = 0;
  for (std::size_t i = 0; i < mesh.axes.size(); ++i) rank = rank * mesh.axes[i].size + coordinates[i];
  return static_cast<std::uint32_t>(rank);
}

}  // namespace pawl
