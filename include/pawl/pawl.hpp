// pawl.hpp: the C++ face of pawl.h. Header-only, C++17, nothing but libc and libstdc++.
//
// Trainer owns one handle: movable, not copyable, detached by its destructor. Every method is the C call of the same
// name (recover_join is pawl_recover_join) and means what pawl.h says, threads and waits included. Nothing here prints
// or throws, except std::bad_alloc: each call answers a Status that must be checked.
// What it adds: the dtype of a tensor from its pointer's type, shapes as lists, blobs from two callables, values of any
// length. It sets `struct_size` of every struct: `pawl::Seat seat;` needs no initialiser.
// A Trainer that is not attached answers Status::invalid to everything.
//
//     pawl::Trainer trainer;
//     pawl::Seat seat;
//     if (trainer.attach() != pawl::Status::ok) return fail(trainer.error());
//     if (trainer.recover_join(&seat) != pawl::Status::ok) return fail(trainer.error());
//     trainer.mesh_add("data", {{"dp", seat.world}});
//     trainer.tensor_add("hidden.weight", weights, {512, 512});                       // replicated, stable
//     trainer.tensor_add("flat/rank0", moments, {size}, pawl::unique("exp_avg"));     // only here
//     trainer.blob_add("sampler", 64, save, load);                                    // volatile, by callbacks
//     trainer.layout_seal();                                                          // once in a process
//     if (seat.resume_step > 0) trainer.restore();                                    // else begin at step 0
//     connect to the other ranks with trainer.rendezvous_set and trainer.rendezvous_get
//     trainer.recover_done();                                                         // waits for all seats
//     for (std::uint64_t step = seat.resume_step + 1; step <= total; ++step) {
//       trainer.step_begin(step);
//       forward, backward, reduce
//       trainer.fence();                     // stable state may change from here
//       optimizer
//       trainer.window_open(step, samples);  // to here
//     }
//     trainer.finish();
//
// Any call may answer Status::recover: drop the step, close the connections, and go to recover_join again. How this is
// written out: examples/charlm/training.h.
#ifndef PAWL_PAWL_HPP
#define PAWL_PAWL_HPP

#include <algorithm>
#include <chrono>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "pawl/pawl.h"

