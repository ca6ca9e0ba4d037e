// The C border: NULL checks, strings and arrays in and out, Result to pawl_status with its sentence. No logic of its
// own.
#include "pawl/pawl.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/c_status.h"
#include "base/c_struct.h"
#include "base/check.h"
#include "base/text.h"
#include "job/trainer/trainer.h"
#include "job/trainer/without_pawl.h"

// trainer is nullptr with PAWL=off. `retired`: pawl broke and has detached; every call is a no-op from then on.
struct pawl_trainer {
  std::unique_ptr<pawl::job::Trainer> trainer;
  pawl::job::WithoutPawl without;
  std::atomic<bool> retired{false};
  std::uint64_t process = 0;  // whose handle it is
  std::uint32_t next_id = 0;  // of declarations that nobody keeps
  std::string json;

  [[nodiscard]] bool off() const { return trainer == nullptr; }
  [[nodiscard]] bool idle() const { return off() || retired; }
};

namespace {

using pawl::Code;
using pawl::Error;
using pawl::Result;
using pawl::Status;
using pawl::text;
using pawl::job::RendezvousAnswer;
using pawl::job::RendezvousOp;
using pawl::job::RendezvousRequest;

thread_local std::string attach_error;
thread_local std::string call_error;  // of this thread's last call with a handle

// fork() copies the handle but neither threads nor the right to the arena. Counted, since pids come back.
std::atomic<std::uint64_t> this_process{1};
void in_forked_child() {
  ++this_process;
}

bool forked(const pawl_trainer* trainer) {
  return !trainer->off() && trainer->process != this_process.load(std::memory_order_relaxed);
}

pawl_status failed(pawl_trainer* trainer, Error error) {
  call_error = std::move(error.what);
  if (error.code == Code::broken) {
    trainer->retired = true;
    trainer->trainer->end();
    call_error = "pawl has detached, training goes on unprotected: " + call_error;
  }
  return pawl::status_of(error.code);
}

pawl_status answer(pawl_trainer* trainer, Status status) {
  if (status) return PAWL_OK;
  return failed(trainer, std::move(status).error());
}

constexpr pawl_status kGoOn = static_cast<pawl_status>(-1);

// What every call of the training thread begins with. kGoOn: there is a live pawl::job::Trainer.
pawl_status enter(pawl_trainer* trainer) {
  if (trainer == nullptr) {
    attach_error = "the trainer is NULL";
    return PAWL_INVALID;
  }
  if (forked(trainer)) return PAWL_INVALID;  // pawl_error has the sentence
  if (trainer->idle()) return PAWL_OK;
  call_error.clear();
  return kGoOn;
}

pawl_status invalid(pawl_trainer* trainer, const char* why) {
  return failed(trainer, Error{Code::invalid, why});
}

// Of calls that any thread may make. What is broken is given up, and retired by the training thread's next call.
pawl_status failed_anywhere(pawl_trainer* trainer, Error error) {
  if (error.code == Code::broken && !trainer->idle()) trainer->trainer->give_up(error.what);
  call_error = std::move(error.what);
  return pawl::status_of(error.code);
}

// --- Structs as our pawl.h has them.

using pawl::CStruct;

constexpr CStruct kAttachOptions{"pawl_attach_options", sizeof(pawl_attach_options), sizeof(pawl_attach_options)};
constexpr CStruct kSeat{"pawl_seat", sizeof(pawl_seat), sizeof(pawl_seat)};
constexpr CStruct kTensor{"pawl_tensor", sizeof(pawl_tensor), offsetof(pawl_tensor, equal_axes)};
constexpr CStruct kFenceReport{"pawl_fence_report", sizeof(pawl_fence_report),
                               offsetof(pawl_fence_report, was_written)};
constexpr CStruct kEvent{"pawl_event", sizeof(pawl_event), sizeof(pawl_event)};

// A struct that the caller wants filled in; nullptr: it doesn't.
pawl_status check_answer(const void* answer, const CStruct& known) {
  if (answer == nullptr) return PAWL_OK;
  const Status checked = pawl::check_output_struct(answer, known);
  if (checked) return PAWL_OK;
  call_error = checked.error().what;
  return PAWL_INVALID;
}

// The field of a later version that this tensor sets; nullptr: none.
const char* unsupported_field(const pawl_tensor& tensor) {
  if (tensor.unit != nullptr) return "unit";
  if (tensor.logical_dimension_count != 0) return "logical_dimension_count";
  if (tensor.logical_shape != nullptr) return "logical_shape";
  return nullptr;
}

Result<pawl::job::LayoutEntry> entry_of(const pawl_tensor& tensor) {
  const auto wrong = [&](const char* why) {
    return Error{Code::invalid, text("tensor ", tensor.name != nullptr ? tensor.name : "(no name)", ": ", why)};
  };
  if (tensor.name == nullptr || tensor.role == nullptr) return wrong("name or role is NULL");
  const std::uint32_t count = tensor.dimension_count;
  if (count > pawl::kDimensionsMax) return wrong("more than 8 dimensions");
  if (count > 0 && tensor.shape == nullptr) return wrong("shape is NULL");
  if (const char* const field = unsupported_field(tensor); field != nullptr)
    return Error{Code::invalid, text("tensor ", tensor.name, ": ", field, " is not supported yet: it must be 0")};
  const auto dtype = pawl::captured_type_numbered(static_cast<std::uint32_t>(tensor.dtype));
  if (!dtype) return wrong("unknown dtype");
  if (tensor.placement != PAWL_REPLICATE && tensor.placement != PAWL_UNIQUE) return wrong("unknown placement");
  if (tensor.lifetime != PAWL_STABLE && tensor.lifetime != PAWL_VOLATILE && tensor.lifetime != PAWL_DERIVED) {
    return wrong("unknown lifetime");
  }
  pawl::job::LayoutEntry entry;
  entry.name = tensor.name;
  entry.role = tensor.role;
  entry.dtype = *dtype;
  if (count > 0) entry.shape.assign(tensor.shape, tensor.shape + count);
  entry.box = pawl::whole_box(entry.shape);
  for (std::uint32_t d = 0; d < count; ++d) {
    if (tensor.begin != nullptr) entry.box.begin[d] = tensor.begin[d];
    const std::uint64_t left = entry.shape[d] - std::min(entry.shape[d], entry.box.begin[d]);
    entry.box.size[d] = tensor.size != nullptr ? tensor.size[d] : left;
  }
  entry.mesh = tensor.mesh;
  entry.placement = static_cast<pawl::job::TensorPlacement>(tensor.placement);
  entry.lifetime = static_cast<pawl::job::Lifetime>(tensor.lifetime);
  entry.equal_axes = tensor.equal_axes;
  if (tensor.order != nullptr) entry.order.assign(tensor.order, tensor.order + count);
  return entry;
}

// An index that a declaration answered; ids of ignored declarations are counted all the same.
pawl_status answer_id(pawl_trainer* trainer, Result<std::uint32_t> index, std::uint32_t* id) {
  if (!index) return failed(trainer, std::move(index).error());
  if (id != nullptr) *id = *index;
  return PAWL_OK;
}

pawl_status ignore_declaration(pawl_trainer* trainer, std::uint32_t* id) {
  if (id != nullptr) *id = trainer->next_id;
  ++trainer->next_id;
  return PAWL_OK;
}

// --- The rendezvous.

Result<RendezvousAnswer> ask_rendezvous(pawl_trainer* trainer, RendezvousRequest request, pawl::Deadline deadline) {
  if (trainer->off()) return trainer->without.rendezvous(std::move(request), deadline);
  if (trainer->retired) return Error{Code::unreachable, "there is no rendezvous: pawl has detached"};
  return trainer->trainer->rendezvous(std::move(request), deadline);
}

// Into the caller's buffer; *size becomes the length in any case.
pawl_status put_value(pawl_trainer* trainer, const char* key, const std::string& found, void* value, size_t* size) {
  const size_t capacity = *size;
  *size = found.size();
  if (found.size() > capacity)
    return failed_anywhere(trainer,
                           {Code::invalid, text("key ", key, ": a value of ", found.size(), " bytes for ", capacity)});
  if (!found.empty()) std::memcpy(value, found.data(), found.size());
  return PAWL_OK;
}

pawl_status enter_rendezvous(pawl_trainer* trainer, bool arguments) {
  if (trainer == nullptr) {
    attach_error = "the trainer is NULL";
    return PAWL_INVALID;
  }
  if (forked(trainer)) return PAWL_INVALID;  // pawl_error has the sentence
  call_error.clear();
  if (!arguments)
    return failed_anywhere(
        trainer, {Code::invalid, "key, value or a place for the answer is NULL, or a value is of more than 16 MiB"});
  return PAWL_OK;
}

RendezvousRequest request_of(RendezvousOp op, const char* key) {
  RendezvousRequest request;
  request.op = op;
  request.key = key;
  return request;
}

constexpr size_t kValueBytesMax = 16u << 20;

bool is_value(const void* value, size_t size) {
  return (value != nullptr || size == 0) && size <= kValueBytesMax;
}
bool is_place(const void* value, const size_t* size) {
  return size != nullptr && (value != nullptr || *size == 0);
}

std::string bytes_of(const void* value, size_t size) {
  return {static_cast<const char*>(value), size};
}

constexpr size_t kKeysAtOnce = 256;

// The values of the first of these keys, one at least.
Result<std::vector<std::string>> ask_for_all(pawl_trainer* trainer, std::span<const std::string> keys,
                                             pawl::Deadline deadline) {
  RendezvousRequest request = request_of(RendezvousOp::get_all, keys.front().c_str());
  request.value = pawl::job::pack(keys);
  PAWL_ASSIGN(const RendezvousAnswer answer, ask_rendezvous(trainer, std::move(request), deadline));
  std::vector<std::string> values;
  PAWL_ENSURE(pawl::job::unpack(answer.value, values) && !values.empty() && values.size() <= keys.size(),
              "pawld's answer makes no sense");
  return values;
}

}  // namespace

