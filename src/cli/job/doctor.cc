// `pawl doctor`: checks that this machine has what pawl needs, by trying it where that does no harm.
#include <linux/io_uring.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "base/memory_kernel.h"
#include "base/text.h"
#include "cli/job/commands.h"
#include "cli/job/namespaces.h"
#include "cli/job/page_advice.h"
#include "cli/job/python_findings.h"
#include "cli/job/run_directory.h"
#include "env/files.h"
#include "env/network.h"
#include "env/process.h"
#include "env/shared_memory.h"
#include "job/membership/job_state.h"
#include "job/transport/messages.h"

namespace pawl::job {
namespace {

std::string mebibytes(std::uint64_t bytes) {
  return text(bytes >> 20, " MiB");
}

Finding check_versions() {
  return {
      "pawl", Verdict::ok,
      text(PAWL_VERSION_TEXT, ", records ", kProtocolVersion, ", peers ", kPeerWireVersion, ", compiler ", __VERSION__),
      ""};
}

Finding check_kernel() {
  utsname name{};
  unsigned major = 0, minor = 0;
  ::uname(&name);
  std::sscanf(name.release, "%u.%u", &major, &minor);
  const bool new_enough = major > 5 || (major == 5 && minor >= 9);
  return {"kernel", new_enough ? Verdict::ok : Verdict::fail, name.release,
          "pidfd and close_range need Linux 5.9 or later"};
}

Finding check_machine() {
  const std::uint64_t memory = available_memory_bytes();
  const unsigned cores = std::thread::hardware_concurrency();
  const bool enough = memory >= (1ull << 30);
  return {"memory", enough ? Verdict::ok : Verdict::warn, text(mebibytes(memory), " available, ", cores, " cores"),
          "each seat's state is kept three to five times: free some memory, or raise the control group's limit"};
}

Finding check_memory_kernel() {
  const char* wanted = std::getenv("PAWL_KERNEL");
  if (wanted != nullptr && *wanted != '\0' && find_memory_kernel(wanted) == nullptr) {
    return {"copies", Verdict::fail, text("PAWL_KERNEL=", wanted, " can't run here"),
            text("unset it, or set it to one of ", memory_kernel_names())};
  }
  const std::string_view chosen = memory_kernel().name;
  return {"copies", chosen == "portable" ? Verdict::warn : Verdict::ok,
          text("copied and summed by ", chosen, ", of ", memory_kernel_names()),
          "without instructions for CRC32C (SSE4.2 with PCLMULQDQ; Arm's CRC32) a copy with its sum takes ten times as "
          "long: capture will show in the steps"};
}

Finding check_segments() {
  const Result<Fd> segment = create_segment("doctor", 1 << 20);
  if (!segment) return {"segments", Verdict::fail, segment.error().what, "allow memfd_create, and free some memory"};
  return {"segments", Verdict::ok, "memfd segments can be made and sealed", ""};
}

Finding check_shm() {
  struct statvfs found {};
  if (::statvfs("/dev/shm", &found) != 0)
    return {"shm", Verdict::warn, "no /dev/shm",
            "mount it (mount -t tmpfs tmpfs /dev/shm): data loaders need it, pawl itself does not"};
  const std::uint64_t size = static_cast<std::uint64_t>(found.f_blocks) * found.f_frsize;
  return {"shm", size >= (256u << 20) ? Verdict::ok : Verdict::warn, text("/dev/shm has ", mebibytes(size)),
          "data loaders may run out of it: mount -o remount,size=50% /dev/shm (docker: --shm-size)"};
}

Finding check_memlock() {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  if (limit.rlim_cur == RLIM_INFINITY) return {"memlock", Verdict::ok, "unlimited", ""};
  return {"memlock", limit.rlim_cur >= (64u << 20) ? Verdict::ok : Verdict::warn, mebibytes(limit.rlim_cur),
          "pinned segments (GPU, RDMA) need more: ulimit -l unlimited"};
}

Finding check_open_files() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return {"open files", limit.rlim_cur >= 1024 ? Verdict::ok : Verdict::warn, text(limit.rlim_cur), "ulimit -n 65536"};
}

Finding check_huge_pages() {
  PageAdvice advice = advise_on_pages(find_huge_pages());
  return {"huge pages", advice.huge ? Verdict::ok : Verdict::warn, std::move(advice.found), std::move(advice.remedy)};
}

Finding check_ptrace() {
  const Result<std::string> scope = read_file("/proc/sys/kernel/yama/ptrace_scope", 64);
  const std::string value = scope ? scope->substr(0, scope->find('\n')) : "none";
  const bool fine = value == "none" || value == "0" || value == "1" || ::geteuid() == 0;
  return {"ptrace", value == "3" || !fine ? Verdict::warn : Verdict::ok, text("scope ", value),
          "a trainer that is blocked in a collective is killed instead of freed: sysctl kernel.yama.ptrace_scope=1"};
}

Finding check_namespaces() {
  const Status probed = probe_namespaces();
  return {"namespaces", probed ? Verdict::ok : Verdict::warn,
          probed ? "network, IPC, mount and host name, tried" : probed.error().what,
          "pawl run --standalone then uses loopback addresses, and drills cannot cut links"};
}

Finding check_io_uring() {
  io_uring_params parameters{};
  const long fd = ::syscall(SYS_io_uring_setup, 1, &parameters);
  const int why = errno;
  if (fd >= 0) {
    ::close(static_cast<int>(fd));
    return {"io_uring", Verdict::ok, "can be used", ""};
  }
  return {"io_uring", Verdict::warn, std::strerror(why),
          "reading and writing checkpoints is slower without it: sysctl kernel.io_uring_disabled=0, or allow it in "
          "seccomp"};
}

Finding check_etcd() {
  const Result<std::string> etcd = find_program("etcd");
  return {"etcd", etcd ? Verdict::ok : Verdict::warn, etcd ? *etcd : "not in PATH",
          "one machine does not need it; a cluster should have three or five servers (apt install etcd-server)"};
}

Finding check_ports() {
  if (Result<Fd> any = listen_tcp({"127.0.0.1", 0}); !any)
    return {"ports", Verdict::fail, any.error().what, "pawl's daemons listen on TCP: allow loopback"};
  if (Result<Fd> control = listen_tcp({"127.0.0.1", 2379}); !control)
    return {"ports", Verdict::warn, "2379 is taken on loopback",
            "`pawl control` needs another --listen; `pawl run --standalone` is not affected"};
  return {"ports", Verdict::ok, "loopback can be listened on, 2379 is free", ""};
}

Finding check_run_directory() {
  if (Status made = make_private_directory(run_root()); !made)
    return {"run directory", Verdict::fail, made.error().what, "make it writable, or choose another with PAWL_RUN_DIR"};
  const std::size_t longest = run_root().size() + std::string_view("/job-abcdef/node-1000/pawld.sock").size();
  return {"run directory", longest < 100 ? Verdict::ok : Verdict::fail, run_root(),
          "socket paths would be too long: set PAWL_RUN_DIR to a shorter directory"};
}

Finding check_python() {
  const Result<std::string> python = find_program("python3");
  return {"python3", python ? Verdict::ok : Verdict::warn, python ? *python : "not in PATH",
          "only Python trainers need it"};
}

// Found, not imported: importing torch takes seconds.
Finding check_package(const char* name, const char* remedy) {
  SpawnOptions options;
  const char* interpreter = std::getenv("PYTHON_EXEC");
  options.argv = {interpreter != nullptr ? interpreter : "python3", "-c",
                  text("import importlib.util, sys; sys.exit(importlib.util.find_spec('", name, "') is None)")};
  const Result<Process> process = spawn(options);
  const Result<Exit> exit =
      process ? wait_exit(process->pidfd.get(), Deadline::in(std::chrono::seconds(10))) : Result<Exit>(process.error());
  const bool found = exit && exit->clean();
  return {name, found ? Verdict::ok : Verdict::warn, text(found ? "found by " : "not found by ", options.argv.front()),
          remedy};
}

}  // namespace

int command_doctor(const DoctorOptions& options) {
  if (options.python) {
    const char* named = std::getenv("PYTHON_EXEC");
    const std::string otherwise = named != nullptr ? named : "python3";
    return print_findings(findings_in_python(options.python->empty() ? otherwise : *options.python), options.json);
  }
  const std::vector<Finding> findings = {
      check_versions(),
      check_kernel(),
      check_machine(),
      check_memory_kernel(),
      check_segments(),
      check_shm(),
      check_memlock(),
      check_open_files(),
      check_huge_pages(),
      check_ptrace(),
      check_namespaces(),
      check_io_uring(),
      check_etcd(),
      check_ports(),
      check_run_directory(),
      check_python(),
      check_package("torch",
                    "only PyTorch trainers need it: pip install torch, or name its interpreter with PYTHON_EXEC"),
      check_package(
          "pawl",
          "only Python trainers need it: pip install pawl's wheel (make wheel); pawl doctor --python says more")};
  return print_findings(findings, options.json);
}

}  // namespace pawl::job