namespace pawl {
inline namespace v0 {  // its symbols never meet those of another version, nor of libpawl itself

// pawl_status. What to do: `recover`: drop the step, close the connections, recover_join; `stop`: clean up and leave.
enum class [[nodiscard]] Status : int{
    ok = PAWL_OK,           recover = PAWL_RECOVER, stop = PAWL_STOP,
    invalid = PAWL_INVALID, timeout = PAWL_TIMEOUT, unreachable = PAWL_UNREACHABLE,
    corrupt = PAWL_CORRUPT, io = PAWL_IO,           broken = PAWL_BROKEN,
};

[[nodiscard]] inline const char* name_of(Status status) {
  switch (status) {
    case Status::ok:
      return "ok";
    case Status::recover:
      return "recover";
    case Status::stop:
      return "stop";
    case Status::invalid:
      return "invalid";
    case Status::timeout:
      return "timeout";
    case Status::unreachable:
      return "unreachable";
    case Status::corrupt:
      return "corrupt";
    case Status::io:
      return "io";
    case Status::broken:
      return "broken";
  }
  return "unknown";
}

enum class Lifetime : int { stable = PAWL_STABLE, is_volatile = PAWL_VOLATILE, derived = PAWL_DERIVED };
enum class Placement : int { replicate = PAWL_REPLICATE, unique = PAWL_UNIQUE };

// The phases that a trainer reports; pawl sets the others itself.
enum class Phase : int {
  compute = PAWL_PHASE_COMPUTE,
  allreduce = PAWL_PHASE_ALLREDUCE,
  update = PAWL_PHASE_UPDATE,
  allgather = PAWL_PHASE_ALLGATHER,
  aside = PAWL_PHASE_ASIDE,
  exchange = PAWL_PHASE_EXCHANGE,
};

enum class Role : int { unknown = PAWL_ROLE_UNKNOWN, seated = PAWL_ROLE_SEATED, spare = PAWL_ROLE_SPARE };

using Seat = pawl_seat;
using FenceReport = pawl_fence_report;
enum class EventKind : int {
  recovery = PAWL_EVENT_RECOVERY,
  stop = PAWL_EVENT_STOP,
  committed = PAWL_EVENT_COMMITTED,
};
struct Event {
  EventKind kind{};         // may be one that is not listed: skip it
  std::uint64_t value = 0;  // recovery: the generation; committed: the step
};

// 16-bit floats as bits, so that a pointer to them carries its dtype.
struct Float16 {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};

// The dtype of T, for tensor_add<T>. A type that is not listed does not compile.
template <class T>
[[nodiscard]] constexpr pawl_dtype dtype_of() {
  using Value = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<Value, float>) {
    return PAWL_FLOAT32;
  } else if constexpr (std::is_same_v<Value, double>) {
    return PAWL_FLOAT64;
  } else if constexpr (std::is_same_v<Value, Float16>) {
    return PAWL_FLOAT16;
  } else if constexpr (std::is_same_v<Value, BFloat16>) {
    return PAWL_BFLOAT16;
  } else if constexpr (std::is_same_v<Value, bool>) {
    static_assert(sizeof(bool) == 1, "PAWL_BOOL is one byte");
    return PAWL_BOOL;
  } else if constexpr (std::is_same_v<Value, std::complex<float>>) {
    return PAWL_COMPLEX64;
  } else if constexpr (std::is_same_v<Value, std::complex<double>>) {
    return PAWL_COMPLEX128;
  } else {
    static_assert(std::is_integral_v<Value> && sizeof(Value) <= 8, "no pawl_dtype for this type");
    constexpr bool is_signed = std::is_signed_v<Value>;
    if constexpr (sizeof(Value) == 1) return is_signed ? PAWL_INT8 : PAWL_UINT8;
    if constexpr (sizeof(Value) == 2) return is_signed ? PAWL_INT16 : PAWL_UINT16;
    if constexpr (sizeof(Value) == 4) return is_signed ? PAWL_INT32 : PAWL_UINT32;
    if constexpr (sizeof(Value) == 8) return is_signed ? PAWL_INT64 : PAWL_UINT64;
  }
}

using Shape = std::vector<std::uint64_t>;  // elements per dimension; empty: a scalar

// Everything about a tensor that is not its name, pointer and shape.
struct TensorOptions {
  std::string role = "weight";  // weight, master, exp_avg, exp_avg_sq, step, buffer, ...
  Placement placement = Placement::replicate;
  Lifetime lifetime = Lifetime::stable;
  std::uint32_t mesh = 0;  // from mesh_add; the first mesh is 0
  Shape begin;             // where this rank's box begins, in elements; empty: at 0
  Shape size;              // extent of this rank's box, in elements; empty: up to the end of the tensor
  std::uint64_t equal_axes =
      0;  // bit i: every byte of the box is equal on all ranks along axis i of the mesh; stable only
  std::vector<std::uint32_t> order;  // dimensions, from the slowest to the fastest in memory; empty: row-major
};

[[nodiscard]] inline TensorOptions replicated(std::string role, Lifetime lifetime = Lifetime::stable) {
  TensorOptions options;
  options.role = std::move(role);
  options.lifetime = lifetime;
  return options;
}
[[nodiscard]] inline TensorOptions unique(std::string role, Lifetime lifetime = Lifetime::stable) {
  TensorOptions options = replicated(std::move(role), lifetime);
  options.placement = Placement::unique;
  return options;
}

struct Axis {
  std::string name;
  std::uint64_t size = 1;
};

// One training process's handle. One training thread; the calls that any thread may make are marked.
class Trainer {
 public:
  Trainer() = default;
  ~Trainer() { detach(); }
  Trainer(Trainer&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)), blobs_(std::move(other.blobs_)) {}
  Trainer& operator=(Trainer&& other) noexcept {
    if (this == &other) return *this;
    detach();
    handle_ = std::exchange(other.handle_, nullptr);
    blobs_ = std::move(other.blobs_);
    return *this;
  }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // `socket_path` empty: PAWL_SOCKET. `invalid` if attached already.
  Status attach(const std::string& socket_path = {}) {
    if (handle_ != nullptr) return Status::invalid;
    pawl_attach_options options = PAWL_ATTACH_OPTIONS_INIT;
    options.socket_path = socket_path.c_str();
    return status_of(pawl_attach(socket_path.empty() ? nullptr : &options, &handle_));
  }
  void detach() {
    if (handle_ != nullptr) pawl_detach(std::exchange(handle_, nullptr));
    blobs_.clear();  // after it: pawl may call them until then
  }
  [[nodiscard]] bool attached() const { return handle_ != nullptr; }
  [[nodiscard]] pawl_trainer* get() const { return handle_; }  // for a C call; stays ours
  // Why the last call failed; valid until the next call.
  [[nodiscard]] const char* error() const { return pawl_error(handle_); }

