// PlanCache: the plans that were made last, by the digests of both sides: a re-plan between the same two is a look-up.
//
// What always holds: a plan is found only under all that it was made from: source, target, rank and options. Digests
// tell layouts apart by accident, not against an attacker; a source's living ranks are part of it (digest_of below).
// Not thread-safe. Does not plan (checkpoint/reshape/plan.h).
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "base/result.h"
#include "checkpoint/reshape/plan.h"
#include "checkpoint/view/checkpoint_view.h"

namespace pawl::checkpoint {

// Of all that a plan depends on: tensors, pieces and files, not the files' bytes.
[[nodiscard]] std::uint64_t digest_of(const CheckpointView& view);
// Of a layout's ranks as a source. `is_alive` as for source_of.
[[nodiscard]] std::uint64_t digest_of(const JobLayout& layout, const std::vector<bool>& is_alive);

class PlanCache {
 public:
  using Copies = std::shared_ptr<const std::vector<PlannedCopy>>;
  struct Key {
    std::uint64_t source = 0;  // digests
    std::uint64_t target = 0;
    std::uint32_t rank = 0;
    ReshapeOptions options = {};
  };

  // Keeps at most so many copies (of about 500 bytes each), the plans used last; at least one plan.
  explicit PlanCache(std::size_t copies_max = 200'000) : copies_max_(copies_max) {}

  // What `make` gives plan_rank, kept. `make` is called only where the plan is not there; its errors are not kept.
  [[nodiscard]] Result<Copies> plan_rank(const Key& key, const std::function<Result<ReshapePlan>()>& make);

 private:
  using Digest = std::tuple<std::uint64_t, std::uint64_t, std::uint32_t, bool, bool>;
  struct Entry {
    Digest digest;
    Copies copies;
  };

  std::size_t copies_max_;
  std::size_t copies_ = 0;
  std::list<Entry> entries_;  // last used first
  std::map<Digest, std::list<Entry>::iterator> by_digest_;
};

}  // namespace pawl::checkpoint
