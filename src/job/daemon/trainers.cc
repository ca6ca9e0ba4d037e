#include "job/daemon/trainers.h"

#include "base/contains.h"
#include "base/log.h"
#include "job/redundancy/progress.h"
#include "pawl/pawl.h"

namespace pawl::job {

bool must_begin_anew(const TrainerProcess& trainer, const JobState& state) {
  if (trainer.seated.value == 0 || trainer.seated >= state.generation) return false;
  return state.cold || !trainer.seat || contains(state.restart, *trainer.seat);
}
namespace {

constexpr std::uint32_t kAttachRefused = PAWL_INVALID;

}  // namespace

TrainerPageNotes notes_of(const TrainerPage& page) {
  return {Generation(page.generation.load()), Progress::unpack(page.progress.load()).committed};
}

bool lives(Processes& processes, const ProcessIdentity& process) {
  return process.pid != 0 && processes.is_alive(static_cast<pid_t>(process.pid), process.start_time);
}

Trainers::Trainers(Loop& loop, std::uint32_t place_count, std::string job, std::unique_ptr<Listener> listener,
                   Handlers handlers)
    : loop_(loop),
      job_(std::move(job)),
      handlers_(std::move(handlers)),
      places_(place_count),
      acceptor_(loop, std::move(listener), [this](std::unique_ptr<Stream> stream) { accept(std::move(stream)); }) {
  for (std::uint32_t i = 0; i < place_count; ++i) places_[i].index = i;
}

void Trainers::open() {
  acceptor_.start();
}

Trainers::~Trainers() {
  *ended_ = true;
}

TrainerProcess* Trainers::at_seat(Seat seat) {
  for (TrainerProcess& place : places_)
    if (place.seat == seat) return &place;
  return nullptr;
}

Status Trainers::adopt_page(std::uint32_t index, Fd fd) {
  if (index >= places_.size()) return Error{Code::corrupt, text("no place ", index)};
  PAWL_ASSIGN(Mapping mapping, loop_.environment().memory.map(fd.get(), kTrainerPageBytes, {.populate = true}));
  TrainerProcess& place = places_[index];
  place.shared.mapping = std::make_shared<Mapping>(std::move(mapping));
  PAWL_ASSIGN(place.shared.page, open_page(place.shared.mapping->bytes()));
  place.shared.page_fd = std::move(fd);
  place.shared.adopted = notes_of(*place.shared.page);
  // Of a drain. Whoever waits for it would wait for as long as the control is away; safety does not rest on it.
  place.shared.page->pause_step.store(0, std::memory_order_release);
  place.attached = {place.shared.page->pid.load(), place.shared.page->start_time.load()};
  return {};
}

void Trainers::spawned(std::uint32_t index, std::uint64_t pid, std::uint64_t start_time) {
  if (index >= places_.size()) return;
  TrainerProcess& place = places_[index];
  if (place.pid == 0) place.inherited = true;  // we did not ask for it
  place.pid = pid;
  place.start_time = start_time;
  place.spawned_at = loop_.environment().clock.now();
  place.dying = false;
  place.death = {};
  // It ran under the pawld before us, and so did whoever attached: one that is older is of a process before this one.
  if (place.attached.pid != 0 && place.attached.start_time >= start_time) watch_death(place);
}

void Trainers::exited(std::uint32_t index, std::uint64_t pid, const std::string& how, const std::string& said) {
  if (index >= places_.size()) return;
  TrainerProcess& place = places_[index];
  const bool seen = place.spawned_at > Duration::zero();
  if (place.pid == 0 && !seen && pid != 0) place.death.unseen = how;
  const bool never_started = pid == 0 && place.pid == kPidNotKnownYet;
  if (place.pid == 0 || (place.pid != pid && !never_started)) return;  // of a process before this one
  place.death.behind = place.attached.pid != 0 && place.attached.pid != place.pid;
  place.pid = 0;
  place.death.said = said;
  if (!place.dying) place.death.since = loop_.environment().clock.now();
  place.inherited = false;
  place.line.forget_requests();
  place.watched = false;
  if (place.line.connection) place.line.connection->close();
  place.line.connection.reset();
  if (place.shared.notice_watch != 0) loop_.unwatch(std::exchange(place.shared.notice_watch, 0));
  handlers_.on_death(place, how);
}

void Trainers::answer_frame(TrainerProcess& place, MessageKind waiting_kind, Frame answer, std::span<const int> fds) {
  auto found = place.line.waiting.find(waiting_kind);
  if (found == place.line.waiting.end() || !place.line.connection) return;
  answer.id = found->second;
  place.line.waiting.erase(found);
  if (fds.empty()) {
    place.line.connection->send(answer);
  } else {
    place.line.connection->send_with(answer, fds);
  }
}

void Trainers::answer_rendezvous_frame(TrainerProcess& place, const Frame& answer) {
  if (place.line.rendezvous_waiting.erase(answer.id) > 0 && place.line.connection) place.line.connection->send(answer);
}

void Trainers::interrupt(TrainerProcess& place, Generation generation) {
  place.line.waiting.erase(MessageKind::layout);
  place.line.waiting.erase(MessageKind::restore);
  place.line.waiting.erase(MessageKind::done);
  place.line.waiting.erase(MessageKind::finish);
  place.line.waiting.erase(MessageKind::stop_after);
  place.line.rendezvous_waiting.clear();
  if (place.shared.page == nullptr) return;
  place.shared.page->recover_generation.store(generation.value, std::memory_order_release);
  if (place.shared.event) place.shared.event->raise();
}

void Trainers::stop(TrainerProcess& place) {
  if (place.shared.page == nullptr) return;
  place.shared.page->stop.store(1, std::memory_order_release);
  if (place.shared.event) place.shared.event->raise();
}

void Trainers::accept(std::unique_ptr<Stream> stream) {
  const auto credentials = stream->peer_credentials();
  const bool ours =
      credentials && (credentials->uid == loop_.environment().processes.own_user() || credentials->uid == 0);
  if (!ours) return;  // hang up
  auto self = std::make_shared<std::weak_ptr<Connection>>();
  auto connection = Connection::make(loop_, std::move(stream),
                                     {.on_frame =
                                          [this, self](Frame& frame) {
                                            if (auto c = self->lock()) on_first_frame(c, frame);
                                          },
                                      .on_close =
                                          [this, self](const Error&) {
                                            if (auto c = self->lock()) strangers_.erase(c.get());
                                          }});
  *self = connection;
  strangers_[connection.get()] = connection;
}

void Trainers::on_first_frame(const std::shared_ptr<Connection>& connection, Frame& frame) {
  if (is<QuestionMessage>(frame)) return handlers_.on_question(connection, frame);
  for (TrainerProcess& place : places_)
    if (place.line.connection == connection) return on_frame(place.index, frame);
  if (is<AttachMessage>(frame)) return attach(connection, frame);
  connection->send(frame_of(RefusedMessage{kAttachRefused, "the first message must be attach"}, frame.id));
}

void Trainers::attach(const std::shared_ptr<Connection>& connection, Frame& frame) {
  AttachMessage attach;
  const bool whole = decode(frame.payload, attach);
  const std::uint32_t index = attach.local_index;
  const Generation generation = attach.generation;
  auto refuse = [&](const std::string& why) {
    log_warn("attach_refused", "place", index, "why", why);
    connection->send(frame_of(RefusedMessage{kAttachRefused, why}, frame.id));
  };
  if (!whole || attach.version != kTrainerWireVersion)
    return refuse(text("libpawl speaks version ", attach.version, ", pawld ", kTrainerWireVersion,
                       ": install the same release of both"));
  if (index >= places_.size())
    return refuse(text("PAWL_LOCAL_INDEX ", index, " but this node has ", places_.size(), " places"));
  TrainerProcess& place = places_[index];
  auto credentials = connection->peer_credentials();
  const bool same =
      generation.value > 0 && place.shared.page != nullptr && place.shared.page->nonce.load() == attach.nonce;
  if (generation.value > 0 && !same) return refuse("this process was attached to another pawld: it must start anew");
  if (!same)
    if (Status made = make_page(place); !made) return refuse(made.error().what);
  auto event = loop_.environment().network.make_event();
  auto notices = loop_.environment().network.make_event();
  if (!event || !notices) return refuse("no descriptors left: raise the limit of open files");
  if (place.shared.notice_watch != 0) loop_.unwatch(place.shared.notice_watch);
  place.shared.event = std::move(*event);
  place.shared.notices = std::move(*notices);
  if (place.line.connection && place.line.connection != connection) place.line.connection->close();
  strangers_.erase(connection.get());
  place.line.connection = connection;
  place.inherited = false;
  place.line.forget_requests();
  if (credentials) place.attached = identity_of(credentials->pid);
  if (place.pid == 0) {  // the keeper will say what it started
    place.pid = place.attached.pid;
    place.start_time = place.attached.start_time;
  }
  place.shared.notice_watch = loop_.watch(place.shared.notices->handle(), kRead, [this, index](const Ready&) {
    places_[index].shared.notices->lower();
    handlers_.on_notice(places_[index]);
  });
  const int fds[] = {place.shared.page_fd.get(), place.shared.event->handle(), place.shared.notices->handle()};
  const AttachedMessage attached{kTrainerWireVersion, place.seat ? place.seat->value : kNoSeat};
  connection->send_with(frame_of(attached, frame.id), fds);
  if (same) {
    place.seated = generation;    // as the pawld before us told it
    place.shared.event->raise();  // it may have missed one
    watch_death(place);
    handlers_.on_notice(place);
  }
}

Status Trainers::make_page(TrainerProcess& place) {
  PAWL_ASSIGN(Fd fd, loop_.environment().memory.create(text("pawl.", job_, ".page.", place.index), kTrainerPageBytes));
  PAWL_ASSIGN(Mapping mapping, loop_.environment().memory.map(fd.get(), kTrainerPageBytes, {.populate = true}));
  PAWL_ASSIGN(place.shared.page, initialise_page(mapping.bytes()));
  place.shared.mapping = std::make_shared<Mapping>(std::move(mapping));
  place.shared.page_fd = std::move(fd);
  place.watched = false;
  place.seated = Generation(0);
  place.done = Generation(0);
  place.finished = false;
  handlers_.on_page(place);
  handlers_.hold(text("page.", place.index), place.shared.page_fd.get());
  return {};
}

void Trainers::on_frame(std::uint32_t index, Frame& frame) {
  TrainerProcess& place = places_[index];
  const MessageKind kind = kind_of(frame);
  watch_death(place);  // by now it has locked its mutex
  if (kind == MessageKind::detach) place.finished = true;
  if (kind == MessageKind::rendezvous)
    place.line.rendezvous_waiting.insert(frame.id);
  else
    place.line.waiting[kind] = frame.id;
  handlers_.on_request(place, frame);
}

ProcessIdentity Trainers::identity_of(std::int64_t pid) const {
  const auto started = loop_.environment().processes.start_time(static_cast<pid_t>(pid));
  return {static_cast<std::uint64_t>(pid), started.value_or(0)};
}

void Trainers::watch_death(TrainerProcess& place) {
  if (place.watched || place.shared.page == nullptr) return;
  place.watched = true;
  const Environment& environment = loop_.environment();
  (void)environment.tasks.start("pawl-death",
                                [this, &environment, &loop = loop_, ended = ended_, mapping = place.shared.mapping,
                                 page = place.shared.page, index = place.index] {
                                  const bool died = environment.processes.wait_for_owner_death(&page->alive, *ended);
                                  if (*ended) return;
                                  loop.post([this, ended, index, died, mapping] {
                                    if (*ended) return;  // we are gone
                                    TrainerProcess& dead = places_[index];
                                    if (dead.shared.mapping != mapping || dead.pid == 0)
                                      return;             // of a process before this one
                                    dead.watched = died;  // else it has not locked it yet: from its next request on
                                    if (!died || dead.dying || dead.finished) return;
                                    dead.begin_dying(loop_.environment().clock.now());
                                    handlers_.on_death(dead, "");
                                  });
                                });
}

}  // namespace pawl::job
