// PendingRequests: what was asked of pawld and has no answer yet.
//
// A request keeps its frame until its answer is there, so that it can be repeated, with the same id, to the pawld that
// comes next. An answer whose request was dropped is ignored.
// A value: it has no lock (job/trainer/session.h has) and sends nothing.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "env/fd.h"
#include "job/transport/messages.h"

namespace pawl::job {

struct Answer {
  std::string payload;
  std::vector<Fd> fds;
};

class PendingRequests {
 public:
  // Ids are used once, also those of messages that are not kept here.
  [[nodiscard]] std::uint64_t next_id() { return ++last_id_; }

  // The new request's id. It waits for an answer of the kind `answer`.
  [[nodiscard]] std::uint64_t add(Frame frame, MessageKind answer);
  void drop(std::uint64_t id) { requests_.erase(id); }

  // send(bytes) for each request that has not been sent on this connection; it counts as sent then.
  template <class Send>
  void send_new(Send send) {
    for (auto& [id, request] : requests_) {
      if (!request.sent) send(request.frame);
      request.sent = true;
    }
  }
  // The connection is new: all are to be sent again.
  void repeat_all();

  // `frame` came, with these descriptors. False: nobody waits for it.
  [[nodiscard]] bool take(Frame& frame, std::vector<Fd> fds);
  // The answer, as pawld gave it or refused it; the request is dropped then. nullopt: it is not there yet.
  [[nodiscard]] std::optional<Result<Answer>> take_result(std::uint64_t id);

 private:
  struct Request {
    MessageKind answer{};
    std::string frame;
    bool sent = false;
    std::optional<Result<Answer>> result;
  };
  std::map<std::uint64_t, Request> requests_;  // by id
  std::uint64_t last_id_ = 0;
};

}  // namespace pawl::job