  Status identity(Seat* seat) const {
    return call([&] { return pawl_identity(handle_, sized(seat)); });
  }
  // Any thread: this trainer's role, and how many seats the job has (0: not known yet).
  [[nodiscard]] Role role() const {
    return handle_ == nullptr ? Role::unknown : static_cast<Role>(pawl_role_of(handle_));
  }
  [[nodiscard]] std::uint32_t world() const { return handle_ == nullptr ? 0 : pawl_world(handle_); }

  // The axes' sizes multiply to the world. `mesh` may be null: the first mesh is 0, the next 1, ...
  Status mesh_add(const std::string& name, const std::vector<Axis>& axes, std::uint32_t* mesh = nullptr) {
    std::vector<const char*> names;
    std::vector<std::uint64_t> sizes;
    for (const Axis& axis : axes) {
      names.push_back(axis.name.c_str());
      sizes.push_back(axis.size);
    }
    std::uint32_t id = 0;
    return call([&] {
      return pawl_mesh_add(handle_, name.c_str(), names.data(), sizes.data(), static_cast<std::uint32_t>(axes.size()),
                           mesh != nullptr ? mesh : &id);
    });
  }

  // `data` is the trainer's own memory, contiguous, row-major unless options.order says otherwise, and must outlive the handle
  // or be rebound.
  template <class T>
  Status tensor_add(const std::string& name, T* data, const Shape& shape, const TensorOptions& options = {},
                    std::uint32_t* id = nullptr) {
    static_assert(!std::is_const_v<T>, "pawl restores into this memory");
    if (!options.begin.empty() && options.begin.size() != shape.size()) return Status::invalid;
    if (!options.size.empty() && options.size.size() != shape.size()) return Status::invalid;
    if (!options.order.empty() && options.order.size() != shape.size()) return Status::invalid;
    pawl_tensor tensor = PAWL_TENSOR_INIT;
    tensor.name = name.c_str();
    tensor.role = options.role.c_str();
    tensor.dtype = dtype_of<T>();
    tensor.dimension_count = static_cast<std::uint32_t>(shape.size());
    tensor.shape = shape.data();
    tensor.begin = options.begin.empty() ? nullptr : options.begin.data();
    tensor.size = options.size.empty() ? nullptr : options.size.data();
    tensor.mesh = options.mesh;
    tensor.placement = static_cast<pawl_placement>(options.placement);
    tensor.lifetime = static_cast<pawl_lifetime>(options.lifetime);
    tensor.data = data;
    tensor.equal_axes = options.equal_axes;
    tensor.order = options.order.empty() ? nullptr : options.order.data();
    std::uint32_t unused = 0;
    return call([&] { return pawl_tensor_add(handle_, &tensor, id != nullptr ? id : &unused); });
  }
  Status tensor_rebind(std::uint32_t id, void* data) {
    return call([&] { return pawl_tensor_rebind(handle_, id, data); });
  }

