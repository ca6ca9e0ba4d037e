#include "job/daemon/beside_state.h"

#include <utility>

namespace pawl::job {

bool BesideState::has_key(const JobKeys& keys, const std::string& key) {
  return key.starts_with(keys.topologies()) || key.starts_with(sheet_prefix(keys));
}

BesideState::Taken BesideState::take(const JobKeys& keys, const std::string& key, const std::string& value,
                                     Revision revision) {
  Taken taken;
  if (key.starts_with(sheet_prefix(keys))) {
    auto there = sheet_in(keys, key, value);
    taken.spoiled = !there;
    if (!there || revision < sheet_revision) return taken;  // this node has put one since
    sheet = std::move(there);
    sheet_revision = revision;
    return taken;
  }
  auto there = parse_topology(value);
  if (!there) {
    taken.refused = there.error().what;
  } else if (revision >= topology_revision) {
    topology = std::move(*there);
    topology_revision = revision;
  }
  return taken;
}

BesideState::Taken BesideState::take_all(const JobKeys& keys, const Listing& listing) {
  const KeyValue* named = nullptr;
  const KeyValue* rows = nullptr;
  const auto is_newer = [](const KeyValue& kv, const KeyValue* known) {
    return known == nullptr || kv.mod_revision > known->mod_revision;
  };
  for (const KeyValue& kv : listing.kvs) {
    if (kv.key.starts_with(keys.topologies()) && is_newer(kv, named)) named = &kv;
    if (kv.key.starts_with(sheet_prefix(keys)) && is_newer(kv, rows)) rows = &kv;
  }
  if (listing.revision < sheet_revision) sheet_revision = 0;
  if (listing.revision < topology_revision) topology_revision = 0;
  Taken taken;
  if (named != nullptr) taken = take(keys, named->key, named->value, named->mod_revision);
  if (rows != nullptr) taken.spoiled = take(keys, rows->key, rows->value, rows->mod_revision).spoiled;
  return taken;
}

void BesideState::note_named(std::optional<SheetName> by_state, Revision revision) {
  if (revision < named_revision) return;
  sheet_named = by_state;
  named_revision = revision;
}

// Its answer may come after a watch has told what others put since.
void BesideState::note(WrittenState written, Revision revision) {
  note_named(written.named, revision);
  if (written.topology && revision >= topology_revision) {
    topology = std::move(written.topology);
    topology_revision = revision;
  }
  if (written.sheet && revision >= sheet_revision) {
    sheet = std::move(written.sheet);
    sheet_revision = revision;
  }
}

}  // namespace pawl::job
