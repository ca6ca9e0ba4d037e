#include "job/daemon/neighbours.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace pawl::job {

Neighbours::Neighbours(Loop& loop, Hello self, Deadlines deadlines, Handlers handlers)
    : loop_(loop),
      self_(std::move(self)),
      deadlines_(deadlines),
      handlers_(std::move(handlers)),
      lifelines_(loop, self_, deadlines.silence, [this](NodeLife life, const std::string& proof) {
        const auto found = links_.find(life.node);
        if (found == links_.end() || found->second.life != life || found->second.state == State::dead) return;
        lose(found->second, proof);
      }) {
  self_.purpose = Purpose::link;
}

void Neighbours::set(const std::vector<Member>& wanted) {
  for (auto it = links_.begin(); it != links_.end();) {
    const bool keep =
        std::any_of(wanted.begin(), wanted.end(), [&](const Member& m) { return m.life == it->second.life; });
    if (!keep) drop(it->second);
    it = keep ? std::next(it) : links_.erase(it);
  }
  for (const Member& member : wanted) {
    if (links_.count(member.life.node) > 0) continue;
    Link& link = links_[member.life.node];
    link.life = member.life;
    link.address = member.address;
    hear(link);
    connect(link);
  }
  set_lifelines();
}

void Neighbours::set_lifelines() {
  if (!handlers_.lifeline_of) return;
  std::vector<Lifelines::Target> wanted;
  for (const auto& [node, link] : links_)
    if (link.state != State::dead) wanted.push_back({link.life, handlers_.lifeline_of(link.life)});
  lifelines_.set(wanted);
}

bool Neighbours::send(NodeId node, const Frame& frame) {
  auto found = links_.find(node);
  if (found == links_.end() || found->second.state != State::up) return false;
  found->second.connection->send(frame);
  return true;
}

void Neighbours::tick() {
  const Duration now = loop_.environment().clock.now();
  std::vector<NodeId> nodes;
  for (auto& [node, link] : links_) nodes.push_back(node);
  for (NodeId node : nodes) {
    auto found = links_.find(node);
    if (found == links_.end() || found->second.state == State::dead) continue;
    Link& link = found->second;
    if (link.state == State::up) link.connection->send(frame_of(BeatMessage{handlers_.generation()}));
    const Duration tried_for = now - link.attempted;
    // Whatever was sent may have been lost. A greeting may just be slow: a pawld that restarts finds all of them waiting.
    const Duration silent_for = now - link.heard;
    if (std::min(silent_for, tried_for) > deadlines_.redial) {
      if (link.connection && now - std::max(link.heard, link.connected) <= deadlines_.silence)
        dial_beside(link);
      else
        drop(link);
    }
    if (link.state == State::down) connect(link);
  }
  lifelines_.tick();
}

void Neighbours::connect(Link& link) {
  link.attempted = loop_.environment().clock.now();
  auto address = Address::parse(link.address);
  if (!address) return lose(link, address.error().what);
  link.state = State::connecting;
  link.dial = Dial::start(loop_, *address, [this, node = link.life.node](Result<std::unique_ptr<Stream>> stream) {
    connected(node, std::move(stream));
  });
}

void Neighbours::connected(NodeId node, Result<std::unique_ptr<Stream>> stream) {
  auto found = links_.find(node);
  if (found == links_.end() || found->second.state != State::connecting) return;
  Link& link = found->second;
  link.dial.reset();
  if (!stream) return unconnected(link, stream.error());
  link.state = State::greeting;
  link.connected = loop_.environment().clock.now();
  link.connection = greet(link, std::move(*stream));
}

// In place of an earlier one that did not get there.
void Neighbours::dial_beside(Link& link) {
  const auto address = Address::parse(link.address);
  if (!address) return;  // it has been connected to
  drop_beside(link);
  link.attempted = loop_.environment().clock.now();
  link.dial_beside =
      Dial::start(loop_, *address, [this, node = link.life.node](Result<std::unique_ptr<Stream>> stream) {
        connected_beside(node, std::move(stream));
      });
}

void Neighbours::connected_beside(NodeId node, Result<std::unique_ptr<Stream>> stream) {
  auto found = links_.find(node);
  if (found == links_.end() || !found->second.dial_beside) return;
  Link& link = found->second;
  link.dial_beside.reset();
  if (!stream && is_refused(stream.error())) return unconnected(link, stream.error());
  if (!stream || link.heard > link.attempted) return;  // the next tick tries again; the first one was only slow
  link.beside = greet(link, std::move(*stream));
}

