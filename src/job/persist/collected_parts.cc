#include "job/persist/collected_parts.h"

#include <chrono>
#include <map>
#include <utility>

#include "base/first_few.h"
#include "base/json_access.h"
#include "base/text.h"
#include "checkpoint/formats/native/store_manifest.h"
#include "env/random.h"
#include "job/persist/checkpoint_store.h"

namespace pawl::job {
namespace {

constexpr std::size_t kIdBytes = 12;

// What seats hold without writing it must be what another one writes; and what is each seat's own may differ.
Status check_copies(const CollectedParts& parts, checkpoint::StorePublishOptions& options) {
  bool any = false;
  for (const SeatBeside& beside : parts.besides) {
    options.may_differ.insert(beside.own.begin(), beside.own.end());
    any = any || !beside.sums.empty();
  }
  if (!any) return {};
  std::map<std::pair<std::string, std::string>, std::uint32_t> written;  // of whole tensors
  for (const std::string& share : parts.shares) {
    PAWL_ASSIGN(const checkpoint::StoreManifest manifest, checkpoint::parse_store_manifest(share));
    for (const checkpoint::StoreManifestTensor& tensor : manifest.tensors)
      for (const checkpoint::StoreManifestPiece& piece : tensor.pieces)
        if (piece.box == whole_box(tensor.shape)) written.try_emplace({tensor.name, tensor.role}, piece.crc32c);
  }
  FirstFew faults;
  for (std::size_t seat = 0; seat < parts.besides.size(); ++seat)
    for (const auto& [key, sum] : parts.besides[seat].sums)
      if (const auto found = written.find(key); found == written.end() || found->second != sum)
        faults.add(text(key.first, " (", key.second, ") of seat ", seat));
  if (!faults.any()) return {};
  return Error{Code::invalid, text("seats hold different values of what they declare as one tensor: ",
                                   faults.sentence(), "; give it a name of its own on each rank, or make it equal")};
}

}  // namespace

Result<checkpoint::StorePublishOptions> options_of(const CollectedParts& parts) {
  PAWL_ASSIGN(checkpoint::StorePublishOptions options, publish_options_of(parts.values));
  options.equal_boxes = checkpoint::EqualBoxes::keep_first;
  PAWL_TRY(check_copies(parts, options));
  return options;
}

Status check_claim(const std::string& folder, const Result<std::string>& claim, const std::string& owner) {
  if (!claim && claim.error().code != Code::not_found) return claim.error();  // it may be another's
  if (owner.empty() || !claim || *claim == owner) return {};
  return Error{Code::invalid, text(folder, " belongs to job ", string_in(json::parse(*claim, nullptr, false), "job"),
                                   " now, which goes on from its checkpoints: this one writes none there any more")};
}

Status check_claimed(const std::string& folder, const Result<std::string>& claim, const std::string& owner) {
  if (!claim && claim.error().code == Code::not_found)
    return Error{Code::invalid, text(folder, " holds no ", kClaimName, " that says that it is this job's")};
  return check_claim(folder, claim, owner);
}

Error claimed_by_another(const std::string& folder, const Result<std::string>& claim, const std::string& step) {
  const std::string whose = claim ? string_in(json::parse(*claim, nullptr, false), "job") : "";
  return Error{Code::invalid,
               text(folder, " holds checkpoints", whose.empty() ? "" : " of job " + whose, " already (", step,
                    "), which this job would replace: name another folder, move them away, or go on from the newest "
                    "(--resume auto)")};
}

checkpoint::StoreIdentity new_identity() {
  checkpoint::StoreIdentity identity;
  identity.id = random_hex(kIdBytes);
  return identity;
}

checkpoint::StoreIdentity identity_after(std::uint64_t step, const checkpoint::StoreIdentity& last,
                                         const std::function<bool(std::uint64_t step)>& is_there) {
  checkpoint::StoreIdentity identity = new_identity();
  if (last.id.empty()) return identity;
  identity.before.push_back({step, last.id});
  for (const checkpoint::StoreName& name : last.before)
    if (is_there(name.step)) identity.before.push_back(name);
  if (identity.before.size() > checkpoint::kHistoryMax) identity.before.resize(checkpoint::kHistoryMax);
  return identity;
}

std::uint64_t wall_ms() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count());
}

}  // namespace pawl::job
