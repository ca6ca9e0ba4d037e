#include "cli/job/namespaces.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "base/text.h"
#include "env/files.h"
#include "env/process.h"

namespace pawl::job {
namespace {

constexpr const char* kRemedy = "run as root or with CAP_SYS_ADMIN, or use --namespaces off";

Error namespace_error(std::string what, int errno_value) {
  const bool forbidden = errno_value == EPERM || errno_value == EACCES || errno_value == ENOSPC;
  Error error = system_error(std::move(what), errno_value);
  if (forbidden) error.what += text(": ", kRemedy);
  return error;
}

Result<Fd> open_namespace(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return namespace_error(text("open namespace ", path), errno);
  return fd;
}

Result<Fd> own_network() {
  return open_namespace("/proc/thread-self/ns/net");
}

Status enter_network(const Fd& network) {
  if (::setns(network.get(), CLONE_NEWNET) != 0) return namespace_error("enter network namespace", errno);
  return {};
}

Result<Fd> new_network() {
  if (::unshare(CLONE_NEWNET) != 0) return namespace_error("make network namespace", errno);
  return own_network();
}

// Runs the lines as one `ip` process, in the namespace of this thread.
Status run_ip(const std::string& lines, const std::vector<Fd>& keep = {}) {
  const Fd input(::memfd_create("ip", MFD_CLOEXEC));
  const Fd output(::memfd_create("ip-output", MFD_CLOEXEC));
  if (!input.valid() || !output.valid()) return system_error("ip: memfd", errno);
  if (::pwrite(input.get(), lines.data(), lines.size(), 0) != static_cast<ssize_t>(lines.size()))
    return system_error("ip: write", errno);
  SpawnOptions options;
  options.argv = {"ip", "-batch", "-"};
  options.stdin_fd = input.get();
  options.stdout_fd = options.stderr_fd = output.get();
  for (const Fd& fd : keep) options.keep_fds.push_back(fd.get());
  Result<Process> process = spawn(options);
  if (!process && process.error().code == Code::not_found)
    return Error{Code::not_found, "no `ip` in PATH: install iproute2, or use --namespaces off"};
  if (!process) return std::move(process).error();
  PAWL_ASSIGN(const Exit exit, wait_exit(process->pidfd.get(), Deadline::in(std::chrono::seconds(30))));
  if (exit.clean()) return {};
  std::string said(512, '\0');
  const ssize_t size = ::pread(output.get(), said.data(), said.size(), 0);
  said.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  while (!said.empty() && said.back() == '\n') said.pop_back();
  for (char& c : said)
    if (c == '\n') c = ' ';
  return Error{Code::io, text("ip ", exit.describe(), ": ", said)};
}

// More nodes than this ask the kernel for more neighbours' hardware addresses than it remembers, for all namespaces of the
// machine together (net.ipv4.neigh.default.gc_thresh3, 1024 as a rule): a node that has just died then makes room for nobody, and
// who would be its neighbour is not found. So these are told theirs, for ever: what is told is not counted.
constexpr std::size_t kAskingNodesMax = 28;

constexpr const char* kFabricHardware = "02:70:61:77:ff:ff";
std::string node_hardware(std::size_t node) {
  constexpr char kDigits[] = "0123456789abcdef";
  return text("02:70:61:77:00:", kDigits[node / 16 % 16], kDigits[node % 16]);
}
static_assert(kFabricNodesMax <= 256);

// The other nodes' hardware addresses, and the fabric's, for the device of one of them; of the fabric: `self` is none.
std::string neighbours(std::size_t node_count, std::size_t self, const char* device) {
  std::string lines;
  const auto add = [&](const std::string& address, const std::string& hardware) {
    lines += text("neigh add ", address, " lladdr ", hardware, " dev ", device, " nud permanent\n");
  };
  for (std::size_t i = 0; i < node_count; ++i)
    if (i != self) add(fabric_node_address(static_cast<std::uint32_t>(i)), node_hardware(i));
  if (self < node_count) add(kFabricAddress, kFabricHardware);
  return lines;
}

Status lay_cables(Fabric& fabric, const Fd& self) {
  const std::size_t count = fabric.nodes.size();
  const bool are_told = count > kAskingNodesMax;
  std::string lines = text("link set lo up\nlink add pawl0 address ", kFabricHardware, " type bridge\naddr add ",
                           kFabricAddress, "/16 dev pawl0\n", "link set pawl0 up\n");
  for (std::size_t i = 0; i < count; ++i) {
    fabric.links.push_back(text("pn", i));
    lines += text("link add ", fabric.links[i], " type veth peer name eth0 address ", node_hardware(i),
                  " netns /proc/self/fd/", fabric.nodes[i].get(), "\nlink set ", fabric.links[i], " master pawl0 up\n");
  }
  if (are_told) lines += neighbours(count, count, "pawl0");
  PAWL_TRY(run_ip(lines, fabric.nodes));
  for (std::size_t i = 0; i < count; ++i) {
    PAWL_TRY(enter_network(fabric.nodes[i]));
    Status laid = run_ip(text("link set lo up\naddr add ", fabric_node_address(static_cast<std::uint32_t>(i)),
                              "/16 dev eth0\nlink set eth0 up\n", are_told ? neighbours(count, i, "eth0") : ""));
    PAWL_TRY(enter_network(self));
    PAWL_TRY(std::move(laid));
  }
  return {};
}

Result<Fabric> make_fabric_in(const Fd& self, std::uint32_t node_count) {
  Fabric fabric;
  for (std::uint32_t i = 0; i < node_count; ++i) {
    PAWL_ASSIGN(Fd node, new_network());
    fabric.nodes.push_back(std::move(node));
    PAWL_TRY(enter_network(self));
  }
  PAWL_TRY(lay_cables(fabric, self));
  return fabric;
}

}  // namespace

std::string fabric_node_address(std::uint32_t node) {
  return text("10.77.0.", 10 + node);
}

std::string fabric_hosts(std::uint32_t node_count) {
  std::string hosts = text("127.0.0.1 localhost\n::1 localhost\n", kFabricAddress, " pawl-control\n");
  for (std::uint32_t i = 0; i < node_count; ++i) hosts += text(fabric_node_address(i), " node-", i, "\n");
  return hosts;
}

Result<Fabric> make_fabric(std::uint32_t node_count) {
  PAWL_ASSIGN(const Fd before, own_network());
  PAWL_ASSIGN(const Fd self, new_network());
  Result<Fabric> fabric = make_fabric_in(self, node_count);
  if (!fabric) PAWL_TRY(enter_network(before));
  return fabric;
}

Status enter_node_namespaces(const NodeNamespaces& namespaces) {
  if (::setns(namespaces.network_fd, CLONE_NEWNET) != 0) return namespace_error("enter the node's network", errno);
  if (::unshare(CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS) != 0)
    return namespace_error("make the node's namespaces", errno);
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    return namespace_error("make mounts private", errno);
  if (::mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777") != 0)
    return namespace_error("mount the node's /dev/shm", errno);
  if (!namespaces.hosts_file.empty())
    (void)::mount(namespaces.hosts_file.c_str(), "/etc/hosts", nullptr, MS_BIND, nullptr);  // names are a comfort
  if (::sethostname(namespaces.host_name.c_str(), namespaces.host_name.size()) != 0)
    return namespace_error("name the node", errno);
  return {};
}

Status probe_namespaces() {
  const pid_t pid = ::fork();
  if (pid < 0) return system_error("fork", errno);
  if (pid == 0) {
    Result<Fabric> fabric = make_fabric(1);
    if (!fabric) ::_exit(fabric.error().code == Code::not_found ? 2 : 1);
    ::_exit(enter_node_namespaces({fabric->nodes.front().get(), "node-0", ""}) ? 0 : 3);
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  if (WIFEXITED(status) && WEXITSTATUS(status) == 2) return Error{Code::not_found, "no `ip` in PATH: install iproute2"};
  return Error{Code::io,
               "not allowed here: run as root or with CAP_SYS_ADMIN; without it nodes share loopback addresses"};
}

Status set_link(const std::string& netns_path, const std::string& link, bool up) {
  PAWL_ASSIGN(const Fd before, own_network());
  PAWL_ASSIGN(const Fd fabric, open_namespace(netns_path));
  PAWL_TRY(enter_network(fabric));
  Status done = run_ip(text("link set ", link, up ? " up" : " down", "\n"));
  PAWL_TRY(enter_network(before));
  return done;
}

}  // namespace pawl::job
