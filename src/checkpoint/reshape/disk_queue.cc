#include "checkpoint/reshape/disk_queue.h"

#include <liburing.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <utility>
#include <vector>

#include "env/files.h"

namespace pawl::checkpoint {
namespace {

constexpr std::uint64_t kTransferMax = std::uint64_t{1} << 30;  // of one system call

// Takes what one transfer came to into account. True: the request is answered.
bool settle(std::int64_t result, const DiskRequest& request, DiskAnswer& answer) {
  if (result == -EINTR || result == -EAGAIN) return false;
  if (result < 0) {
    answer.error = static_cast<int>(-result);
    return true;
  }
  if (result == 0) {  // a write that does nothing has no room
    if (request.write) answer.error = ENOSPC;
    return true;
  }
  answer.bytes += static_cast<std::uint64_t>(result);
  return answer.bytes >= request.enough_bytes;
}

class PlainQueue final : public DiskQueue {
 public:
  void push(const DiskRequest& request) override {
    DiskAnswer answer{.tag = request.tag};
    if (request.address != nullptr) {
      Result<std::size_t> got = request.address->read_at(request.offset_bytes, {request.memory, request.size_bytes});
      if (got) answer.bytes = *got;
      if (!got) answer.failure = std::move(got).error();
      return answers_.push_back(std::move(answer));
    }
    for (;;) {
      std::byte* memory = request.memory + answer.bytes;
      const std::uint64_t size = std::min(request.size_bytes - answer.bytes, kTransferMax);
      const auto offset = static_cast<off_t>(request.offset_bytes + answer.bytes);
      const ssize_t count =
          request.write ? ::pwrite(request.fd, memory, size, offset) : ::pread(request.fd, memory, size, offset);
      if (settle(count < 0 ? -errno : count, request, answer)) break;
    }
    answers_.push_back(answer);
  }

  DiskAnswer wait() override {
    DiskAnswer answer = std::move(answers_.front());
    answers_.pop_front();
    return answer;
  }

  bool uses_io_uring() const override { return false; }

 private:
  std::deque<DiskAnswer> answers_;
};

class RingQueue final : public DiskQueue {
 public:
  RingQueue(const io_uring& ring, std::uint32_t depth) : ring_(ring), flights_(depth) {
    for (std::uint32_t i = 0; i < depth; ++i) free_.push_back(i);
  }
  RingQueue(const RingQueue&) = delete;
  RingQueue& operator=(const RingQueue&) = delete;
  ~RingQueue() override {
    while (free_.size() < flights_.size()) (void)wait();
    io_uring_queue_exit(&ring_);
  }

  void push(const DiskRequest& request) override {
    const std::uint32_t number = free_.back();
    free_.pop_back();
    flights_[number] = {request, {.tag = request.tag}};
    enter(number);
  }

  DiskAnswer wait() override {
    for (;;) {
      io_uring_cqe* entry = nullptr;
      if (io_uring_peek_cqe(&ring_, &entry) != 0) {
        (void)io_uring_submit_and_wait(&ring_, 1);  // interrupted: there is nothing to peek at, and it's called again
        waiting_ = 0;
        continue;
      }
      const auto number = static_cast<std::uint32_t>(io_uring_cqe_get_data64(entry));
      const std::int64_t result = entry->res;
      io_uring_cqe_seen(&ring_, entry);
      Flight& flight = flights_[number];
      if (!settle(result, flight.request, flight.answer)) {
        enter(number);
        continue;
      }
      free_.push_back(number);
      return flight.answer;
    }
  }

  bool uses_io_uring() const override { return true; }

 private:
  struct Flight {
    DiskRequest request;
    DiskAnswer answer;
  };

  void enter(std::uint32_t number) {
    const Flight& flight = flights_[number];
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);  // there are as many as flights
    while (entry == nullptr) {
      (void)io_uring_submit(&ring_);
      entry = io_uring_get_sqe(&ring_);
    }
    std::byte* memory = flight.request.memory + flight.answer.bytes;
    const auto size = static_cast<unsigned>(std::min(flight.request.size_bytes - flight.answer.bytes, kTransferMax));
    const std::uint64_t offset = flight.request.offset_bytes + flight.answer.bytes;
    if (flight.request.write) {
      io_uring_prep_write(entry, flight.request.fd, memory, size, offset);
    } else {
      io_uring_prep_read(entry, flight.request.fd, memory, size, offset);
    }
    io_uring_sqe_set_data64(entry, number);
    // Small ones wait for company; large ones start now, while the caller copies.
    if (size >= kLarge || ++waiting_ >= kWaitingMax) {
      (void)io_uring_submit(&ring_);
      waiting_ = 0;
    }
  }

  static constexpr unsigned kLarge = 64 << 10;
  static constexpr std::uint32_t kWaitingMax = 32;

  io_uring ring_;
  std::vector<Flight> flights_;
  std::vector<std::uint32_t> free_;
  std::uint32_t waiting_ = 0;
};

}  // namespace

std::unique_ptr<DiskQueue> make_disk_queue(std::uint32_t depth, bool io_uring) {
  struct io_uring ring {};
  if (io_uring && io_uring_queue_init(depth, &ring, 0) == 0) return std::make_unique<RingQueue>(ring, depth);
  return std::make_unique<PlainQueue>();
}

}  // namespace pawl::checkpoint
