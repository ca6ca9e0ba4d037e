#include "job/daemon/peer_listener.h"

#include "base/text.h"
#include "env/network.h"
#include "job/recovery/absent_members.h"

namespace pawl::job {

std::optional<PeerRefusedMessage> judge_hello(const Hello& hello, const HelloJudge& judge) {
  using Refused = PeerRefusedMessage;
  if (hello.version != kPeerWireVersion)
    return Refused{PeerRefusal::never, text("this is version ", kPeerWireVersion, ", yours ", hello.version,
                                            ": run one release on all nodes")};
  if (hello.job != judge.job) return Refused{PeerRefusal::stale, "another job (" + judge.job + ") has this address"};
  if (hello.token != judge.token) return Refused{PeerRefusal::never, "wrong token: all nodes of a job share one"};
  if (hello.expected.value != 0 && hello.expected != judge.self.incarnation)
    return Refused{PeerRefusal::stale, "that life of this node is over"};
  const NodeLife life{hello.node, hello.incarnation};
  if (judge.state != nullptr && is_evicted(*judge.state, life))
    return Refused{PeerRefusal::evicted, "you were evicted"};
  if (hello.purpose == Purpose::link) return std::nullopt;
  // Whose state is later than this node's is heard, too: what it reports waits for that state.
  if (hello.purpose == Purpose::report && (judge.state == nullptr || hello.generation >= judge.state->generation))
    return std::nullopt;
  if (judge.state == nullptr || hello.generation > judge.state->generation)
    return Refused{PeerRefusal::later, "not yet in that generation"};
  if (hello.generation < judge.state->generation) return Refused{PeerRefusal::stale, "that generation is over"};
  const std::vector<Member>& seats = judge.state->seats;
  const bool of_a_seat = hello.purpose == Purpose::data || hello.purpose == Purpose::lane;
  if (of_a_seat && !(hello.seat.value < seats.size() && seats[hello.seat.value].life == life))
    return Refused{PeerRefusal::stale, "that seat is not yours"};
  if (of_a_seat || hello.purpose == Purpose::fetch) return std::nullopt;
  return Refused{PeerRefusal::never, "unknown purpose"};
}

PeerListener::PeerListener(Loop& loop, NodeContext& context, std::string token, std::unique_ptr<Listener> listener,
                           Handlers handlers)
    : other_versions_(context.metrics.counter("peers_of_other_version_total",
                                              "Connections of nodes that run another version of pawl, refused.")),
      loop_(loop),
      context_(context),
      token_(std::move(token)),
      handlers_(std::move(handlers)),
      acceptor_(loop, std::move(listener), [this](std::unique_ptr<Stream> stream) { adopt(std::move(stream)); }) {}

void PeerListener::open() {
  acceptor_.start();
  close_silent();
}

void PeerListener::close_silent() {
  const Duration now = context_.clock->now();
  std::erase_if(connections_, [&](const auto& known) {
    const Deadlines& deadlines = context_.deadlines;
    const Duration most = known.second.reporter ? deadlines.restore : deadlines.silence;  // it speaks twice a recovery
    const bool silent = now - known.second.heard > most;
    if (silent) known.first->close();
    return silent;
  });
  context_.after(context_.deadlines.silence / 2, [this] { close_silent(); });
}

void PeerListener::adopt(std::unique_ptr<Stream> accepted) {
  auto weak = std::make_shared<std::weak_ptr<Connection>>();
  auto connection = Connection::make(loop_, std::move(accepted),
                                     {.on_frame =
                                          [this, weak](Frame& frame) {
                                            if (auto c = weak->lock()) on_frame(c, frame);
                                          },
                                      .on_close =
                                          [this, weak](const Error&) {
                                            if (auto c = weak->lock()) connections_.erase(c);
                                          }});
  *weak = connection;
  connections_[connection].heard = context_.clock->now();
}

void PeerListener::on_frame(const ConnectionHandle& connection, const Frame& frame) {
  const auto known = connections_.find(connection);
  if (known != connections_.end()) known->second.heard = context_.clock->now();
  if (known != connections_.end() && known->second.node) return on_link_frame(*known->second.node, connection, frame);
  if (known != connections_.end() && known->second.reporter)
    return handlers_.on_collect(connection, *known->second.reporter, frame);
  if (is<QuestionMessage>(frame))
    return connection->send(frame_of(AnswerMessage{handlers_.on_question(frame.payload)}, frame.id));
  on_hello(connection, frame);
  if (!connection->is_open()) connections_.erase(connection);  // a thread has its socket now
}

void PeerListener::on_hello(const ConnectionHandle& connection, const Frame& frame) {
  Hello hello;
  if (!is<Hello>(frame) || !decode(frame.payload, hello))
    return connection->send(frame_of(PeerRefusedMessage{PeerRefusal::never, "not pawl's protocol"}));
  const JobMirror& mirror = context_.mirror;
  const JobState* state = mirror.has_state() ? &mirror.state() : nullptr;
  if (hello.version != kPeerWireVersion) other_versions_.add();
  if (const auto refused = judge_hello(hello, {context_.self, context_.job, token_, state}))
    return connection->send(frame_of(*refused));
  if (hello.purpose == Purpose::data || hello.purpose == Purpose::lane) return handlers_.on_data(connection, hello);
  if (hello.purpose == Purpose::fetch) return handlers_.on_fetch(connection);
  if (hello.purpose == Purpose::report) {
    connections_[connection] = {std::nullopt, NodeLife{hello.node, hello.incarnation}, context_.clock->now()};
    return connection->send(frame_of(WelcomeMessage{context_.self.node, context_.self.incarnation}));
  }
  // What an older link of that node still brings is older than what it has said already: a report that came late over a
  // slow network would undo a later one.
  std::weak_ptr<Connection>& link = links_[hello.node];
  if (const ConnectionHandle older = link.lock(); older && older != connection) {
    older->close();
    connections_.erase(older);
  }
  link = connection;
  connection->send(frame_of(WelcomeMessage{context_.self.node, context_.self.incarnation}));
  connections_[connection] = {hello.node, std::nullopt, context_.clock->now()};
}

void PeerListener::on_link_frame(NodeId node, const ConnectionHandle& connection, const Frame& frame) {
  switch (kind_of(frame)) {
    case MessageKind::beat:
      if (const auto message = message_in<BeatMessage>(frame)) handlers_.on_beat(node, message->generation);
      return connection->send(frame_of(BeatBackMessage{}));
    case MessageKind::report:
      if (const auto message = message_in<ReportMessage>(frame))
        handlers_.on_report(node, message->generation, message->report);
      return;
    case MessageKind::pace:
      if (const auto message = message_in<PaceMessage>(frame))
        handlers_.on_paces(node, message->generation, message->paces);
      return;
    case MessageKind::equal_sums:
      if (const auto message = message_in<EqualSumsMessage>(frame))
        handlers_.on_equal_sums(node, message->generation, message->sums);
      return;
    case MessageKind::narrow:
      if (const auto message = message_in<NarrowMessage>(frame)) handlers_.on_narrow(*message);
      return;
    case MessageKind::persist:
      if (const auto message = message_in<PersistMessage>(frame)) handlers_.on_persist(node, *message);
      return;
    case MessageKind::progress:
      if (const auto message = message_in<ProgressMessage>(frame))
        handlers_.on_progress(message->generation, message->progress);
      return;
    case MessageKind::peer_rendezvous:
      if (auto message = message_in<PeerRendezvousMessage>(frame))
        handlers_.on_rendezvous(connection, frame.id, std::move(*message));
      return;
    default:
      return;
  }
}

}  // namespace pawl::job
