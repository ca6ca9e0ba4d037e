#include "job/daemon/lifelines.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace pawl::job {

using namespace std::chrono_literals;

namespace {
constexpr Duration kFirstPause = 1s;
constexpr Duration kLongestPause = 60s;
constexpr int kRetriesMax = 8;
constexpr Duration kBeatPause = 10s;  // or `silence`; much less than a keeper lets a line be silent
}  // namespace

Lifelines::Lifelines(Loop& loop, Hello self, Duration silence, OnDead on_dead)
    : loop_(loop), self_(std::move(self)), silence_(silence), on_dead_(std::move(on_dead)) {
  self_.purpose = Purpose::lifeline;
}

void Lifelines::set(const std::vector<Target>& wanted) {
  std::erase_if(lines_, [&](const auto& entry) {
    const Line& line = entry.second;
    return std::none_of(wanted.begin(), wanted.end(), [&](const Target& target) {
      return target.life == line.life && (target.address.empty() || target.address == line.address);
    });
  });
  for (const Target& target : wanted) {
    if (target.address.empty() || lines_.contains(target.life.node)) continue;
    Line& line = lines_[target.life.node];
    line.life = target.life;
    line.address = target.address;
    connect(line);
  }
}

void Lifelines::tick() {
  const Duration now = loop_.environment().clock.now();
  for (auto& [node, line] : lines_) {
    if (!line.up && (line.dial || line.connection)) {
      if (now - line.began > silence_) give_up(line, "nothing answers");
    } else if (!line.up) {
      if (now >= line.next_try) connect(line);
    } else if (now - line.heard > 3 * silence_) {
      hang_up(line);  // the network between has forgotten it
      connect(line);
    } else if (now - line.said > std::min(silence_, kBeatPause)) {
      line.said = now;
      line.connection->send(frame_of(BeatMessage{}));
    }
  }
}

bool Lifelines::stands(NodeId node) const {
  const auto found = lines_.find(node);
  return found != lines_.end() && found->second.up;
}

void Lifelines::connect(Line& line) {
  line.began = loop_.environment().clock.now();
  const auto address = Address::parse(line.address);
  if (!address) return give_up(line, address.error().what);
  line.dial = Dial::start(loop_, *address, [this, node = line.life.node](Result<std::unique_ptr<Stream>> stream) {
    connected(node, std::move(stream));
  });
}

void Lifelines::connected(NodeId node, Result<std::unique_ptr<Stream>> stream) {
  const auto found = lines_.find(node);
  if (found == lines_.end()) return;
  Line& line = found->second;
  line.dial.reset();
  if (!stream && is_refused(stream.error()) && line.stood) return dead(line, "its keeper has died");
  if (!stream) return give_up(line, stream.error().what);
  line.connection = Connection::make(loop_, std::move(*stream),
                                     {.on_frame = [this, node](Frame& frame) { on_frame(node, frame); },
                                      .on_close = [this, node](const Error& error) { broken(node, error); }});
  Hello hello = self_;
  hello.expected = line.life.incarnation;
  line.connection->send(frame_of(hello));
}

void Lifelines::on_frame(NodeId node, Frame& frame) {
  const auto found = lines_.find(node);
  if (found == lines_.end()) return;
  Line& line = found->second;
  line.heard = loop_.environment().clock.now();
  if (line.up) return;  // beats that come back
  if (is<WelcomeMessage>(frame)) {
    line.up = line.stood = true;
    line.said = line.heard;
    return;
  }
  const auto answer = message_in<PeerRefusedMessage>(frame);
  if (answer && answer->refusal == PeerRefusal::stale) return dead(line, "its keeper refused us: " + answer->why);
  give_up(line, answer ? answer->why : "it does not speak pawl's protocol");
}

void Lifelines::broken(NodeId node, const Error& error) {
  const auto found = lines_.find(node);
  if (found == lines_.end()) return;
  Line& line = found->second;
  line.connection.reset();
  // A keeper that dies closes its lines before its port, or after: who connects in between is accepted, and broken when
  // the port closes, too.
  if (std::exchange(line.up, false) && loop_.environment().clock.now() - line.began > kFirstPause) {
    line.retries = 0;
    line.pause = Duration::zero();
  }
  if (!line.stood || line.retries++ >= kRetriesMax) return give_up(line, error.what);
  connect(line);  // at once: refused or not tells whether the keeper has died
}

void Lifelines::hang_up(Line& line) {
  line.dial.reset();
  if (line.connection) line.connection->close();
  line.connection.reset();
  line.up = false;
}

void Lifelines::give_up(Line& line, const std::string& why) {
  hang_up(line);
  if (line.pause == Duration::zero())
    log_warn("no_lifeline", "to", line.life.node, "address", line.address, "why", why);
  line.pause = std::clamp<Duration>(2 * line.pause, kFirstPause, kLongestPause);
  line.next_try = loop_.environment().clock.now() + line.pause;
}

void Lifelines::dead(Line& line, const std::string& proof) {
  const NodeLife life = line.life;
  hang_up(line);
  lines_.erase(life.node);
  on_dead_(life, proof);
}

}  // namespace pawl::job
