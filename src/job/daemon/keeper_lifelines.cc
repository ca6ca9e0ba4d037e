#include "job/daemon/keeper_lifelines.h"

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace pawl::job {

namespace {
constexpr std::uint32_t kHelloBytesMax = 4096;
}  // namespace

Result<std::unique_ptr<KeeperLifelines>> KeeperLifelines::start(const Environment& environment,
                                                                std::unique_ptr<Listener> listener, Options options) {
  PAWL_ASSIGN(std::unique_ptr<Loop> loop, Loop::make(environment));
  std::unique_ptr<KeeperLifelines> made(new KeeperLifelines(std::move(loop), std::move(listener), std::move(options)));
  made->task_ = environment.tasks.start("lifelines", [self = made.get()] { self->loop_->run(); });
  return made;
}

KeeperLifelines::KeeperLifelines(std::unique_ptr<Loop> loop, std::unique_ptr<Listener> listener, Options options)
    : loop_(std::move(loop)),
      options_(std::move(options)),
      acceptor_(*loop_, std::move(listener), [this](std::unique_ptr<Stream> stream) { accept(std::move(stream)); }) {
  loop_->post([this] { close_silent(); });
}

KeeperLifelines::~KeeperLifelines() {
  loop_->stop();
  task_->join();
}

void KeeperLifelines::begin_life(Incarnation incarnation) {
  loop_->post([this, incarnation] {
    life_ = incarnation;
    for (const Line& line : lines_) line.connection->close();
    lines_.clear();
    accept_more();
  });
}

std::size_t KeeperLifelines::count(bool strangers) const {
  return static_cast<std::size_t>(std::count_if(lines_.begin(), lines_.end(),
                                                [&](const Line& line) { return line.node.has_value() != strangers; }));
}

KeeperLifelines::Line* KeeperLifelines::find(const Handle& connection) {
  const auto found =
      std::find_if(lines_.begin(), lines_.end(), [&](const Line& line) { return line.connection == connection; });
  return found != lines_.end() ? &*found : nullptr;
}

void KeeperLifelines::accept_more() {
  if (life_.value != 0 && count(true) < options_.strangers_max)
    acceptor_.start();
  else
    acceptor_.stop();
}

void KeeperLifelines::accept(std::unique_ptr<Stream> stream) {
  auto weak = std::make_shared<std::weak_ptr<Connection>>();
  const Handle connection = Connection::make(*loop_, std::move(stream),
                                             {.on_frame =
                                                  [this, weak](Frame& frame) {
                                                    if (const Handle self = weak->lock()) on_frame(self, frame);
                                                  },
                                              .on_close =
                                                  [this, weak](const Error&) {
                                                    if (const Handle self = weak->lock()) close(self);
                                                  },
                                              .payload_bytes_max = kHelloBytesMax});
  *weak = connection;
  lines_.push_back({connection, std::nullopt, loop_->environment().clock.now()});
  accept_more();
}

std::optional<PeerRefusedMessage> KeeperLifelines::judge(const Frame& frame, NodeId& node) const {
  Hello hello;
  if (!is<Hello>(frame) || !decode(frame.payload, hello))
    return PeerRefusedMessage{PeerRefusal::never, "not pawl's protocol"};
  if (hello.version != kPeerWireVersion)
    return PeerRefusedMessage{PeerRefusal::never, text("this is version ", kPeerWireVersion, ", yours ", hello.version,
                                                       ": run one release on all nodes")};
  if (hello.job != options_.job)
    return PeerRefusedMessage{PeerRefusal::stale, text("another job (", options_.job, ") has this address")};
  if (hello.token != options_.token)
    return PeerRefusedMessage{PeerRefusal::never, "wrong token: all nodes of a job share one"};
  if (hello.purpose != Purpose::lifeline) return PeerRefusedMessage{PeerRefusal::never, "this port is for lifelines"};
  if (hello.expected != life_) return PeerRefusedMessage{PeerRefusal::stale, "that life of this node is over"};
  node = hello.node;
  return std::nullopt;
}

void KeeperLifelines::on_frame(const Handle& connection, const Frame& frame) {
  Line* const line = find(connection);
  if (line == nullptr) return;
  if (line->node) {
    line->heard = loop_->environment().clock.now();
    if (!is<BeatMessage>(frame)) return close(connection);
    return connection->send(frame_of(BeatBackMessage{}));
  }
  NodeId node;
  if (const auto refused = judge(frame, node)) {
    connection->send(frame_of(*refused));
    return close(connection);
  }
  welcome(connection, node);
}

void KeeperLifelines::welcome(const Handle& connection, NodeId node) {
  const auto goes_before = [&](const Line& a, const Line& b) {
    if ((a.node == node) != (b.node == node)) return a.node == node;
    if (a.node.has_value() != b.node.has_value()) return a.node.has_value();
    return a.heard < b.heard;
  };
  const Line& first = *std::min_element(lines_.begin(), lines_.end(), goes_before);
  const bool goes = first.node == node || (first.node && count(false) >= options_.lines_max);
  if (goes) close(Handle(first.connection));
  Line* const line = find(connection);
  line->node = node;
  line->heard = loop_->environment().clock.now();
  connection->send(frame_of(WelcomeMessage{options_.node, life_}));
  accept_more();
}

void KeeperLifelines::close(const Handle& connection) {
  connection->close();
  std::erase_if(lines_, [&](const Line& line) { return line.connection == connection; });
  accept_more();
}

void KeeperLifelines::close_silent() {
  const Duration now = loop_->environment().clock.now();
  std::vector<Handle> silent;
  for (const Line& line : lines_)
    if (now - line.heard > (line.node ? options_.silence : options_.greeting)) silent.push_back(line.connection);
  for (const Handle& connection : silent) close(connection);
  loop_->after(options_.greeting / 2, [this] { close_silent(); });
}

}  // namespace pawl::job
