// KeeperChannel: pawld's end of the line to its keeper (docs/protocol.md). On the loop's thread.
//
// One text message a packet: the stream is one end of a pair of packet sockets. A keeper that is gone means that this node is dead: pawld ends at once.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "env/network.h"
#include "job/daemon/loop.h"
#include "job/transport/keeper_messages.h"

namespace pawl::job {

class KeeperChannel {
 public:
  struct Handlers {
    std::function<void(std::uint32_t local_index, std::uint64_t pid, std::uint64_t start_time)> spawned;
    std::function<void(const TrainerExited&)> exited;
    std::function<void()> lost;
    std::function<void(const StopAsked&)> stop = {};
  };
  KeeperChannel(Loop& loop, std::unique_ptr<Stream> keeper, Handlers handlers);

  void hold(const std::string& name, int fd);
  void drop(const std::string& name);
  void spawn_trainer(std::uint32_t local_index, std::span<const std::string> environment);
  void kill_trainer(std::uint32_t local_index);
  void show_trainer(std::uint32_t local_index, bool shown);
  void alive(Duration lease_renewed_boottime);
  void fence(const std::string& reason);
  void reset(const std::string& reason);
  void end(int code);
  // All that the keeper has said by now. The loop calls it whenever there is something to read.
  void read();

 private:
  void say(const ToKeeper& message, std::span<const int> fds = {});
  void handle(std::string_view packet);
  Loop& loop_;
  const std::unique_ptr<Stream> keeper_;
  Handlers handlers_;
};

}  // namespace pawl::job
