#include "job/daemon/keeper_output.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "base/text.h"

namespace pawl::job {
namespace {

constexpr std::size_t kLineBytesMax = 4000;     // below PIPE_BUF: lines of several nodes never mix
constexpr std::size_t kUnshownBytesMax = 4000;  // of a trainer whose seat isn't known yet
constexpr std::size_t kTailBytesMax = 2000;

Event make_event() {
  Result<Event> event = Event::make();
  PAWL_CHECK(event, event.error().what);
  return std::move(event).value();
}

// Only the last `size` bytes, from the beginning of a line if one begins there.
void keep_end(std::string& text, std::size_t size) {
  if (text.size() <= size) return;
  text.erase(0, text.size() - size);
  if (const std::size_t line = text.find('\n'); line + 1 < text.size()) text.erase(0, line + 1);
}

}  // namespace

struct KeeperOutput::Stream {
  Fd pipe;
  Fd log;
  std::string prefix;
  bool teed = false;
  bool log_failed = false;
  std::string pending;  // for the terminal: a line that has begun, or all that must not be shown yet

  // Under mutex_.
  bool shown = true;
  bool ended = false;
  std::string tail;
};

KeeperOutput::KeeperOutput(const KeeperOutputOptions& options) : options_(options), wake_(make_event()) {}

KeeperOutput::~KeeperOutput() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.raise();
  thread_.join();
}

Result<TrainerStreams> KeeperOutput::open(std::uint32_t local_index, Fd stdout_log, Fd stderr_log) {
  if (!thread_.running()) {
    PAWL_ASSIGN(thread_, Thread::start("output", [this] { run(); }));
  }
  const bool first_seat = (options_.tee & kTeeFirstSeat) != 0;
  const std::string index = options_.seats_per_node > 1 ? text('.', local_index) : "";
  TrainerStreams given;
  Streams streams;
  const auto make = [&](std::uint32_t bit, Fd log, Fd& end) -> Status {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return system_error("trainer output: pipe", errno);
    end.reset(ends[1]);
    auto stream = std::make_shared<Stream>();
    stream->pipe.reset(ends[0]);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    stream->log = std::move(log);
    stream->prefix = first_seat ? "" : text("[node ", options_.node, index, "] ");
    stream->teed = (options_.tee & bit) != 0 && options_.tee_fd >= 0;
    stream->shown = !first_seat;
    streams.push_back(std::move(stream));
    return {};
  };
  PAWL_TRY(make(kTeeStdout, std::move(stdout_log), given.stdout_end));
  PAWL_TRY(make(kTeeStderr, std::move(stderr_log), given.stderr_end));
  {
    const std::lock_guard lock(mutex_);
    places_[local_index] = std::move(streams);
  }
  wake_.raise();
  return given;
}

void KeeperOutput::show(std::uint32_t local_index, bool shown) {
  if ((options_.tee & kTeeFirstSeat) == 0) return;
  const std::lock_guard lock(mutex_);
  const auto found = places_.find(local_index);
  if (found == places_.end()) return;
  for (const auto& stream : found->second) stream->shown = shown;
  wake_.raise();
}

std::string KeeperOutput::close(std::uint32_t local_index, Duration patience) {
  std::unique_lock lock(mutex_);
  const auto found = places_.find(local_index);
  if (found == places_.end()) return {};
  const Streams streams = found->second;
  (void)ended_.wait_for(lock, patience,
                        [&] { return std::ranges::all_of(streams, [](const auto& stream) { return stream->ended; }); });
  places_.erase(local_index);
  wake_.raise();
  return streams.back()->tail;
}

KeeperOutput::Streams KeeperOutput::living() {
  const std::lock_guard lock(mutex_);
  Streams streams;
  for (const auto& [local_index, both] : places_)
    for (const auto& stream : both)
      if (!stream->ended) streams.push_back(stream);
  return streams;
}

void KeeperOutput::run() {
  for (;;) {
    const Streams streams = living();
    std::vector<pollfd> polled = {{wake_.fd(), POLLIN, 0}};
    for (const auto& stream : streams) polled.push_back({stream->pipe.get(), POLLIN, 0});
    if (poll(polled.data(), polled.size(), -1) < 0) continue;
    const bool woken = polled[0].revents != 0 && wake_.lower();
    for (std::size_t i = 0; i < streams.size(); ++i) {
      if (polled[i + 1].revents != 0) read(*streams[i]);
      if (woken) write_lines(*streams[i], false);  // it may be shown from now on
    }
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
  }
}

void KeeperOutput::read(Stream& stream) {
  std::array<char, 16 << 10> buffer;
  const ssize_t count = ::read(stream.pipe.get(), buffer.data(), buffer.size());
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count > 0) return pass_on(stream, {buffer.data(), static_cast<std::size_t>(count)});
  write_lines(stream, true);
  const std::lock_guard lock(mutex_);
  stream.ended = true;
  ended_.notify_all();
}

void KeeperOutput::pass_on(Stream& stream, std::string_view bytes) {
  {
    const std::lock_guard lock(mutex_);
    stream.tail += bytes;
    keep_end(stream.tail, kTailBytesMax);
  }
  if (stream.teed) stream.pending += bytes;
  write_lines(stream, false);
  write_log(stream, bytes);
}

void KeeperOutput::write_log(Stream& stream, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(stream.log.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const Error failed =
          system_error(text("pawl: node ", options_.node, ": a trainer's log can't be written"), errno);
      const std::string line = text(failed.what, "; training goes on, and what it writes is lost\n");
      if (!std::exchange(stream.log_failed, true) && options_.tee_fd >= 0) [[maybe_unused]]
        const ssize_t told = ::write(options_.tee_fd, line.data(), line.size());
      return;
    }
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  stream.log_failed = false;
}

// Whole lines. Alone on the terminal a line may also end with a carriage return, as progress bars' do.
void KeeperOutput::write_lines(Stream& stream, bool ended) {
  if (!stream.teed || stream.pending.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    if (!stream.shown) return keep_end(stream.pending, kUnshownBytesMax);
  }
  std::string_view left = stream.pending;
  while (!left.empty()) {
    const std::size_t found = left.find_first_of(stream.prefix.empty() ? "\n\r" : "\n");
    if (found == std::string_view::npos && left.size() < kLineBytesMax && !ended) break;
    const std::size_t size = std::min({found, left.size(), kLineBytesMax});
    const std::string_view terminator = size == found ? left.substr(found, 1) : std::string_view("\n");
    const std::string line = text(stream.prefix, left.substr(0, size), terminator);
    [[maybe_unused]] const ssize_t written = ::write(options_.tee_fd, line.data(), line.size());
    left.remove_prefix(size + (size == found ? 1 : 0));
  }
  stream.pending.erase(0, stream.pending.size() - left.size());
}

}  // namespace pawl::job