extern "C" {

pawl_status pawl_attach(const pawl_attach_options* options, pawl_trainer** trainer) {
  attach_error.clear();
  if (trainer == nullptr) {
    attach_error = "the place for the handle is NULL";
    return PAWL_INVALID;
  }
  *trainer = nullptr;
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, &in_forked_child); });
  auto handle = std::make_unique<pawl_trainer>();
  handle->process = this_process;
  const char* pawl_variable = std::getenv("PAWL");
  if (pawl_variable == nullptr || std::strcmp(pawl_variable, "off") != 0) {
    auto attach = [&]() -> Status {
      pawl_attach_options given{};
      if (options != nullptr) {
        PAWL_TRY(pawl::check_input_struct(options, kAttachOptions));
        given = pawl::read_struct<pawl_attach_options>(options);
      }
      PAWL_ASSIGN(auto wanted, pawl::job::options_from_environment(given.socket_path));
      PAWL_ASSIGN(handle->trainer, pawl::job::Trainer::attach(std::move(wanted)));
      return {};
    };
    if (Status attached = attach(); !attached) {
      attach_error = attached.error().what;
      return pawl::status_of(attached.error().code);
    }
  }
  *trainer = handle.release();
  return PAWL_OK;
}

void pawl_detach(pawl_trainer* trainer) {
  if (trainer == nullptr || forked(trainer)) return;  // in a forked child: the parent's threads aren't here to join
  delete trainer;
}

