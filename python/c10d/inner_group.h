// InnerGroup: the real group (gloo or NCCL) behind a managed one, for one generation; and how it is made.
//
// Its constructor is Python's (gloo's own headers are not in torch's wheels) and it blocks until all peers have
// connected, with nothing in it that could be cancelled. So each is made on a thread of its own, and who asked for it
// waits for that thread, for the deadline, or for the generation to fail, whichever is first. A thread that is left
// behind ends by itself, at the latest at the deadline: its sockets are shut down, its store's calls are cancelled.
// (In PyTorch 2.8 and before, one that waits for a peer that never connects ends after five times the group's timeout.)
// NCCL connects when it is made, too. Nothing ends it while it does, so all ranks meet at the store first: only if one
// dies in the moment after that, the thread stays with it.
//
// Threads: make from any thread that does not hold Python's lock; interrupt from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device_group.h"
#include "sockets.h"
#include "torch_headers.h"

namespace pawl {

// What the works of a gloo group know of it without holding it.
struct Connections {
  explicit Connections(const WatchedSockets& watched) : sockets(watched), hosts(watched.hosts()) {}
  // gloo has closed them all, so nothing that is not complete by then ever can be.
  [[nodiscard]] bool all_closed() const { return sockets.connections() == 0; }

  // Hosts to which a connection is gone by now, with blanks between (pawl_fault_report_lost).
  [[nodiscard]] std::string lost() const;

  const WatchedSockets sockets;
  const std::vector<std::string> hosts;  // of the peers, sorted
  std::atomic<bool> stuck{false};        // a work of the group was given up: the group is never freed
};

struct InnerGroup {
  BackendPointer backend;
  std::optional<WatchedSockets> sockets;     // none with NCCL, which is aborted instead
  std::shared_ptr<Connections> connections;  // of a gloo group that has connected all its peers; else null
  std::shared_ptr<DeviceGroup> device;       // of a NCCL group; else null

  // Ends what blocks in gloo, for good. Any thread.
  void interrupt() const;
};

struct InnerOrder {
  bool on_device = false;  // of CUDA tensors
  StorePointer store;      // with the group's own prefix
  int rank = 0;
  int size = 1;
  std::string address;                             // of this node; gloo binds to it
  std::chrono::milliseconds timeout{0};            // of each collective
  std::chrono::milliseconds deadline_after{0};     // how long it may take, for the message
  std::chrono::steady_clock::time_point deadline;  // when it must be made
  std::uint64_t generation = 0;
};

struct InnerAnswer {
  std::shared_ptr<InnerGroup> group;  // null: it could not be made
  std::string why;
};

// Python's constructors, called with the interpreter lock held:
//   device(address) -> gloo device;  gloo(device, store, rank, size, seconds) -> Backend
//   nccl(store, rank, size, seconds) -> Backend, or None where torch has no NCCL or the job no GPU
// `gpu`: the index of the job's. A test without one gives -1: tensors on the CPU then go the way of those on it.
void set_makers(py::object device, py::object gloo, py::object nccl, int gpu);
// Whether a tensor on that type of device goes to the NCCL group.
bool goes_to_device(at::DeviceType type);
// The kinds of inner groups that are made, by InnerOrder::on_device.
std::vector<bool> made_kinds();

InnerAnswer make_inner_group(const InnerOrder& order);
// Ends the wait of everyone in make_inner_group whose generation has failed. Any thread.
void interrupt_making();
// Threads that are making a group, also those that were left behind.
std::size_t making_count();

}  // namespace pawl
