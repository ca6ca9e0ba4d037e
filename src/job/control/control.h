// Control: the small interface through which pawl agrees on things: revisioned key-value, leases, watches and
// compare-and-swap.
//
// Every modification makes one revision, greater than all before; whoever wins a compare-and-swap is the only one.
// A call blocks until it is answered, at most `deadline`; while the server is away or an endpoint is down it is tried
// again inside that time. An endpoint that accepts a call and says nothing costs its share of the deadline, once: the next
// calls begin with another. All calls are thread-safe. One implementation: the etcd v3 protocol, to a cluster of etcd or
// to pawl's embedded server (server.h). Failures of every call: `unreachable` (no server answered in time: try again),
// `timeout` (one took it and did not answer), `invalid` (the request or the token), `full`, and those named below. A
// modification that fails with `unreachable` or `timeout` may still have happened: look before acting on it. What the
// keys mean is not here (job_state.h, docs/protocol.md).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "env/environment.h"

namespace pawl::job {

using Revision = std::int64_t;  // 0: none; a key that does not exist has mod_revision 0
using LeaseId = std::int64_t;   // 0: none

struct KeyValue {
  std::string key;
  std::string value;
  Revision mod_revision = 0;     // of its latest put
  Revision create_revision = 0;  // of the put that made it
  LeaseId lease = 0;
};

struct Listing {
  std::vector<KeyValue> kvs;  // by key
  Revision revision = 0;      // of all keys: watch from revision + 1 to miss nothing
};

// Two listings of the same keys that have `count` and `newest` in common are equal: no key of the later one was put after
// the newest, and of the earlier one's none is gone, or there would be fewer.
struct KeyTally {
  std::uint64_t count = 0;  // of keys
  Revision newest = 0;      // the greatest mod_revision of them; 0: there are none
  Revision revision = 0;    // of all keys, when it was read
};

struct Swapped {
  bool won = false;
  Revision revision = 0;            // of all keys after it; if won, the key's mod_revision
  std::optional<KeyValue> current;  // if lost: what is there instead; none: the key does not exist
};

struct KeyCompare {
  enum class Field : unsigned char { mod_revision, create_revision };
  enum class Is : unsigned char { equal, not_equal, less, greater };
  std::string key;
  Field field = Field::mod_revision;
  Is is = Is::equal;
  Revision revision = 0;
};

struct KeyChange {
  enum class Kind : unsigned char { put, erase, erase_prefix };
  Kind kind = Kind::put;
  std::string key;
  std::string value;
  LeaseId lease = 0;
};

struct Transacted {
  bool won = false;
  Revision revision = 0;
  std::vector<std::optional<KeyValue>> current;  // if lost: one for each compare, in order
};

struct WatchEvent {
  enum class Kind : unsigned char {
    put,     // kv is the new pair
    erased,  // kv.key, and kv.mod_revision is the revision of the erasure; also when a lease ended
    resync,  // some events are lost for good: list again; kv is empty. Events after `revision` follow
  };
  Kind kind = Kind::put;
  KeyValue kv;
  Revision revision = 0;  // of the event; the events of one revision follow each other
};

struct WatchOptions {
  Revision from_revision = 0;  // the first to deliver; 0: from now on
  // Called when the connection is lost (false) and when it stands again (true), also the first time.
  std::function<void(bool connected)> on_connection = {};
};

// A watch under way. It reconnects and resumes by itself: each event is delivered once and in order, whatever the
// server or the connection does, or `resync` says that some were lost. A server that says nothing is noticed within two
// seconds, and left for another endpoint if there is one.
// Its callbacks run in a task of its own, one at a time; they may call Control, and may not destroy the watch.
class Watch {
 public:
  virtual ~Watch() = default;  // no callback runs any more when it returns
};

class Control {
 public:
  virtual ~Control() = default;  // after all its watches

  // `not_found` if there is no such key.
  virtual Result<KeyValue> get(std::string_view key) = 0;
  virtual Result<Listing> list(std::string_view prefix) = 0;
  // The same of so many keys that the answer may take five deadlines.
  virtual Result<Listing> list_many(std::string_view prefix) { return list(prefix); }
  // Of what `list` would answer: the same few bytes, however many there are.
  virtual Result<KeyTally> tally(std::string_view prefix) = 0;

  // `not_found` if the lease is gone.
  virtual Result<Revision> put(std::string_view key, std::string_view value, LeaseId lease = 0) = 0;
  virtual Result<std::int64_t> erase(std::string_view key) = 0;  // how many there were: 0 or 1
  virtual Result<std::int64_t> erase_prefix(std::string_view prefix) = 0;

  // Puts `value` if the key's mod_revision is `expected`; 0: if there is no such key. Losing is no error.
  virtual Result<Swapped> compare_and_swap(std::string_view key, Revision expected, std::string_view value,
                                           LeaseId lease = 0) = 0;
  // All changes in one revision if all compares hold, else none. No key twice; at most 128 of each.
  virtual Result<Transacted> transact(const std::vector<KeyCompare>& compares,
                                      const std::vector<KeyChange>& changes) = 0;

  // The server may grant a longer time than asked (etcd: 2 s at least). Keys put with it are erased when it ends.
  virtual Result<LeaseId> lease_grant(std::chrono::seconds time_to_live) = 0;
  // Renews it for its granted time, which is returned. `not_found` if it is gone.
  virtual Result<std::chrono::seconds> lease_keep_alive_once(LeaseId lease) = 0;
  virtual Status lease_revoke(LeaseId lease) = 0;  // `not_found` if it is gone

  // Events of all keys that begin with `prefix`. Returns at once; also while the server is away.
  [[nodiscard]] virtual std::unique_ptr<Watch> watch(std::string_view prefix, WatchOptions options,
                                                     std::function<void(const WatchEvent&)> on_event) = 0;
};

// Under which the token travels. Not etcd's own "token": an etcd without authentication refuses whoever sends that.
inline constexpr const char* kControlTokenKey = "pawl-token";

struct ControlOptions {
  std::chrono::milliseconds deadline{2000};  // of each call. Longer: rides out a longer absence of the server
  std::string token = {};                    // as the server's
  // What its pauses and its watches run on. gRPC's own threads, sockets and clock are none of it: a simulation has a
  // Control of its own.
  const Environment* environment = &real_environment();
};

// `endpoints`: "host:port" or "unix:/path", several separated by commas. Connects lazily.
// Fails: `invalid` if an endpoint is neither.
Result<std::unique_ptr<Control>> connect_control(std::string_view endpoints, ControlOptions options = {});

}  // namespace pawl::job
