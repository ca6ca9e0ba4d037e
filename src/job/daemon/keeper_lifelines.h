// KeeperLifelines: the keeper's end of the connections by which other nodes learn at once that this one has died.
//
// They do nothing but stand: whoever holds one to us waits for its end, which the kernel sends when the keeper dies.
// So the keeper alone has them and their listening socket: both are close-on-exec and handed to nobody. (A child holds
// copies between fork and exec, for a millisecond, and ends there if its parent has died.) What it means for the other
// side, and why that is sound: lifelines.h.
//
// Whoever connects says hello as on a link, with the job's token; the answer is welcome, then beats come and are
// answered. A stranger gets little: few may be silent at once, each not for long, and no more are accepted meanwhile; a
// node has one line, the newest; and the number of all has a limit. A thread (in the real world) with a loop of its own,
// which touches no disk.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "env/environment.h"
#include "job/daemon/acceptor.h"
#include "job/daemon/connection.h"
#include "job/daemon/loop.h"
#include "job/transport/messages.h"

namespace pawl::job {

class KeeperLifelines {
 public:
  struct Options {
    NodeId node;
    std::string job;
    std::string token;
    Duration greeting = std::chrono::seconds(1);  // a hello must have come by then
    Duration silence = std::chrono::seconds(60);  // longer than the other side lets its line be silent
    std::size_t strangers_max = 8;                // lines without a hello
    std::size_t lines_max = 256;                  // lines with one; the one that was silent for longest goes
  };
  // Fails: `full`, `io`. Accepts nobody before begin_life().
  [[nodiscard]] static Result<std::unique_ptr<KeeperLifelines>> start(const Environment& environment,
                                                                      std::unique_ptr<Listener> listener,
                                                                      Options options);
  ~KeeperLifelines();  // closes them all
  KeeperLifelines(const KeeperLifelines&) = delete;
  KeeperLifelines& operator=(const KeeperLifelines&) = delete;

  // From now on only lines to this life are welcome; those to the one before are closed. Any thread.
  void begin_life(Incarnation incarnation);

 private:
  using Handle = std::shared_ptr<Connection>;
  struct Line {
    Handle connection;
    std::optional<NodeId> node;  // nullopt: a stranger yet
    Duration heard{};
  };
  KeeperLifelines(std::unique_ptr<Loop> loop, std::unique_ptr<Listener> listener, Options options);
  void accept(std::unique_ptr<Stream> stream);
  void on_frame(const Handle& connection, const Frame& frame);
  void welcome(const Handle& connection, NodeId node);
  [[nodiscard]] std::optional<PeerRefusedMessage> judge(const Frame& frame, NodeId& node) const;
  void close(const Handle& connection);
  void close_silent();
  void accept_more();  // unless there are strangers enough
  [[nodiscard]] Line* find(const Handle& connection);
  [[nodiscard]] std::size_t count(bool strangers) const;

  const std::unique_ptr<Loop> loop_;
  const Options options_;
  Incarnation life_;
  Acceptor acceptor_;
  std::vector<Line> lines_;
  std::unique_ptr<Task> task_;
};

}  // namespace pawl::job
