// WatchHub: all watch streams of the embedded server, each with any number of watches.
//
// A watch is a place in the history of the key values that moves forward: its stream asks for the events from there on
// whenever it can write. Live delivery, catching up and resuming are the same code; a slow client holds no queue of ours, and
// one that falls behind what the history keeps is cancelled with the revision from which it can begin anew.
// No thread per stream: everything runs on gRPC's threads, or on the committer's that announces new events.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "job/control/server_commit.h"
#include "rpc.grpc.pb.h"

namespace pawl::job {

class WatchStream;

class WatchHub final : public etcdserverpb::Watch::CallbackService {
 public:
  explicit WatchHub(std::string token) : token_(std::move(token)) {}
  void serve(Committer* committer) { committer_ = committer; }  // before any call arrives

  grpc::ServerBidiReactor<etcdserverpb::WatchRequest, etcdserverpb::WatchResponse>* Watch(
      grpc::CallbackServerContext* context) override;

  void announce();  // there are new durable events
  void close();     // ends every stream (UNAVAILABLE: clients come back elsewhere) and those that still come

 private:
  friend class WatchStream;
  void forget(const std::shared_ptr<WatchStream>& stream);
  std::set<std::shared_ptr<WatchStream>> streams();

  std::string token_;
  Committer* committer_ = nullptr;
  std::mutex mutex_;
  std::set<std::shared_ptr<WatchStream>> streams_;
  bool closed_ = false;
};

}  // namespace pawl::job