const char* pawl_error(const pawl_trainer* trainer) {
  if (trainer == nullptr) return attach_error.c_str();
  if (forked(trainer)) return "this is a forked child of the process that attached: pawl is not for it";
  return call_error.c_str();
}

pawl_status pawl_identity(const pawl_trainer* trainer, pawl_seat* seat) {
  if (trainer == nullptr || seat == nullptr || forked(trainer)) return PAWL_INVALID;
  if (const pawl_status checked = check_answer(seat, kSeat); checked != PAWL_OK) return checked;
  if (trainer->off()) {
    pawl::fill_struct(seat, pawl::job::seat_without_pawl());
    return PAWL_OK;
  }
  const Result<pawl_seat> known = trainer->trainer->identity();
  if (!known) return PAWL_INVALID;
  pawl::fill_struct(seat, *known);
  return PAWL_OK;
}

pawl_status pawl_mesh_add(pawl_trainer* trainer, const char* name, const char* const* axes, const uint64_t* sizes,
                          uint32_t axis_count, uint32_t* mesh) {
  const pawl_status entered = enter(trainer);
  if (entered == PAWL_OK) return ignore_declaration(trainer, mesh);
  if (entered != kGoOn) return entered;
  if (name == nullptr || axes == nullptr || sizes == nullptr)
    return invalid(trainer, "a mesh's name, axes or sizes are NULL");
  if (axis_count > pawl::kAxesMax) return invalid(trainer, "a mesh of more than 8 axes");
  pawl::Mesh made{name, {}};
  for (uint32_t i = 0; i < axis_count; ++i) {
    if (axes[i] == nullptr) return invalid(trainer, "an axis' name is NULL");
    made.axes.push_back({axes[i], sizes[i]});
  }
  return answer_id(trainer, trainer->trainer->add_mesh(std::move(made)), mesh);
}