std::shared_ptr<Connection> Neighbours::greet(const Link& link, std::unique_ptr<Stream> stream) {
  const NodeId node = link.life.node;
  auto weak = std::make_shared<std::weak_ptr<Connection>>();
  auto connection =
      Connection::make(loop_, std::move(stream),
                       {.on_frame = [this, node, weak](Frame& frame) { on_frame(node, weak->lock(), frame); },
                        .on_close = [this, node, weak](const Error& error) { broken(node, weak->lock(), error); }});
  *weak = connection;
  Hello hello = self_;
  hello.expected = link.life.incarnation;
  hello.generation = handlers_.generation();
  connection->send(frame_of(hello));
  return connection;
}

// The peer has answered on it, or closed the first one for it.
void Neighbours::use_beside(Link& link) {
  if (link.connection) link.connection->close();
  link.connection = std::move(link.beside);
  link.connected = loop_.environment().clock.now();
  link.state = State::greeting;
  drop_beside(link);
}

void Neighbours::on_frame(NodeId node, const std::shared_ptr<Connection>& from, Frame& frame) {
  auto found = links_.find(node);
  if (found == links_.end() || !from) return;
  Link& link = found->second;
  if (from == link.beside) use_beside(link);
  if (from != link.connection) return;
  hear(link);
  if (link.state == State::greeting) {
    if (is<WelcomeMessage>(frame)) {
      link.state = State::up;
      link.rejected.clear();
      return handlers_.on_up(link.life);
    }
    const auto answer = message_in<PeerRefusedMessage>(frame);
    return refused(link,
                   answer ? *answer : PeerRefusedMessage{PeerRefusal::never, "it does not speak pawl's protocol"});
  }
  if (!is<BeatBackMessage>(frame)) handlers_.on_answer(link.life, frame);
}

void Neighbours::refused(Link& link, const PeerRefusedMessage& answer) {
  if (answer.refusal == PeerRefusal::stale) return lose(link, "it refused us: " + answer.why);
  const NodeLife life = link.life;
  drop(link);
  if (answer.refusal == PeerRefusal::evicted) return handlers_.on_evicted(life, answer.why);
  if (std::exchange(link.rejected, answer.why) != answer.why)
    log_error("link_rejected", "by", life.node, "why", answer.why);
}

void Neighbours::broken(NodeId node, const std::shared_ptr<Connection>& connection, const Error& error) {
  auto found = links_.find(node);
  if (found == links_.end() || found->second.state == State::dead || !connection) return;
  Link& link = found->second;
  if (connection == link.beside) return link.beside.reset();
  if (connection != link.connection) return;
  const bool was_up = link.state == State::up;
  if (was_up) log_info("link_broken", "to", node, "why", error.what);
  if (link.beside) return use_beside(link);
  drop(link);
  if (is_refused(error)) return lose(link, "its address refuses connections");
  if (was_up) connect(link);  // at once: refused or not tells whether the node or only its pawld has died
}

void Neighbours::unconnected(Link& link, const Error& error) {
  drop(link);
  if (is_refused(error)) lose(link, "its address refuses connections");
}

void Neighbours::lose(Link& link, const std::string& proof) {
  const NodeLife life = link.life;
  drop(link);
  link.state = State::dead;
  handlers_.on_lost(life, proof);
}

void Neighbours::hear(Link& link) {
  link.heard = loop_.environment().clock.now();
  link.heard_boottime = loop_.environment().clock.boottime();
}

void Neighbours::drop(Link& link) {
  link.dial.reset();
  drop_beside(link);
  if (link.connection) link.connection->close();
  link.connection.reset();
  link.state = State::down;
}

void Neighbours::drop_beside(Link& link) {
  link.dial_beside.reset();
  if (link.beside) link.beside->close();
  link.beside.reset();
}

bool Neighbours::is_up(NodeId node) const {
  auto found = links_.find(node);
  return found != links_.end() && found->second.state == State::up;
}

std::vector<Contact> Neighbours::contacts() const {
  std::vector<Contact> contacts;
  for (const auto& [node, link] : links_)
    contacts.push_back({link.life, link.heard, link.heard_boottime, link.state == State::dead});
  return contacts;
}

std::vector<Neighbours::View> Neighbours::view() const {
  std::vector<View> views;
  const Duration now = loop_.environment().clock.now();
  for (const auto& [node, link] : links_) {
    const char* state = link.state == State::up ? "up" : link.state == State::dead ? "dead" : "lost";
    views.push_back({node, state, now - link.heard, lifelines_.stands(node)});
  }
  return views;
}

}  // namespace pawl::job
