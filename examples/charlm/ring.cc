#include "ring.h"

#include <cstddef>
#include <cstring>
#include <utility>

namespace charlm {
namespace {

constexpr std::chrono::seconds kHandshakeMax{30};

Exchange sending(const Socket& to, const void* out, std::size_t bytes) {
  return {&to, out, bytes, nullptr, nullptr, 0};
}

Exchange receiving(const Socket& from, void* in, std::size_t bytes) {
  return {nullptr, nullptr, 0, &from, in, bytes};
}

Outcome within(const std::string& outer, Outcome outcome) {
  if (outcome.kind == Outcome::Kind::failed) outcome.what = outer + ": " + outcome.what;
  return outcome;
}

constexpr const char* kDiffers =
    "this rank and its neighbour train differently: --data, --steps, --seed, --batch, --hidden and --learning-rate "
    "must be equal on all ranks";

}  // namespace

// Before every chunk: a neighbour that is out of step is noticed before its bytes are used.
struct Ring::Header {
  std::uint64_t sequence;
  std::uint64_t bytes;
};

void Ring::close() {
  next_.close();
  previous_.close();
}

std::string Ring::lost() const {
  if (options_.world == 1) return "";
  const bool next_lost = !next_.open() || next_.gone();
  const bool previous_lost = previous_.open() && previous_.gone();
  std::string ranks;
  if (next_lost) ranks += std::to_string((options_.rank + 1) % options_.world) + " ";
  if (previous_lost) ranks += std::to_string((options_.rank + options_.world - 1) % options_.world);
  return ranks;
}

Outcome Ring::connect(const RingOptions& options, Rendezvous& rendezvous, Watch& watch) {
  close();
  options_ = options;
  sequence_ = 0;
  if (options.world == 1) return {};
  Socket listener;
  Address mine, next;
  CHARLM_TRY(listen_on({options.node_address, "0"}, &listener, &mine));
  CHARLM_TRY(rendezvous.exchange(options.rank, options.world, mine, watch, &next));
  CHARLM_TRY(within("next rank", connect_to(next, watch, {}, &next_)));
  return shake_hands(listener, watch);
}

// Nobody waits in a circle: a connection stands before it is accepted, and a hello needs no answer to be sent.
Outcome Ring::shake_hands(const Socket& listener, Watch& watch) {
  const RingHello hello{kRingMagic, options_.generation, options_.configuration, options_.rank, options_.world};
  CHARLM_TRY(within("next rank: handshake", exchange(sending(next_, &hello, sizeof hello), watch, kHandshakeMax)));
  CHARLM_TRY(within("previous rank: handshake", accept_previous(listener, watch)));
  RingAnswer answer{};
  CHARLM_TRY(within("next rank: handshake", exchange(receiving(next_, &answer, sizeof answer), watch, kHandshakeMax)));
  if (answer.magic == kRingMagic && answer.verdict == RingVerdict::differs) return Outcome::refused(kDiffers);
  const bool welcome = answer.magic == kRingMagic && answer.verdict == RingVerdict::welcome &&
                       answer.rank == (options_.rank + 1) % options_.world;
  return welcome ? Outcome{} : Outcome::failed("next rank: it is of another generation");
}

// Whoever is not the previous rank of this generation is turned away, and the next connection taken.
Outcome Ring::accept_previous(const Socket& listener, Watch& watch) {
  const std::uint32_t expected = (options_.rank + options_.world - 1) % options_.world;
  for (;;) {
    Socket candidate;
    CHARLM_TRY(accept_from(listener, watch, kHandshakeMax, &candidate));
    RingHello hello{};
    Outcome heard = exchange(receiving(candidate, &hello, sizeof hello), watch, std::chrono::seconds(5));
    if (heard.kind == Outcome::Kind::interrupted) return heard;
    if (!heard.ok() || hello.magic != kRingMagic) continue;
    const bool is_ours =
        hello.generation == options_.generation && hello.rank == expected && hello.world == options_.world;
    const bool is_equal = hello.configuration == options_.configuration;
    const RingVerdict verdict = !is_ours ? RingVerdict::stale : is_equal ? RingVerdict::welcome : RingVerdict::differs;
    const RingAnswer answer{kRingMagic, verdict, options_.rank};
    Outcome answered = exchange(sending(candidate, &answer, sizeof answer), watch, kHandshakeMax);
    if (!is_ours) continue;
    if (!is_equal) return Outcome::refused(kDiffers);
    previous_ = std::move(candidate);
    return answered;
  }
}

Outcome Ring::pass_on(const void* out, void* in, std::size_t bytes, Watch& watch) {
  const Header mine{sequence_, bytes};
  Header theirs{};
  ++sequence_;
  CHARLM_TRY(exchange({&next_, &mine, sizeof mine, &previous_, &theirs, sizeof theirs}, watch));
  if (theirs.sequence != mine.sequence || theirs.bytes != mine.bytes) {
    return Outcome::failed("the previous rank is at transfer " + std::to_string(theirs.sequence) + " of " +
                           std::to_string(theirs.bytes) + " bytes, this one at " + std::to_string(mine.sequence) +
                           " of " + std::to_string(mine.bytes));
  }
  return exchange({&next_, out, bytes, &previous_, in, bytes}, watch);
}

Outcome Ring::reduce_scatter(std::span<float> values, Watch& watch) {
  const std::size_t world = options_.world;
  const std::size_t count = values.size() / world;
  incoming_.resize(count);
  // Chunk c starts on rank c+1 and moves on until it ends on rank c.
  for (std::size_t hop = 1; hop < world; ++hop) {
    const float* out = values.data() + (options_.rank + world - hop) % world * count;
    float* sum = values.data() + (options_.rank + 2 * world - hop - 1) % world * count;
    CHARLM_TRY(within("reduce-scatter", pass_on(out, incoming_.data(), count * sizeof(float), watch)));
    for (std::size_t i = 0; i < count; ++i) sum[i] = incoming_[i] + sum[i];
  }
  return {};
}

Outcome Ring::all_gather(std::span<float> values, Watch& watch) {
  const std::size_t count = values.size() / options_.world;
  return all_gather_bytes(std::as_bytes(values.subspan(options_.rank * count, count)), std::as_writable_bytes(values),
                          watch);
}

Outcome Ring::all_gather_bytes(std::span<const std::byte> mine, std::span<std::byte> all, Watch& watch) {
  const std::size_t world = options_.world;
  const std::size_t bytes = mine.size();
  std::byte* own = all.data() + options_.rank * bytes;
  if (own != mine.data()) std::memcpy(own, mine.data(), bytes);
  for (std::size_t hop = 0; hop + 1 < world; ++hop) {
    const std::byte* out = all.data() + (options_.rank + world - hop) % world * bytes;
    std::byte* in = all.data() + (options_.rank + 2 * world - hop - 1) % world * bytes;
    CHARLM_TRY(within("all-gather", pass_on(out, in, bytes, watch)));
  }
  return {};
}

}  // namespace charlm
