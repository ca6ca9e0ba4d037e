// Result<T>: a value, or an Error that says what failed and what the caller can do next.
//
// pawl's C++ throws nothing (src/ builds with -fno-exceptions): every failing path is visible at its call.
// Member names follow std::expected, so that it can become an alias when our compilers have it.
// Thread-safe as any value is.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace pawl {

// Named by what the caller can do next. A new code needs a caller that acts on it.
enum class Code : unsigned char {
  invalid,      // the request itself is wrong: fix it
  not_found,    // no such thing: create it, or ask for another
  stale,        // it has moved on (generation, revision): look again
  full,         // no room: free some, or wait
  timeout,      // the deadline passed: retry, or escalate
  unreachable,  // the other side is gone: it may be dead
  corrupt,      // the bytes are wrong: use another source
  io,           // the system refused: see the cause in `what`
  cancelled,    // somebody ended it on purpose
  broken,       // our own mistake: report it
};

[[nodiscard]] const char* name_of(Code code);

struct Error {
  Code code = Code::broken;
  std::string what;  // outermost first: "restore step 1200: seat 7: bucket 3: checksum differs"

  // The same error seen from one call further out.
  [[nodiscard]] Error within(std::string outer) &&;
};

// Error{code, what} with strerror(errno_value) appended to `what`.
[[nodiscard]] Error system_error(std::string what, int errno_value);

// The storage is a plain union and not std::variant, which takes several times as long to compile, in every file.
template <class T>
class [[nodiscard]] Result {
 public:
  using value_type = T;
  Result(T value) : value_(std::move(value)), has_value_(true) {}       // NOLINT: implicit by design
  Result(Error error) : error_(std::move(error)), has_value_(false) {}  // NOLINT
  Result(Result&& other) noexcept : has_value_(other.has_value_) {
    if (has_value_) {
      std::construct_at(&value_, std::move(other.value_));
    } else {
      std::construct_at(&error_, std::move(other.error_));
    }
  }
  Result(const Result& other) requires std::is_copy_constructible_v<T> : has_value_(other.has_value_) {
    if (has_value_) {
      std::construct_at(&value_, other.value_);
    } else {
      std::construct_at(&error_, other.error_);
    }
  }
  Result& operator=(Result other) noexcept {
    std::destroy_at(this);
    return *std::construct_at(this, std::move(other));
  }
  ~Result() {
    if (has_value_) {
      value_.~T();
    } else {
      error_.~Error();
    }
  }

  [[nodiscard]] bool has_value() const { return has_value_; }
  explicit operator bool() const { return has_value_; }
  [[nodiscard]] T& value() & { return value_; }
  [[nodiscard]] const T& value() const& { return value_; }
  [[nodiscard]] T&& value() && { return std::move(value_); }
  [[nodiscard]] Error& error() & { return error_; }
  [[nodiscard]] const Error& error() const& { return error_; }
  [[nodiscard]] Error&& error() && { return std::move(error_); }
  T& operator*() & { return value_; }
  const T& operator*() const& { return value_; }
  T&& operator*() && { return std::move(value_); }
  T* operator->() { return &value_; }
  const T* operator->() const { return &value_; }
  [[nodiscard]] T value_or(T other) const& { return has_value_ ? value_ : std::move(other); }

 private:
  union {
    T value_;
    Error error_;
  };
  bool has_value_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT: implicit by design

  [[nodiscard]] bool has_value() const { return !error_.has_value(); }
  explicit operator bool() const { return has_value(); }
  [[nodiscard]] Error& error() & { return *error_; }
  [[nodiscard]] const Error& error() const& { return *error_; }
  [[nodiscard]] Error&& error() && { return std::move(*error_); }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

}  // namespace pawl

#define PAWL_JOIN_(a, b) a##b
#define PAWL_JOIN(a, b) PAWL_JOIN_(a, b)

// PAWL_TRY(call): returns the error of a failed call to our own caller.
#define PAWL_TRY(call)                                                                     \
  do {                                                                                     \
    if (auto pawl_status_ = (call); !pawl_status_) return std::move(pawl_status_).error(); \
  } while (false)

// PAWL_ASSIGN(auto x, call): the value of the call into x, or its error to our own caller.
#define PAWL_ASSIGN(declaration, call) PAWL_ASSIGN_(PAWL_JOIN(pawl_result_, __LINE__), declaration, call)
#define PAWL_ASSIGN_(temporary, declaration, call)     \
  auto temporary = (call);                             \
  if (!temporary) return std::move(temporary).error(); \
  declaration = std::move(temporary).value()
