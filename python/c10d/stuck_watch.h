// StuckWatch: ends the waits that gloo itself never ends.
//
// When a connection closes, gloo tells the transfers that are queued for it, but neither those that it had begun to
// send nor the one that it was just receiving (`Pair::signalException` looks through neither `tx_` nor `rx_`). So a
// rank whose peer dies in the midst of a large tensor, or that was stopped and sends to a peer that has left, waits for
// the group's timeout, which is made for slow peers. A thread looks each second for such works and gives them up.
//
// A collective is given up when three times in a row, a second apart,
//  - the event loop of its group watched no connection (sockets.h): nothing is read into memory any more, and every
//    transfer that is begun from then on fails at once; and
//  - every worker thread of gloo in this process slept, and had slept since the second before: none of them still
//    computes, copies or waits for a disk; they wait for a transfer.
// What is given up is never freed, and neither is its group: a few threads and descriptors and the tensors in it. At
// its timeout the worker comes to an error and is then put to sleep for good, so that no work queued behind it begins
// on memory that is long used for something else. Where the kernel doesn't tell of threads, nothing is given up.
//
// NCCL's groups are asked in the same rhythm for errors of their communicators, which nobody may be waiting to hear.
//
// A send or a receive outside of collectives has no worker: who waits for it, that long without a connection, is freed
// by its abort, and nothing is kept.
#pragma once

#include <mutex>

namespace pawl {

class StuckWatch {
 public:
  static StuckWatch& only();

  StuckWatch(const StuckWatch&) = delete;
  StuckWatch& operator=(const StuckWatch&) = delete;

  // The thread, which lasts as long as the process. Any thread; only the first call does something.
  void start();

 private:
  StuckWatch() = default;

  std::once_flag started_;
};

}  // namespace pawl
