// LayoutReport: what each rank of a job would hold of a checkpoint's tensors, for `pawl inspect --layout`. Pure.
//
// The layout is a short one (tensor/short_layout.h): "tp=2,pp=2,dp=4,zero=1". Bytes are those of the checkpoint's own
// element types and roles, with the padding that the layout adds (vocabularies, flat groups of ZeRO).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json_access.h"
#include "base/result.h"
#include "checkpoint/names/families.h"
#include "checkpoint/view/checkpoint_view.h"
#include "tensor/mesh.h"

namespace pawl::checkpoint {

struct LayoutReport {
  struct RankBytes {
    std::vector<std::uint64_t> coordinates;  // one of each axis of meshes[0]
    std::vector<std::uint64_t> bytes;        // one of each role
  };
  std::string layout;  // as it was given
  Family family = Family::gpt;
  std::vector<Mesh> meshes;
  std::vector<std::string> roles;
  std::vector<RankBytes> ranks;
  std::vector<std::string> left_out;  // sentences: tensors that this layout can't place
};

// `family`: if not given, it is detected from the names. Fails: `invalid` (the layout's text, more than 16384 ranks, a
// layout that doesn't fit the model, an unknown family); `not_found` (no tensors).
[[nodiscard]] Result<LayoutReport> report_layout(const CheckpointView& view, const std::string& layout,
                                                 std::optional<Family> family);

// `shown_max`: so many ranks and tensors; nothing: all.
[[nodiscard]] std::string layout_text(const LayoutReport& report, std::optional<std::size_t> shown_max);
[[nodiscard]] json layout_json(const LayoutReport& report);

}  // namespace pawl::checkpoint
