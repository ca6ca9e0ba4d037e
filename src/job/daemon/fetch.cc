#include "job/daemon/fetch.h"

#include "base/crc32c.h"
#include "base/log.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

constexpr int kDamagedMax = 3;
// No descriptor or no memory may be a matter of a moment: what died here a moment ago still gives back its own.
constexpr int kFailedMax = 10;
constexpr Duration kFailedPause = 100ms;

Error refusal_of(const Frame& frame) {
  PeerRefusedMessage refused;
  if (!is<PeerRefusedMessage>(frame)) return unexpected_message(frame);
  (void)decode(frame.payload, refused);  // what is missing in it is empty: it is a refusal all the same
  const Code code = refused.refusal == PeerRefusal::missing ? Code::not_found
                    : refused.refusal == PeerRefusal::never ? Code::invalid
                                                            : Code::stale;
  return {code, refused.why};
}

Error ended_error() {
  return {Code::cancelled, "the recovery that needs it is over"};
}

}  // namespace

Slot slot_to_fill(const Arena& arena, Generation generation, Step step) {
  auto worth = [&](const SlotWord& word) -> std::uint64_t {  // least first
    if (word.generation == generation && word.step == step) return 0;
    return word.state == SlotState::sealed ? 2 + word.step.value : 1;
  };
  Slot best = arena.slot(0);
  for (std::uint32_t i = 1; i < arena.slot_count(); ++i)
    if (worth(arena.slot(i).word()) < worth(best.word())) best = arena.slot(i);
  return best;
}

namespace {

template <class Accept>
bool find_slot(const Arena& arena, Generation generation, Step step, Slot& slot, std::uint32_t& index, Accept accept) {
  for (std::uint32_t i = 0; i < arena.slot_count(); ++i) {
    const SlotWord word = arena.slot(i).word();
    if (word.generation != generation || word.step != step || !accept(word)) continue;
    slot = arena.slot(i);
    index = i;
    return true;
  }
  return false;
}

}  // namespace

bool find_sealed(const Arena& arena, Generation generation, Step step, Slot& slot, std::uint32_t& index) {
  return find_slot(arena, generation, step, slot, index,
                   [](const SlotWord& word) { return word.state == SlotState::sealed; });
}

bool find_filling(const Arena& arena, Generation generation, Step step, Slot& slot, std::uint32_t& index) {
  return find_slot(arena, generation, step, slot, index,
                   [](const SlotWord& word) { return word.frozen && word.state != SlotState::empty; });
}

std::shared_ptr<Fetch> Fetch::start(Options options) {
  std::shared_ptr<Fetch> fetch(new Fetch(std::move(options)));
  (void)fetch->options_.context.environment->tasks.start("pawl-fetch", [fetch] {
    Status status = fetch->run();
    fetch->options_.on_done(std::move(status), fetch->state().received);
  });
  return fetch;
}

void Fetch::end() {
  std::lock_guard lock(mutex_);
  ended_ = true;
  if (stream_ != nullptr) stream_->shut_down();
}

FetchState Fetch::state() const {
  std::lock_guard lock(mutex_);
  return state_;
}

void Fetch::note(const std::function<void(FetchState&)>& change) {
  std::lock_guard lock(mutex_);
  change(state_);
}

Status Fetch::run() {
  PAWL_ASSIGN(const Address address, Address::parse(options_.address));
  int damaged = 0;
  int failed = 0;
  while (!ended_) {
    note([](FetchState& state) { ++state.tries; });
    Status tried = attempt(address);
    if (tried || ended_) return tried ? std::move(tried) : Status(ended_error());
    const Error& error = tried.error();
    note([&error](FetchState& state) { state.failed = error.what; });
    Duration pause = 10ms;
    switch (error.code) {
      case Code::unreachable:  // a source that restarts its pawld, or has not seen the generation yet, answers later
      case Code::timeout:
      case Code::stale:
        break;
      case Code::corrupt:
        if (++damaged == kDamagedMax)
          return Error{Code::io, "it comes damaged, and its source proves it right where it lies: " + error.what};
        log_warn("fetch_again", "seat", options_.source.seat, "why", error.what);
        prove_ = true;
        break;
      case Code::full:
      case Code::io:
        if (++failed == kFailedMax) return tried;
        pause = kFailedPause;
        break;
      case Code::not_found:
        return Error{Code::corrupt, error.what};
      default:
        return tried;
    }
    options_.context.environment->clock.sleep(pause);
  }
  return ended_error();
}

Status Fetch::attempt(const Address& address) {
  const Environment& environment = *options_.context.environment;
  PAWL_ASSIGN(const std::unique_ptr<Stream> stream,
              environment.network.connect(address, Deadline::in(500ms, environment.clock)));
  {
    std::lock_guard lock(mutex_);
    if (ended_) return ended_error();
    stream_ = stream.get();
  }
  Status received = receive_slot(*stream);
  std::lock_guard lock(mutex_);
  stream_ = nullptr;
  return received;
}

Deadline Fetch::deadline(std::uint64_t bytes) const {
  return Deadline::in(options_.patience + time_to_move(bytes), options_.context.environment->clock);
}

