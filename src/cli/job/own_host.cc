#include "cli/job/own_host.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <strings.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "cli/job/run_directory.h"

namespace pawl::job {
namespace {

// Of an address, in the system's own spelling; empty: it is neither IPv4 nor IPv6.
std::string address_text(const sockaddr* address) {
  if (address == nullptr) return "";
  char out[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET)
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, out, sizeof out);
  else if (address->sa_family == AF_INET6)
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, out, sizeof out);
  return out;
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1" || address == "0.0.0.0" || address == "::" ||
         address.starts_with("::ffff:127.");
}

std::vector<std::string> own_addresses() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owned(first, &::freeifaddrs);
  std::vector<std::string> addresses;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next)
    if (std::string address = address_text(entry->ifa_addr); !address.empty()) addresses.push_back(std::move(address));
  return addresses;
}

std::vector<std::string> addresses_of(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &first) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(first, &::freeaddrinfo);
  std::vector<std::string> addresses;
  for (const addrinfo* entry = first; entry != nullptr; entry = entry->ai_next)
    addresses.push_back(address_text(entry->ai_addr));
  return addresses;
}

bool same_name(const std::string& a, const std::string& b) {
  return ::strcasecmp(a.c_str(), b.c_str()) == 0;
}

bool is_address(const std::string& host) {
  in6_addr six{};
  in_addr four{};
  return inet_pton(AF_INET6, host.c_str(), &six) == 1 || inet_pton(AF_INET, host.c_str(), &four) == 1;
}

}  // namespace

std::string host_of(std::string_view endpoint) {
  if (endpoint.starts_with('[')) return std::string(endpoint.substr(1, endpoint.find(']') - 1));
  if (is_address(std::string(endpoint))) return std::string(endpoint);
  return std::string(endpoint.substr(0, endpoint.rfind(':')));
}

HostKind host_kind(const std::string& host) {
  if (host.empty() || same_name(host, "localhost")) return HostKind::loopback;
  const std::string name = this_machine().host;
  if (same_name(host, name) || same_name(host, name.substr(0, name.find('.')))) return HostKind::own;
  const std::vector<std::string> addresses = addresses_of(host);
  // A host's own name is often 127.0.1.1 in /etc/hosts: on the other machines it is not.
  if (std::ranges::any_of(addresses, is_loopback)) return is_address(host) ? HostKind::loopback : HostKind::own;
  const std::vector<std::string> own = own_addresses();
  const bool here = std::ranges::any_of(
      addresses, [&](const std::string& address) { return std::ranges::find(own, address) != own.end(); });
  return here ? HostKind::own : HostKind::another;
}

}  // namespace pawl::job
