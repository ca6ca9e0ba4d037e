// The extension as Python sees it; python/pawl/groups.py says what each call promises.
#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "build_log.h"
#include "device_work.h"
#include "draining_work.h"
#include "forked.h"
#include "generation.h"
#include "interrupt.h"
#include "library.h"
#include "managed_group.h"
#include "store.h"

// Read out of the file before it is loaded: _extension.py refuses one that was built for another torch or Python.
extern "C" __attribute__((used, visibility("default"))) const char pawl_c10d_built_for[] =
    "pawl_c10d built for torch=" PAWL_TORCH_VERSION " abi=" PAWL_TORCH_ABI " python=" PAWL_PYTHON_ABI ";";

namespace pawl {
namespace {

void use_library(const std::optional<std::string>& path, std::uintptr_t handle) {
  if (forked()) return;
  const py::gil_scoped_release unlocked;
  InterruptThread::only().stop();
  Library::loaded().detach();
  if (!path || handle == 0) return;
  Library::loaded().attach(*path, handle);
  InterruptThread::only().start();
}

void fail_generation(const std::string& why) {
  Generation::current().fail(Generation::current().state().number, why);
}

void wait_all() {
  OutstandingWorks::all().wait_all();
  DeviceWorks::all().wait_all();
}

bool is_in_loopback() {
  return Generation::current().state().mode == Mode::loopback;
}

void set_loopback(bool loopback) {
  if (loopback) Groups::all().close();
  Generation::current().set_loopback(loopback);
}

void replay_build_log(const py::function& fetch) {
  // Shared, since a function of Python's may be copied only with its lock.
  BuildLog::only().replay(
      [fetch = std::make_shared<py::function>(fetch)](const std::string& group) -> std::optional<std::string> {
        const auto found = (*fetch)(group).cast<std::optional<py::bytes>>();
        return found ? std::optional(std::string(*found)) : std::nullopt;
      });
}

py::dict encoded_build_log() {
  py::dict texts;
  for (const auto& [group, text] : BuildLog::only().encoded()) texts[py::str(group)] = py::bytes(text);
  return texts;
}

std::vector<std::pair<std::string, std::uintptr_t>> with_addresses(const std::vector<BuildLog::Differing>& results) {
  std::vector<std::pair<std::string, std::uintptr_t>> found;
  for (const BuildLog::Differing& each : results) found.emplace_back(each.what, each.address);
  return found;
}

std::map<std::string, std::vector<std::pair<std::string, std::uint64_t>>> digests_in_build_log() {
  std::map<std::string, std::vector<std::pair<std::string, std::uint64_t>>> found;
  for (const auto& [group, digests] : BuildLog::only().digests()) {
    auto& all = found[group];
    for (const BuildLog::Digest& each : digests) all.emplace_back(each.what, each.digest);
  }
  return found;
}

void define_build_log(py::module_& module) {
  module.def("record_build", [] { BuildLog::only().record(); });
  module.def("replay_build", &replay_build_log, py::arg("fetch"));
  module.def(
      "knows_build", [](const std::string& group) { return BuildLog::only().knows(group); }, py::arg("group"));
  module.def("end_build", [] { BuildLog::only().end(); });
  module.def("settle_build", [] { BuildLog::only().settle(); });
  module.def(
      "set_build_quiet", [](bool quiet) { BuildLog::only().set_quiet(quiet); }, py::arg("quiet"));
  module.def(
      "set_build_compared", [](bool compared) { BuildLog::only().set_compared(compared); }, py::arg("compared"));
  module.def("build_log", &encoded_build_log);
  module.def("own_in_build", [] { return BuildLog::only().own(); });
  module.def("differing_in_build", [] { return with_addresses(BuildLog::only().differing()); });
  module.def("big_in_build", [] { return with_addresses(BuildLog::only().big()); });
  module.def("left_out_of_build", [] { return BuildLog::only().left_out(); });
  module.def(
      "set_build_paused", [](bool paused) { BuildLog::only().set_paused(paused); }, py::arg("paused"));
  module.def("digests_in_build", &digests_in_build_log);
  module.def("trust_build", [] { BuildLog::only().trust(); });
  module.def("unknown_in_build", [] { return BuildLog::only().unknown(); });
}

}  // namespace

PYBIND11_MODULE(pawl_c10d, module) {
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  py::module_::import("torch.distributed");  // whose types are our bases
  module.attr("torch_version") = PAWL_TORCH_VERSION;

  py::class_<ManagedGroup, c10::intrusive_ptr<ManagedGroup>, ::c10d::Backend>(module, "ManagedGroup")
      .def(py::init(&ManagedGroup::make), py::arg("rank"), py::arg("size"), py::arg("ranks"), py::arg("timeout"),
           Unlocked())
      .def("shutdown", &ManagedGroup::shutdown)  // torch 2.6 doesn't ask its backends
      .def_property_readonly("key", [](const ManagedGroup& group) { return group.key(); });
  py::class_<PawlStore, c10::intrusive_ptr<PawlStore>, ::c10d::Store>(module, "PawlStore")
      .def(py::init<std::chrono::milliseconds>(), py::arg("timeout"));

  module.def("set_makers", &set_makers, py::arg("device"), py::arg("gloo"), py::arg("nccl"), py::arg("gpu") = 0);
  module.def("use_library", &use_library, py::arg("path"), py::arg("handle"));
  module.def("set_loopback", &set_loopback, py::arg("loopback"), Unlocked());
  module.def("in_loopback", &is_in_loopback);
  module.def(
      "open_generation",
      [](std::uint64_t generation, StorePointer store, std::string address, std::chrono::milliseconds timeout) {
        return Groups::all().open(generation, std::move(store), std::move(address), timeout);
      },
      py::arg("generation"), py::arg("store"), py::arg("address"), py::arg("timeout"), Unlocked());
  module.def(
      "close_generation", [] { Groups::all().close(); }, Unlocked());
  module.def(
      "failed", [] { return Generation::current().failed(); }, Unlocked());
  module.def(
      "lost", [] { return Generation::current().lost(); }, Unlocked());
  module.def("fail", &fail_generation, py::arg("why"), Unlocked());
  module.def("wait_all", &wait_all, Unlocked());
  module.def(
      "outstanding_count", [] { return OutstandingWorks::all().count() + DeviceWorks::all().count(); }, Unlocked());
  module.def("given_up_count", [] { return OutstandingWorks::all().given_up_count(); });
  module.def("collective_phase", &set_collective_phase, py::arg("before"), py::arg("waiting"));
  module.def("live_count", [] { return Groups::all().live_count(); });
  module.def("created_count", [] { return Groups::all().created_count(); });
  module.def(
      "count_of", [](const std::string& ranks) { return Groups::all().count_of(ranks); }, py::arg("ranks"));
  module.def("making_count", &making_count);
  define_build_log(module);
}

}  // namespace pawl
