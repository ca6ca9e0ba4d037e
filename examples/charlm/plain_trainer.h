// PlainTrainer: the calls of pawl::Trainer that charlm makes, without pawl. Nothing is protected, nothing recovered.
#pragma once

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string>

#include "pawl/pawl.hpp"  // for its types; nothing of libpawl is called

namespace charlm {

class PlainTrainer {
 public:
  using Status = pawl::Status;

  // Who this process is: RANK and WORLD_SIZE; alone if they are not set.
  Status attach() {
    if (number("RANK", 0, &seat_.rank) && number("WORLD_SIZE", 1, &seat_.world) && seat_.rank < seat_.world) {
      seat_.seat = seat_.rank;
      return Status::ok;
    }
    error_ = "RANK and WORLD_SIZE must be numbers, and RANK the smaller one";
    return Status::invalid;
  }
  [[nodiscard]] const char* error() const { return error_; }
  Status recover_join(pawl::Seat* seat) {
    *seat = seat_;
    return Status::ok;
  }
  Status mesh_add(const std::string&, const std::vector<pawl::Axis>&) { return Status::ok; }
  template <class Value>
  Status tensor_add(const std::string&, Value*, const pawl::Shape&, const pawl::TensorOptions&) {
    return Status::ok;
  }
  template <class Save, class Load>
  Status blob_add(const std::string&, std::size_t, Save, Load) {
    return Status::ok;
  }
  Status layout_seal() { return Status::ok; }
  Status restore() { return Status::ok; }
  Status recover_done() { return Status::ok; }
  Status step_begin(std::uint64_t) { return Status::ok; }
  Status fence(pawl::FenceReport*) { return Status::ok; }
  Status window_open(std::uint64_t, std::uint64_t) { return Status::ok; }
  Status progress(pawl::Phase) { return Status::ok; }
  Status finish() { return Status::ok; }
  Status fault_report(const std::string&, const std::string&) { return Status::unreachable; }
  [[nodiscard]] int event_fd() const { return -1; }
  Status event_next(pawl::Event*) { return Status::timeout; }
  [[nodiscard]] bool interrupted() const { return false; }
  Status identity(pawl::Seat* seat) const {
    *seat = seat_;
    return Status::ok;
  }
  Status rendezvous_set(const std::string&, const std::string&) { return Status::unreachable; }
  Status rendezvous_get(const std::string&, std::string*, std::chrono::milliseconds) { return Status::unreachable; }

 private:
  static bool number(const char* name, std::uint32_t otherwise, std::uint32_t* value) {
    const char* text = std::getenv(name);
    *value = otherwise;
    if (text == nullptr) return true;
    const char* end = text + std::strlen(text);
    const auto parsed = std::from_chars(text, end, *value);
    return parsed.ec == std::errc() && parsed.ptr == end;
  }
  pawl::Seat seat_{};
  const char* error_ = "";
};

}  // namespace charlm