  // Volatile state by two callables, kept until detach and called on the training thread:
  //   bool save(void* buffer, std::size_t capacity, std::size_t* size)    false: failed, the window is void
  //   bool load(const void* buffer, std::size_t size)                     false: the bytes are not understood
  // They must not throw.
  template <class Save, class Load>
  Status blob_add(const std::string& name, std::size_t capacity, Save save, Load load) {
    static_assert(std::is_invocable_r_v<bool, Save&, void*, std::size_t, std::size_t*>, "see above for `save`");
    static_assert(std::is_invocable_r_v<bool, Load&, const void*, std::size_t>, "see above for `load`");
    auto blob = std::make_shared<Blob<Save, Load>>(Blob<Save, Load>{std::move(save), std::move(load)});
    const Status added = call([&] {
      return pawl_blob_add(handle_, name.c_str(), capacity, &Blob<Save, Load>::save_into, &Blob<Save, Load>::load_from,
                           blob.get());
    });
    if (added == Status::ok) blobs_.push_back(std::move(blob));
    return added;
  }
  Status layout_seal() {
    return call([&] { return pawl_layout_seal(handle_); });
  }

  Status step_begin(std::uint64_t step) {
    return call([&] { return pawl_step_begin(handle_, step); });
  }
  Status fence(FenceReport* report = nullptr) {
    return call([&] { return pawl_fence(handle_, sized(report)); });
  }
  Status stream_use(void* stream) {
    return call([&] { return pawl_stream_use(handle_, stream); });
  }
  Status window_open(std::uint64_t step, std::uint64_t samples) {
    return call([&] { return pawl_window_open(handle_, step, samples); });
  }
  Status window_void(const std::string& why) {
    return call([&] { return pawl_window_void(handle_, why.c_str()); });
  }
  // Any thread, as is all down to interrupted().
  Status progress(Phase phase) {
    return call([&] { return pawl_progress(handle_, static_cast<pawl_phase>(phase)); });
  }
  [[nodiscard]] std::uint64_t committed_step() const { return handle_ == nullptr ? 0 : pawl_committed_step(handle_); }
  // -1 where there is none; poll() skips that.
  [[nodiscard]] int event_fd() const { return handle_ == nullptr ? -1 : pawl_event_fd(handle_); }
  // `timeout` if no event waits.
  Status event_next(Event* event) {
    pawl_event next = PAWL_EVENT_INIT;
    const Status got = call([&] { return pawl_event_next(handle_, &next); });
    if (got == Status::ok) *event = Event{static_cast<EventKind>(next.kind), next.value};
    return got;
  }
  [[nodiscard]] bool interrupted() const { return handle_ != nullptr && pawl_interrupted(handle_) != 0; }

  // `lost`: as in pawl_fault_report_lost.
  Status fault_report(const std::string& what, const std::string& lost = {}) {
    return call([&] { return pawl_fault_report_lost(handle_, what.c_str(), lost.c_str()); });
  }
  Status recover_join(Seat* seat) {
    return call([&] { return pawl_recover_join(handle_, sized(seat)); });
  }
  Status restore() {
    return call([&] { return pawl_restore(handle_); });
  }
  Status recover_done() {
    return call([&] { return pawl_recover_done(handle_); });
  }
  Status finish() {
    return call([&] { return pawl_finish(handle_); });
  }
  // `agreed` may be null.
  Status stop_after(std::uint64_t step, std::uint64_t* agreed = nullptr) {
    return call([&] { return pawl_stop_after(handle_, step, agreed); });
  }
  [[nodiscard]] std::uint64_t stop_step() const { return handle_ == nullptr ? 0 : pawl_stop_step(handle_); }
  Status persist() {
    return call([&] { return pawl_persist(handle_); });
  }
  [[nodiscard]] std::uint64_t stored_step() const { return handle_ == nullptr ? 0 : pawl_stored_step(handle_); }