pawl_status pawl_tensor_add(pawl_trainer* trainer, const pawl_tensor* tensor, uint32_t* id) {
  const pawl_status entered = enter(trainer);
  if (entered == PAWL_OK) return ignore_declaration(trainer, id);
  if (entered != kGoOn) return entered;
  if (tensor == nullptr) return invalid(trainer, "the tensor is NULL");
  if (Status checked = pawl::check_input_struct(tensor, kTensor); !checked)
    return failed(trainer, std::move(checked).error());
  const auto given = pawl::read_struct<pawl_tensor>(tensor);
  Result<pawl::job::LayoutEntry> entry = entry_of(given);
  if (!entry) return failed(trainer, std::move(entry).error());
  return answer_id(trainer, trainer->trainer->add_tensor(std::move(*entry), given.data), id);
}

pawl_status pawl_tensor_rebind(pawl_trainer* trainer, uint32_t id, void* data) {
  const pawl_status entered = enter(trainer);
  return entered != kGoOn ? entered : answer(trainer, trainer->trainer->rebind(id, data));
}

pawl_status pawl_blob_add(pawl_trainer* trainer, const char* name, size_t capacity, pawl_blob_save save,
                          pawl_blob_load load, void* context) {
  const pawl_status entered = enter(trainer);
  if (entered != kGoOn) return entered;
  if (name == nullptr || save == nullptr || load == nullptr)
    return invalid(trainer, "a blob's name, save or load is NULL");
  return answer_id(trainer, trainer->trainer->add_blob(name, capacity, {save, load, context}), nullptr);
}

pawl_status pawl_layout_seal(pawl_trainer* trainer) {
  const pawl_status entered = enter(trainer);
  return entered != kGoOn ? entered : answer(trainer, trainer->trainer->seal_layout());
}

pawl_status pawl_step_begin(pawl_trainer* trainer, uint64_t step) {
  const pawl_status entered = enter(trainer);
  if (entered == PAWL_OK) trainer->without.step_begin(pawl::Step(step));
  return entered != kGoOn ? entered : answer(trainer, trainer->trainer->step_begin(pawl::Step(step)));
}

pawl_status pawl_fence(pawl_trainer* trainer, pawl_fence_report* report) {
  if (const pawl_status checked = check_answer(report, kFenceReport); checked != PAWL_OK) return checked;
  if (report != nullptr) pawl::fill_struct(report, pawl_fence_report{});
  const pawl_status entered = enter(trainer);
  if (entered != kGoOn) return entered;
  const Result<pawl_fence_report> fenced = trainer->trainer->fence();
  if (!fenced) return failed(trainer, fenced.error());
  if (report != nullptr) pawl::fill_struct(report, *fenced);
  return PAWL_OK;
}

