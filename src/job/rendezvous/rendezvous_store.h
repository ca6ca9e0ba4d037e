// Store: the rendezvous store's contents, what may be asked of it, and how that travels.
//
// Every request may be repeated, because a pawld on its way was restarted: one that changes something carries the
// client that asks and a number that grows; the store remembers each client's last change and its answer, gives that
// answer again, and ignores what is older. So an `add` counts once. A client asks for one change at a time; it may read
// meanwhile. Pure: no waiting and no clock; who asks for a key that is not there is told nullopt and asks again.
// What the store has carried out can be written down as records and replayed (job/daemon/store_log.h). Semantics of add and
// compare_set: those of PyTorch's c10d stores.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "job/transport/frame.h"

namespace pawl::job {

enum class StoreOp : std::uint8_t {
  set = 1,          // the key has `value`
  get = 2,          // its value, once there is one
  try_get = 3,      // its value, or not found
  add = 4,          // its value, a decimal number (0 where there is none), grows by `amount`; answers the sum
  compare_set = 5,  // `value` where it has `expected`, or is not there and `expected` is empty; answers what is there
                    // now (`expected`, where the key is not there)
  erase = 6,        // found: it was there
};
[[nodiscard]] constexpr bool changes_something(StoreOp op) {
  return op != StoreOp::get && op != StoreOp::try_get;
}

struct StoreRequest {
  StoreOp op = StoreOp::get;
  std::uint64_t client = 0;  // the asking process' nonce; 0: a pawld, that asks only what may be repeated anyway
  std::uint64_t number = 0;  // of the client's requests; the same in a repeated one
  std::string key;
  std::string value;
  std::string expected;
  std::int64_t amount = 0;
  std::uint32_t wait_ms = 0;  // get: nobody waits for the answer any longer. 0: for ever
  bool operator==(const StoreRequest&) const = default;
};

struct StoreAnswer {
  bool found = true;
  std::string value;
  std::string refused;  // not empty: why it can't be done; nothing has changed
  bool operator==(const StoreAnswer&) const = default;
};

void write_store_request(Writer& out, const StoreRequest& request);
void write_store_answer(Writer& out, const StoreAnswer& answer);
// False where the fields are none of ours.
[[nodiscard]] bool read_store_request(Reader& in, StoreRequest& request);
[[nodiscard]] bool read_store_answer(Reader& in, StoreAnswer& answer);

class Store {
 public:
  // nullopt: a get of a key that is not there yet; or a repetition whose client has long gone on.
  [[nodiscard]] std::optional<StoreAnswer> apply(const StoreRequest& request);
  // Whether apply() would do something that it has not done before.
  [[nodiscard]] bool is_new_change(const StoreRequest& request) const;

  // A change, as a record; and records that make an empty store what this one is.
  [[nodiscard]] static std::string record_of(const StoreRequest& request);
  [[nodiscard]] std::vector<std::string> records() const;
  // False where it is no record; nothing has changed then.
  [[nodiscard]] bool replay(std::string_view record);

 private:
  struct Last {
    std::uint64_t number = 0;
    StoreAnswer answer;
  };
  [[nodiscard]] StoreAnswer carry_out(const StoreRequest& request);
  [[nodiscard]] StoreAnswer add(const StoreRequest& request);
  [[nodiscard]] StoreAnswer compare_set(const StoreRequest& request);

  std::map<std::string, std::string> values_;
  std::map<std::uint64_t, Last> last_;  // by client
};

}  // namespace pawl::job