  // The rendezvous: any thread. Values have at most 16 MiB.
  Status rendezvous_set(const std::string& key, const std::string& value) {
    return call([&] { return pawl_rendezvous_set(handle_, key.c_str(), value.data(), value.size()); });
  }
  // Waits for the key.
  Status rendezvous_get(const std::string& key, std::string* value, std::chrono::milliseconds timeout) {
    const auto timeout_ms = static_cast<std::uint32_t>(timeout.count());
    return value_of(value, kValueBytes, [&](char* buffer, std::size_t* size) {
      return pawl_rendezvous_get(handle_, key.c_str(), buffer, size, timeout_ms);
    });
  }
  // Waits for all of them. `values` becomes as long as `keys`.
  Status rendezvous_get_all(const std::vector<std::string>& keys, std::vector<std::string>* values,
                            std::chrono::milliseconds timeout) {
    const auto timeout_ms = static_cast<std::uint32_t>(timeout.count());
    std::vector<const char*> names;
    for (const std::string& key : keys) names.push_back(key.c_str());
    std::vector<std::size_t> sizes(keys.size());
    std::string all;
    const Status got = value_of(&all, kValueBytes, [&](char* buffer, std::size_t* size) {
      return pawl_rendezvous_get_all(handle_, names.data(), names.size(), buffer, size, sizes.data(), timeout_ms);
    });
    values->clear();
    std::size_t at = 0;
    for (std::size_t i = 0; got == Status::ok && i < sizes.size(); at += sizes[i], ++i)
      values->push_back(all.substr(at, sizes[i]));
    return got;
  }
  // Doesn't wait: `timeout` if the key is not there.
  Status rendezvous_try_get(const std::string& key, std::string* value) {
    return value_of(value, kValueBytes, [&](char* buffer, std::size_t* size) {
      return pawl_rendezvous_try_get(handle_, key.c_str(), buffer, size);
    });
  }
  // `sum` may be null.
  Status rendezvous_add(const std::string& key, std::int64_t amount, std::int64_t* sum = nullptr) {
    return call([&] { return pawl_rendezvous_add(handle_, key.c_str(), amount, sum); });
  }
  // `value`: what the key has afterwards.
  Status rendezvous_compare_set(const std::string& key, const std::string& expected, const std::string& desired,
                                std::string* value) {
    // With room for `desired`, a longer answer means that nothing was set: the call may be repeated.
    const std::size_t capacity = std::max({kValueBytes, expected.size(), desired.size()});
    return value_of(value, capacity, [&](char* buffer, std::size_t* size) {
      return pawl_rendezvous_compare_set(handle_, key.c_str(), expected.data(), expected.size(), desired.data(),
                                         desired.size(), buffer, size);
    });
  }
  // `deleted` may be null.
  Status rendezvous_delete(const std::string& key, bool* deleted = nullptr) {
    int there = 0;
    const Status done = call([&] { return pawl_rendezvous_delete(handle_, key.c_str(), &there); });
    if (deleted != nullptr) *deleted = there != 0;
    return done;
  }
  [[nodiscard]] std::string status_json() { return handle_ == nullptr ? "{}" : pawl_status_json(handle_); }

 private:
  static constexpr std::size_t kValueBytes = 4096;  // room for a value at first

  template <class Save, class Load>
  struct Blob {
    Save save;
    Load load;
    static int save_into(void* context, void* buffer, std::size_t capacity, std::size_t* size) {
      return static_cast<Blob*>(context)->save(buffer, capacity, size) ? 0 : 1;
    }
    static int load_from(void* context, const void* buffer, std::size_t size) {
      return static_cast<Blob*>(context)->load(buffer, size) ? 0 : 1;
    }
  };

  template <class Struct>
  static Struct* sized(Struct* answer) {  // may be null
    if (answer != nullptr) answer->struct_size = sizeof(Struct);
    return answer;
  }
  // `c_call` fills in a buffer and a size, and is repeated with more room where a value is longer. The value is empty
  // if the answer is not ok.
  template <class Call>
  Status value_of(std::string* value, std::size_t capacity, Call c_call) {
    for (;;) {
      value->resize(capacity);
      std::size_t size = capacity;
      const Status got = call([&] { return c_call(&(*value)[0], &size); });
      if (got == Status::invalid && size > capacity) {
        capacity = size;
        continue;
      }
      value->resize(got == Status::ok ? size : 0);
      return got;
    }
  }
  static Status status_of(pawl_status status) { return static_cast<Status>(status); }
  template <class Call>
  Status call(Call c_call) const {
    return handle_ == nullptr ? Status::invalid : status_of(c_call());
  }

  pawl_trainer* handle_ = nullptr;
  std::vector<std::shared_ptr<void>> blobs_;  // shared_ptr<void> remembers each one's own destructor
};

}  // namespace v0
}  // namespace pawl
#endif