pawl_status pawl_stream_use(pawl_trainer* trainer, void* stream) {
  const pawl_status entered = enter(trainer);
  return entered != kGoOn ? entered : answer(trainer, trainer->trainer->use_stream(stream));
}

pawl_status pawl_window_open(pawl_trainer* trainer, uint64_t step, uint64_t samples) {
  const pawl_status entered = enter(trainer);
  return entered != kGoOn ? entered : answer(trainer, trainer->trainer->open_window(pawl::Step(step), samples));
}

pawl_status pawl_window_void(pawl_trainer* trainer, const char* why) {
  const pawl_status entered = enter(trainer);
  if (entered != kGoOn) return entered;
  return answer(trainer, trainer->trainer->void_window(why != nullptr ? why : "the trainer made it void"));
}

// Any thread from here to pawl_interrupted: these never retire the handle, and only a struct_size sets the error.

pawl_status pawl_progress(pawl_trainer* trainer, pawl_phase phase) {
  if (trainer == nullptr || forked(trainer)) return PAWL_INVALID;
  if (static_cast<std::uint32_t>(phase) > PAWL_PHASE_EXCHANGE) return PAWL_INVALID;
  if (!trainer->off()) trainer->trainer->progress(static_cast<std::uint32_t>(phase));
  return PAWL_OK;
}

uint64_t pawl_committed_step(const pawl_trainer* trainer) {
  if (trainer == nullptr || trainer->off() || forked(trainer)) return 0;
  return trainer->trainer->committed_step().value;
}

int pawl_event_fd(const pawl_trainer* trainer) {
  if (trainer == nullptr || trainer->off() || forked(trainer)) return -1;
  return trainer->trainer->event_fd();
}

pawl_status pawl_event_next(pawl_trainer* trainer, pawl_event* event) {
  if (trainer == nullptr || event == nullptr || forked(trainer)) return PAWL_INVALID;
  if (const pawl_status checked = check_answer(event, kEvent); checked != PAWL_OK) return checked;
  if (trainer->idle()) return PAWL_TIMEOUT;
  pawl_event next{};
  if (!trainer->trainer->next_event(next)) return PAWL_TIMEOUT;
  pawl::fill_struct(event, next);
  return PAWL_OK;
}

int pawl_interrupted(const pawl_trainer* trainer) {
  if (trainer == nullptr || trainer->idle() || forked(trainer)) return 0;
  return trainer->trainer->interrupted() ? 1 : 0;
}

pawl_status pawl_fault_report(pawl_trainer* trainer, const char* what) {
  return pawl_fault_report_lost(trainer, what, nullptr);
}

pawl_status pawl_fault_report_lost(pawl_trainer* trainer, const char* what, const char* lost) {
  const pawl_status entered = enter(trainer);
  if (entered != kGoOn) return entered;
  return answer(
      trainer, trainer->trainer->report_fault(what != nullptr ? what : "no reason given", lost != nullptr ? lost : ""));
}

pawl_status pawl_recover_join(pawl_trainer* trainer, pawl_seat* seat) {
  if (const pawl_status checked = check_answer(seat, kSeat); checked != PAWL_OK) return checked;
  const pawl_status entered = enter(trainer);
  if (entered == PAWL_OK && trainer->retired) return PAWL_BROKEN;  // there is no seat to give, whoever asks again
  if (entered == PAWL_OK && seat != nullptr) pawl::fill_struct(seat, pawl::job::seat_without_pawl());
  if (entered != kGoOn) return entered;
  const Result<pawl_seat> joined = trainer->trainer->join();
  if (!joined) return failed(trainer, joined.error());
  if (seat != nullptr) pawl::fill_struct(seat, *joined);
  return PAWL_OK;
}

