// RendezvousStore: the keys and values by which the ranks of a training meet, and what each request does to them.
//
// Every request may be repeated, because a pawld on its way was restarted: one that changes something carries the
// client that asks and a number that grows; this remembers each client's last change and its answer, gives that
// answer again, and ignores what is older. So an `add` counts once. A client asks for one change at a time; it may read
// meanwhile. Pure: no waiting and no clock; who asks for a key that is not there is told nullopt and asks again.
// What was carried out can be written down as records and replayed (job/daemon/rendezvous_log.h). `add` and
// `compare_set` mean what they mean in PyTorch's c10d stores. How requests travel: job/transport/messages.h.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "job/transport/messages.h"

namespace pawl::job {

class RendezvousStore {
 public:
  // nullopt: a get of a key, or a get_all of keys, not all of which are there yet; or a repetition whose client has long gone on.
  [[nodiscard]] std::optional<RendezvousAnswer> apply(const RendezvousRequest& request);
  [[nodiscard]] bool has(const std::string& key) const { return values_.count(key) > 0; }
  // Whether apply() would do something that it has not done before.
  [[nodiscard]] bool is_new_change(const RendezvousRequest& request) const;

  // A change, as a record; and records that make an empty one what this one is.
  [[nodiscard]] static std::string record_of(const RendezvousRequest& request);
  [[nodiscard]] std::vector<std::string> records() const;
  // False where it is no record; nothing has changed then.
  [[nodiscard]] bool replay(std::string_view record);

 private:
  struct Last {
    std::uint64_t number = 0;
    RendezvousAnswer answer;
  };
  [[nodiscard]] RendezvousAnswer carry_out(const RendezvousRequest& request);
  [[nodiscard]] std::optional<RendezvousAnswer> read(const RendezvousRequest& request) const;
  [[nodiscard]] std::optional<RendezvousAnswer> read_all(const RendezvousRequest& request) const;
  [[nodiscard]] RendezvousAnswer add(const RendezvousRequest& request);
  [[nodiscard]] RendezvousAnswer compare_set(const RendezvousRequest& request);

  std::map<std::string, std::string> values_;
  std::map<std::uint64_t, Last> last_;  // by client
};

}  // namespace pawl::job
