// FamilyRules: which module of Megatron-Core is which one of Hugging Face, for each family of models.
//
// A table for each family: to teach pawl a new one, add a table. What always holds: no module stands twice in a table.
// Pure. How tensors change their form is families.cc's.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "checkpoint/names/families.h"

namespace pawl::checkpoint {

// How the tensors of a module differ between the two.
enum class ModuleForm : std::uint8_t {
  same,
  qkv_of_heads,    // the same where each head is a group of its own
  transposed,      // matrices are; biases are the same
  qkv,             // query, key and value of each group, joined: three tensors
  qkv_transposed,  // the same; all queries, all keys, all values in one tensor
  halves,          // two tensors, one after the other
};

// A module under both names, without the weight or bias at the end. L is a layer's number, E an expert's.
struct FamilyRule {
  std::string_view megatron;
  std::array<std::string_view, 3> huggingface;  // several only of qkv and halves; empty ones at the end
  ModuleForm form = ModuleForm::same;
};

[[nodiscard]] std::vector<FamilyRule> rules_of(Family family);

}  // namespace pawl::checkpoint
