// Outcome: how something that may fail or be interrupted went. The sentence says what, outermost first.
#pragma once

#include <string>
#include <utility>

namespace charlm {

struct [[nodiscard]] Outcome {
  enum class Kind {
    ok,
    interrupted,  // pawl wants us back at recover_join: nothing is wrong with this call
    failed,       // the other side or the system; what is open towards it is useless now
    refused,      // trying again cannot help: the configuration is wrong
  };
  Kind kind = Kind::ok;
  std::string what;

  [[nodiscard]] bool ok() const { return kind == Kind::ok; }
  static Outcome interrupted() { return {Kind::interrupted, "interrupted"}; }
  static Outcome failed(std::string what) { return {Kind::failed, std::move(what)}; }
  static Outcome refused(std::string what) { return {Kind::refused, std::move(what)}; }
};

// Leaves the calling function with the first Outcome that is not ok.
#define CHARLM_TRY(call)                                             \
  do {                                                               \
    if (::charlm::Outcome tried = (call); !tried.ok()) return tried; \
  } while (false)

}  // namespace charlm
