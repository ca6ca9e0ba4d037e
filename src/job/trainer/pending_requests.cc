#include "job/trainer/pending_requests.h"

#include <utility>

#include "base/c_status.h"
#include "base/text.h"

namespace pawl::job {

std::uint64_t PendingRequests::add(Frame frame, MessageKind answer) {
  frame.id = next_id();
  Request& request = requests_[frame.id];
  request.answer = answer;
  request.frame = encode_frame(frame);
  return frame.id;
}

void PendingRequests::repeat_all() {
  for (auto& [id, request] : requests_) request.sent = false;
}

bool PendingRequests::take(Frame& frame, std::vector<Fd> fds) {
  const auto found = requests_.find(frame.id);
  if (found == requests_.end() || found->second.result) return false;  // its request was dropped
  Request& request = found->second;
  const MessageKind kind = kind_of(frame);
  if (kind == MessageKind::refused) {
    RefusedMessage refused;
    (void)decode(frame.payload, refused);  // what is missing in it is empty: it is a refusal all the same
    request.result = Error{code_of(refused.status), refused.why};
  } else if (kind != request.answer) {
    request.result = Error{Code::broken, text("pawld answered with a message of kind ", frame.kind)};
  } else {
    request.result = Answer{std::move(frame.payload), std::move(fds)};
  }
  return true;
}

std::optional<Result<Answer>> PendingRequests::take_result(std::uint64_t id) {
  const auto found = requests_.find(id);
  if (found == requests_.end() || !found->second.result) return std::nullopt;
  std::optional<Result<Answer>> result = std::move(found->second.result);
  requests_.erase(found);
  return result;
}

}  // namespace pawl::job
