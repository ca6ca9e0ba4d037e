// Which machine an address of torchrun's flags means: this one, by an address that others can't use; this one, by its own
// name or address; or another.
//
// A name that is not this machine's own is looked up by the system, which may take seconds. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pawl::job {

enum class HostKind : std::uint8_t { loopback, own, another };

// "HOST", "HOST:PORT", "[IPV6]:PORT", a bare IPv6 address: without brackets and port.
[[nodiscard]] std::string host_of(std::string_view endpoint);
// `loopback` is also an empty host, 0.0.0.0 and ::. A name that is not known is `another`.
[[nodiscard]] HostKind host_kind(const std::string& host);

}  // namespace pawl::job