Status Fetch::receive_slot(Stream& stream) {
  const Source& source = options_.source;
  const FetchFrom from = source.kind == SourceKind::own_arena ? FetchFrom::own : FetchFrom::replica;
  PAWL_TRY(send_frame(stream, frame_of(options_.hello), deadline()));
  PAWL_ASSIGN(Frame welcome, receive_frame(stream, deadline()));
  if (!is<WelcomeMessage>(welcome)) return refusal_of(welcome);
  const FetchMessage ask{source.seat, from, source.slot_generation, source.step, prove_};
  PAWL_TRY(send_frame(stream, frame_of(ask), deadline()));
  PAWL_ASSIGN(Frame answer, receive_frame(stream, deadline(prove_ ? state().total : 0)));
  if (!is<SlotBeginMessage>(answer)) return refusal_of(answer);
  PAWL_ASSIGN(const SlotBeginMessage begin, message_in<SlotBeginMessage>(answer));
  if (begin.generation != source.slot_generation || begin.step != source.step)
    return Error{Code::corrupt, text("step ", begin.step, " came, not step ", source.step)};
  note([&begin](FetchState& state) { state.received = 0, state.total = begin.shape.payload_bytes; });
  PAWL_ASSIGN(const ArenaSpec spec,
              spec_of(begin.shape, begin.layout, options_.hello.job, source.seat, ArenaKind::own));
  PAWL_ASSIGN(ArenaHandle arena, options_.arena_for(spec));
  {
    std::lock_guard lock(mutex_);
    if (ended_) return ended_error();
    options_.context.workers
        ->begin();  // from here on, and not before, memory is touched: whoever ended us waits for that
  }
  Status filled = fill(slot_to_fill(arena->arena, begin.generation, begin.step), begin, stream);
  options_.context.workers->finish();
  return filled;
}

Status Fetch::fill(const Slot& slot, const SlotBeginMessage& begin, Stream& stream) {
  if (!slot.open_frozen(begin.generation, begin.step, begin.samples))
    return Error{Code::broken, "the slot to fill is live: nothing may be restored into it"};
  if (options_.on_filling) options_.on_filling();
  for (std::uint32_t i = 0; i < slot.buckets().size(); ++i) {
    std::uint32_t sum = 0;
    const Deadline by = deadline(slot.bucket(i).size());
    PAWL_TRY(stream.receive_all(std::as_writable_bytes(std::span(&sum, 1)), by));
    PAWL_TRY(stream.receive_all(slot.bucket(i), by));
    if (crc32c(slot.bucket(i)) != sum) return Error{Code::corrupt, text("bucket ", i, ": checksum differs")};
    slot.bucket_done(i, sum, begin.generation, begin.step);
    note([size = slot.bucket(i).size()](FetchState& state) { state.received += size; });
  }
  options_.context.bytes_received->add(state().received);
  if (const Status sealed = slot.seal_frozen(begin.generation, begin.step); !sealed)
    return Error{Code::broken, sealed.error().what};  // somebody else has written into it
  return {};
}

FetchServer::FetchServer(Options options) : options_(std::move(options)), stream_(std::move(options_.stream)) {}

std::shared_ptr<FetchServer> FetchServer::start(Options options) {
  std::shared_ptr<FetchServer> server(new FetchServer(std::move(options)));
  server->options_.context.workers->begin();
  (void)server->options_.context.environment->tasks.start("pawl-serve", [server] {
    const Status served = server->serve();
    if (!served) log_info("fetch_served_badly", "why", served.error().what);
    server->stream_->shut_down();
    server->options_.context.workers->finish();
  });
  return server;
}

void FetchServer::end() {
  stream_->shut_down();
}

Status FetchServer::serve() {
  Stream& stream = *stream_;
  PAWL_ASSIGN(Frame frame, receive_frame(stream));
  FetchMessage asked;
  if (!is<FetchMessage>(frame) || !decode(frame.payload, asked)) return Error{Code::corrupt, "not a fetch"};
  const ArenaKind kind = asked.from == FetchFrom::own ? ArenaKind::own : ArenaKind::replica;
  const ArenaHandle arena = options_.find(kind, asked.seat);
  Slot slot;
  std::uint32_t index = 0;
  if (!arena || !find_sealed(arena->arena, asked.slot_generation, asked.step, slot, index))
    return send_frame(stream,
                      frame_of(PeerRefusedMessage{PeerRefusal::missing,
                                                  text("no sealed slot of seat ", asked.seat, " step ", asked.step)}));
  if (const Status found = asked.prove ? slot.verify() : slot.verify_header(); !found) {
    const bool dropped = found.error().code == Code::stale;  // not wrong: the recovery is over
    return send_frame(stream, frame_of(PeerRefusedMessage{dropped ? PeerRefusal::stale : PeerRefusal::missing,
                                                          "where it lies: " + found.error().what}));
  }
  const ArenaSpec& spec = arena->arena.spec();
  PAWL_TRY(send_frame(stream, frame_of(SlotBeginMessage{asked.slot_generation, asked.step, slot.samples(),
                                                        shape_of(spec), spec.layout})));
  for (std::uint32_t i = 0; i < slot.buckets().size(); ++i) {
    const std::uint32_t sum = slot.buckets()[i].crc32c;
    const auto bytes = slot.bucket(i);
    PAWL_TRY(
        stream.send_all({std::as_bytes(std::span(&sum, 1)), std::span<const std::byte>(bytes)}, Deadline::never()));
    options_.context.bytes_sent->add(bytes.size());
  }
  return {};
}

}  // namespace pawl::job
