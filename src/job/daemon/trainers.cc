#include "job/daemon/trainers.h"

#include <unistd.h>
#include <cerrno>
#include <ctime>
#include <thread>

#include "base/log.h"
#include "env/process.h"

namespace pawl::job {
namespace {

constexpr std::uint16_t kQuestion = 100;

Frame frame_of(TrainerWire kind, std::uint64_t id, std::string payload) {
  return Frame{static_cast<std::uint16_t>(kind), id, std::move(payload)};
}

// True when the owner of the robust mutex has died; false when it was unlocked, or `ended`.
bool wait_for_owner_death(pthread_mutex_t* mutex, const std::atomic<bool>& ended) {
  while (!ended) {
    timespec until{};
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += 1;
    const int got = pthread_mutex_clocklock(mutex, CLOCK_MONOTONIC, &until);
    if (got == ETIMEDOUT) continue;
    if (got == EOWNERDEAD) {
      (void)pthread_mutex_consistent(mutex);
      (void)pthread_mutex_unlock(mutex);
      return true;
    }
    if (got == 0) (void)pthread_mutex_unlock(mutex);
    return false;
  }
  return false;
}

}  // namespace

Trainers::Trainers(Loop& loop, std::uint32_t place_count, std::string job, Fd listener, Handlers handlers)
    : loop_(loop),
      job_(std::move(job)),
      listener_(std::move(listener)),
      handlers_(std::move(handlers)),
      places_(place_count) {
  for (std::uint32_t i = 0; i < place_count; ++i) places_[i].index = i;
}

void Trainers::open() {
  loop_.watch(listener_.get(), kRead, [this](const Ready&) { accept_all(); });
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
  PAWL_ASSIGN(Mapping mapping, map_segment(fd.get(), kTrainerPageBytes, {.populate = true}));
  TrainerProcess& place = places_[index];
  place.page_mapping = std::make_shared<Mapping>(std::move(mapping));
  PAWL_ASSIGN(place.page, open_page(place.page_mapping->bytes()));
  place.page_fd = std::move(fd);
  return {};
}

void Trainers::spawned(std::uint32_t index, std::uint64_t pid, std::uint64_t start_time) {
  if (index >= places_.size()) return;
  TrainerProcess& place = places_[index];
  place.pid = pid;
  place.start_time = start_time;
  place.spawned_at = real_clock().now();
  place.dying = false;
}

void Trainers::exited(std::uint32_t index, std::uint64_t pid, const std::string& how) {
  if (index >= places_.size() || places_[index].pid != pid) return;
  TrainerProcess& place = places_[index];
  place.pid = 0;
  place.waiting.clear();
  place.store_waiting.clear();
  place.watched = false;
  if (place.connection) place.connection->close();
  place.connection.reset();
  if (place.notice_watch != 0) loop_.unwatch(std::exchange(place.notice_watch, 0));
  handlers_.on_death(place, how);
}

void Trainers::answer(TrainerProcess& place, TrainerWire waiting_kind, TrainerWire answer_kind, std::string payload,
                      std::span<const int> fds) {
  auto found = place.waiting.find(waiting_kind);
  if (found == place.waiting.end() || !place.connection) return;
  const std::uint64_t id = found->second;
  place.waiting.erase(found);
  if (fds.empty()) {
    place.connection->send(frame_of(answer_kind, id, std::move(payload)));
  } else {
    place.connection->send_with(frame_of(answer_kind, id, std::move(payload)), fds);
  }
}

void Trainers::answer_store(TrainerProcess& place, std::uint64_t id, TrainerWire answer_kind, std::string payload) {
  if (place.store_waiting.erase(id) > 0 && place.connection)
    place.connection->send(frame_of(answer_kind, id, std::move(payload)));
}

void Trainers::interrupt(TrainerProcess& place, Generation generation) {
  place.waiting.erase(TrainerWire::layout);
  place.waiting.erase(TrainerWire::restore);
  place.waiting.erase(TrainerWire::done);
  place.waiting.erase(TrainerWire::finish);
  place.waiting.erase(TrainerWire::stop_after);
  place.store_waiting.clear();
  if (place.page == nullptr) return;
  place.page->recover_generation.store(generation.value, std::memory_order_release);
  if (place.event) place.event->raise();
}

void Trainers::stop(TrainerProcess& place) {
  if (place.page == nullptr) return;
  place.page->stop.store(1, std::memory_order_release);
  if (place.event) place.event->raise();
}

void Trainers::accept_all() {
  for (;;) {
    auto accepted = try_accept(listener_.get());
    if (!accepted || !accepted->valid()) return;
    auto credentials = peer_credentials(accepted->get());
    if (!credentials || (credentials->uid != geteuid() && credentials->uid != 0)) continue;  // not ours: hang up
    auto self = std::make_shared<std::weak_ptr<Connection>>();
    auto connection = Connection::make(loop_, std::move(*accepted),
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
}

void Trainers::on_first_frame(const std::shared_ptr<Connection>& connection, Frame& frame) {
  if (frame.kind == kQuestion) return handlers_.on_question(connection, frame);
  for (TrainerProcess& place : places_)
    if (place.connection == connection) return on_frame(place.index, frame);
  if (frame.kind == static_cast<std::uint16_t>(TrainerWire::attach)) return attach(connection, frame);
  connection->send(
      frame_of(TrainerWire::refused, frame.id, Writer().u32(3).str("the first message must be attach").take()));
}

void Trainers::attach(const std::shared_ptr<Connection>& connection, Frame& frame) {
  Reader in(frame.payload);
  const std::uint32_t version = in.u32();
  const std::uint32_t index = in.u32();
  const std::uint64_t nonce = in.u64();
  const Generation generation(in.u64());
  (void)in.u32();
  auto refuse = [&](const std::string& why) {
    log_warn("attach_refused", "place", index, "why", why);
    connection->send(frame_of(TrainerWire::refused, frame.id, Writer().u32(3).str(why).take()));
  };
  if (!in.ok() || version != kTrainerWireVersion)
    return refuse(text("libpawl speaks version ", version, ", pawld ", kTrainerWireVersion,
                       ": install the same release of both"));
  if (index >= places_.size())
    return refuse(text("PAWL_LOCAL_INDEX ", index, " but this node has ", places_.size(), " places"));
  TrainerProcess& place = places_[index];
  auto credentials = peer_credentials(connection->fd());
  const bool same = generation.value > 0 && place.page != nullptr && place.page->nonce.load() == nonce;
  if (generation.value > 0 && !same) return refuse("this process was attached to another pawld: it must start anew");
  if (!same)
    if (Status made = make_page(place); !made) return refuse(made.error().what);
  auto event = Event::make();
  auto notices = Event::make();
  if (!event || !notices) return refuse("no descriptors left: raise the limit of open files");
  if (place.notice_watch != 0) loop_.unwatch(place.notice_watch);
  place.event.emplace(std::move(*event));
  place.notices.emplace(std::move(*notices));
  if (place.connection && place.connection != connection) place.connection->close();
  strangers_.erase(connection.get());
  place.connection = connection;
  place.waiting.clear();
  place.store_waiting.clear();
  if (credentials) place.pid = static_cast<std::uint64_t>(credentials->pid);
  if (auto started = process_start_time(static_cast<pid_t>(place.pid))) place.start_time = *started;
  place.notice_watch = loop_.watch(place.notices->fd(), kRead, [this, index](const Ready&) {
    places_[index].notices->lower();
    handlers_.on_notice(places_[index]);
  });
  const int fds[] = {place.page_fd.get(), place.event->fd(), place.notices->fd()};
  connection->send_with(
      frame_of(TrainerWire::attached, frame.id,
               Writer().u32(kTrainerWireVersion).u32(place.seat ? place.seat->value : kNoSeat).take()),
      fds);
  if (same) {
    place.seated = generation;  // as the pawld before us told it
    place.event->raise();       // it may have missed one
    watch_death(place);
    handlers_.on_notice(place);
  }
}

Status Trainers::make_page(TrainerProcess& place) {
  PAWL_ASSIGN(Fd fd, create_segment(text("pawl.", job_, ".page.", place.index), kTrainerPageBytes));
  PAWL_ASSIGN(Mapping mapping, map_segment(fd.get(), kTrainerPageBytes, {.populate = true}));
  PAWL_ASSIGN(place.page, initialise_page(mapping.bytes()));
  place.page_mapping = std::make_shared<Mapping>(std::move(mapping));
  place.page_fd = std::move(fd);
  place.watched = false;
  place.seated = Generation(0);
  place.done = Generation(0);
  place.finished = false;
  handlers_.on_page(place);
  handlers_.hold(text("page.", place.index), place.page_fd.get());
  return {};
}

void Trainers::on_frame(std::uint32_t index, Frame& frame) {
  TrainerProcess& place = places_[index];
  const auto kind = static_cast<TrainerWire>(frame.kind);
  watch_death(place);  // by now it has locked its mutex
  if (kind == TrainerWire::detach) place.finished = true;
  if (kind == TrainerWire::store)
    place.store_waiting.insert(frame.id);
  else
    place.waiting[kind] = frame.id;
  Reader in(frame.payload);
  handlers_.on_request(place, kind, frame.id, in);
}

void Trainers::watch_death(TrainerProcess& place) {
  if (place.watched) return;
  place.watched = true;
  std::thread([this, ended = ended_, mapping = place.page_mapping, page = place.page, index = place.index,
               pid = place.pid] {
    if (!wait_for_owner_death(&page->alive, *ended) || *ended) return;
    loop_.post([this, index, pid] {
      TrainerProcess& dead = places_[index];
      if (dead.pid != pid || dead.dying || dead.finished) return;
      dead.dying = true;
      handlers_.on_death(dead, "");
    });
  }).detach();
}

}  // namespace pawl::job