pawl_status pawl_restore(pawl_trainer* trainer) {
  const pawl_status entered = enter(trainer);
  return entered != kGoOn ? entered : answer(trainer, trainer->trainer->restore());
}

pawl_status pawl_recover_done(pawl_trainer* trainer) {
  const pawl_status entered = enter(trainer);
  return entered != kGoOn ? entered : answer(trainer, trainer->trainer->finish_recovery());
}

pawl_status pawl_finish(pawl_trainer* trainer) {
  const pawl_status entered = enter(trainer);
  return entered != kGoOn ? entered : answer(trainer, trainer->trainer->finish());
}

// The rendezvous, from any thread.

pawl_status pawl_rendezvous_set(pawl_trainer* trainer, const char* key, const void* value, size_t size) {
  const pawl_status entered = enter_rendezvous(trainer, key != nullptr && is_value(value, size));
  if (entered != PAWL_OK) return entered;
  RendezvousRequest request = request_of(RendezvousOp::set, key);
  request.value = bytes_of(value, size);
  const Result<RendezvousAnswer> set = ask_rendezvous(trainer, std::move(request), pawl::Deadline::never());
  return set ? PAWL_OK : failed_anywhere(trainer, set.error());
}

pawl_status pawl_rendezvous_get(pawl_trainer* trainer, const char* key, void* value, size_t* size,
                                uint32_t timeout_ms) {
  const pawl_status entered = enter_rendezvous(trainer, key != nullptr && is_place(value, size));
  if (entered != PAWL_OK) return entered;
  const Result<RendezvousAnswer> got = ask_rendezvous(trainer, request_of(RendezvousOp::get, key),
                                                      pawl::Deadline::in(std::chrono::milliseconds(timeout_ms)));
  return got ? put_value(trainer, key, got->value, value, size) : failed_anywhere(trainer, got.error());
}

pawl_status pawl_rendezvous_get_all(pawl_trainer* trainer, const char* const* keys, size_t count, void* values,
                                    size_t* size, size_t* sizes, uint32_t timeout_ms) {
  const bool sound = keys != nullptr && sizes != nullptr && count > 0 && is_place(values, size) &&
                     std::all_of(keys, keys + count, [](const char* key) { return key != nullptr; });
  const pawl_status entered = enter_rendezvous(trainer, sound);
  if (entered != PAWL_OK) return entered;
  const auto deadline = pawl::Deadline::in(std::chrono::milliseconds(timeout_ms));
  std::string found;
  for (size_t at = 0; at < count;) {
    const std::vector<std::string> wanted(keys + at, keys + std::min(count, at + kKeysAtOnce));
    const Result<std::vector<std::string>> got = ask_for_all(trainer, wanted, deadline);
    if (!got) return failed_anywhere(trainer, got.error());
    for (const std::string& value : *got) {
      sizes[at++] = value.size();
      found += value;
    }
  }
  return put_value(trainer, keys[0], found, values, size);
}

pawl_status pawl_rendezvous_try_get(pawl_trainer* trainer, const char* key, void* value, size_t* size) {
  const pawl_status entered = enter_rendezvous(trainer, key != nullptr && is_place(value, size));
  if (entered != PAWL_OK) return entered;
  const Result<RendezvousAnswer> got =
      ask_rendezvous(trainer, request_of(RendezvousOp::try_get, key), pawl::Deadline::never());
  if (!got) return failed_anywhere(trainer, got.error());
  if (!got->found) return failed_anywhere(trainer, {Code::timeout, text("key ", key, " is not there")});
  return put_value(trainer, key, got->value, value, size);
}

pawl_status pawl_rendezvous_add(pawl_trainer* trainer, const char* key, int64_t amount, int64_t* sum) {
  const pawl_status entered = enter_rendezvous(trainer, key != nullptr);
  if (entered != PAWL_OK) return entered;
  RendezvousRequest request = request_of(RendezvousOp::add, key);
  request.amount = amount;
  const Result<RendezvousAnswer> added = ask_rendezvous(trainer, std::move(request), pawl::Deadline::never());
  if (!added) return failed_anywhere(trainer, added.error());
  if (sum != nullptr) *sum = std::strtoll(added->value.c_str(), nullptr, 10);
  return PAWL_OK;
}

