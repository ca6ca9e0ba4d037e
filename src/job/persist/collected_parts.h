// CollectedParts: what the seats of a checkpoint have written beside their data files, and what follows from it. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/store/store_folder.h"
#include "job/persist/seat_share.h"

namespace pawl::job {

struct CollectedParts {
  std::vector<std::string> shares;  // by seat
  std::vector<SeatBeside> besides;
  std::string values;  // the lowest seat's that has any
};

// With which they are published. Fails: `corrupt`; `invalid` naming up to five tensors of which seats hold different values, though
// they are one tensor.
[[nodiscard]] Result<checkpoint::StorePublishOptions> options_of(const CollectedParts& parts);

// Of a new checkpoint, with an id of its own, after that one, which says `last` of itself; `is_there`: a step that lies in the same folder. Of one that
// says nothing nothing is known of what was before it, either.
[[nodiscard]] checkpoint::StoreIdentity identity_after(std::uint64_t step, const checkpoint::StoreIdentity& last,
                                                       const std::function<bool(std::uint64_t step)>& is_there);
[[nodiscard]] checkpoint::StoreIdentity new_identity();  // with nothing before it
[[nodiscard]] std::uint64_t wall_ms();                   // since 1970

inline constexpr std::string_view kClaimName = "pawl-job.json";
inline constexpr std::uint64_t kClaimBytesMax = 4096;
inline constexpr std::uint64_t kShareBytesMax = std::uint64_t{1} << 30;
inline constexpr std::uint64_t kValuesBytesMax = std::uint64_t{64} << 20;

// `claim`: what is read of the folder's claim. Fails: `invalid` if it is not the owner's, whom nobody else may be; as `claim` does
// unless it is not there.
[[nodiscard]] Status check_claim(const std::string& folder, const Result<std::string>& claim, const std::string& owner);
// Fails also where there is none: what is removed must be this job's without a doubt.
[[nodiscard]] Status check_claimed(const std::string& folder, const Result<std::string>& claim,
                                   const std::string& owner);
// `step`: a checkpoint that lies there, which a job would replace that does not go on from it.
[[nodiscard]] Error claimed_by_another(const std::string& folder, const Result<std::string>& claim,
                                       const std::string& step);

}  // namespace pawl::job
