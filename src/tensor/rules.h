// LayoutRules: a job's layout, described by patterns of names instead of tensor by tensor.
//
// The first rule that matches a tensor counts. What always holds of a layout that was made by rules: each rule was
// used, and each tensor has a rule. The resulting layout lists every tensor (tensor/enumerate.h) and no rules. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "tensor/enumerate.h"

namespace pawl {

struct NamePattern {
  enum class Kind : std::uint8_t {
    glob,   // * is any characters, dots too; ? is one
    regex,  // RE2's, which takes linear time
  };
  Kind kind = Kind::glob;
  std::string text;  // matches whole names
};

struct NamedTensor {
  std::string name;
  std::string role;
  ElementType dtype = ElementType::float32;
  Shape shape;
};

struct LayoutRule {
  NamePattern names;
  std::vector<std::string> roles = {};  // none: all
  MeshPlacement placement = {};
  std::uint32_t padded_dimension = 0;
  std::uint64_t padded_multiple = 1;  // that dimension is padded to a multiple of this: a vocabulary
  static constexpr std::uint32_t kNotFlat = ~0u;
  std::uint32_t flat = kNotFlat;  // index in LayoutRules::flat_forms: the tensor becomes a member
};

struct LayoutRules {
  std::uint32_t world = 0;
  std::vector<Mesh> meshes;
  // Without members. Tensors of each role and dtype make a group of their own, named NAME.ROLE.DTYPE, in the order in
  // which they are given.
  std::vector<FlatGroup> flat_forms;
  std::vector<LayoutRule> rules;
};

// Fails: `invalid`: naming up to five tensors that no rule matches, up to five rules that no tensor uses, a pattern
// that is none, or what check_layout says.
[[nodiscard]] Result<JobLayout> layout_from_rules(const LayoutRules& rules, const std::vector<NamedTensor>& tensors);

[[nodiscard]] bool matches_glob(std::string_view glob, std::string_view name);

// Megatron's padding: to a multiple of make_vocab_size_divisible_by x tensor-parallel size.
[[nodiscard]] std::uint64_t padded_vocabulary(std::uint64_t size, std::uint64_t divisible_by,
                                              std::uint64_t tensor_parallel);

}  // namespace pawl