pawl_status pawl_rendezvous_compare_set(pawl_trainer* trainer, const char* key, const void* expected,
                                        size_t expected_size, const void* desired, size_t desired_size, void* value,
                                        size_t* size) {
  const bool sound =
      key != nullptr && is_value(expected, expected_size) && is_value(desired, desired_size) && is_place(value, size);
  const pawl_status entered = enter_rendezvous(trainer, sound);
  if (entered != PAWL_OK) return entered;
  RendezvousRequest request = request_of(RendezvousOp::compare_set, key);
  request.expected = bytes_of(expected, expected_size);
  request.value = bytes_of(desired, desired_size);
  const Result<RendezvousAnswer> there = ask_rendezvous(trainer, std::move(request), pawl::Deadline::never());
  return there ? put_value(trainer, key, there->value, value, size) : failed_anywhere(trainer, there.error());
}

pawl_status pawl_rendezvous_delete(pawl_trainer* trainer, const char* key, int* deleted) {
  const pawl_status entered = enter_rendezvous(trainer, key != nullptr);
  if (entered != PAWL_OK) return entered;
  const Result<RendezvousAnswer> erased =
      ask_rendezvous(trainer, request_of(RendezvousOp::erase, key), pawl::Deadline::never());
  if (!erased) return failed_anywhere(trainer, erased.error());
  if (deleted != nullptr) *deleted = erased->found ? 1 : 0;
  return PAWL_OK;
}

pawl_role pawl_role_of(const pawl_trainer* trainer) {
  if (trainer == nullptr || forked(trainer)) return PAWL_ROLE_UNKNOWN;
  return trainer->off() ? PAWL_ROLE_SEATED : trainer->trainer->role();
}

uint32_t pawl_world(const pawl_trainer* trainer) {
  if (trainer == nullptr || forked(trainer)) return 0;
  return trainer->off() ? pawl::job::seat_without_pawl().world : trainer->trainer->world();
}

pawl_status pawl_stop_after(pawl_trainer* trainer, uint64_t step, uint64_t* agreed) {
  const pawl_status entered = enter(trainer);
  if (entered != PAWL_OK && entered != kGoOn) return entered;
  Result<pawl::Step> ended = pawl::Step(step);
  if (trainer->off()) ended = trainer->without.stop_after(pawl::Step(step));
  if (entered == kGoOn) ended = trainer->trainer->stop_after(pawl::Step(step));
  if (!ended) return failed(trainer, ended.error());
  if (agreed != nullptr) *agreed = ended->value;
  return PAWL_OK;
}

uint64_t pawl_stop_step(const pawl_trainer* trainer) {
  if (trainer == nullptr || forked(trainer)) return 0;
  return trainer->off() ? trainer->without.stop_step().value : trainer->trainer->stop_step().value;
}

pawl_status pawl_persist(pawl_trainer* trainer) {
  const pawl_status entered = enter(trainer);
  if (entered != kGoOn) return entered;
  if (ask_to_persist(trainer->trainer->page())) return PAWL_OK;
  return failed(trainer, {pawl::Code::invalid,
                          "this job writes no checkpoints: name a folder for them (pawl run --checkpoint DIR)"});
}

uint64_t pawl_stored_step(const pawl_trainer* trainer) {
  if (trainer == nullptr || forked(trainer) || trainer->off()) return 0;
  return stored_step(trainer->trainer->page()).value;
}

const char* pawl_status_json(pawl_trainer* trainer) {
  if (trainer == nullptr || forked(trainer)) return "{}";
  trainer->json = trainer->off() ? "{\"pawl\":\"off\"}" : trainer->trainer->status_json();
  return trainer->json.c_str();
}

}  // extern "C"
