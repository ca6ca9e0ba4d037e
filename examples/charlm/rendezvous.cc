#include "rendezvous.h"

#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

namespace charlm {
namespace {

constexpr std::uint64_t kMagic = 0x31307a646e65726cull;
constexpr std::chrono::seconds kMeetMax{60};

// Both ways: who and where.
struct Card {
  std::uint64_t magic = kMagic;
  std::uint32_t rank = 0;
  std::uint32_t world = 0;
  char host[64] = {};
  char port[16] = {};
};

Card card_of(std::uint32_t rank, std::uint32_t world, const Address& address) {
  Card card;
  card.rank = rank;
  card.world = world;
  std::snprintf(card.host, sizeof card.host, "%s", address.host.c_str());
  std::snprintf(card.port, sizeof card.port, "%s", address.port.c_str());
  return card;
}

bool is_sound(const Card& card, std::uint32_t world) {
  const bool ends =
      std::memchr(card.host, 0, sizeof card.host) != nullptr && std::memchr(card.port, 0, sizeof card.port) != nullptr;
  return card.magic == kMagic && card.world == world && card.rank < world && ends;
}

}  // namespace

Outcome MasterRendezvous::exchange(std::uint32_t rank, std::uint32_t world, const Address& mine, Watch& watch,
                                   Address* next) {
  if (master_.host.empty() || master_.port.empty()) {
    return Outcome::refused("WORLD_SIZE is " + std::to_string(world) + ", so MASTER_ADDR and MASTER_PORT must be set");
  }
  if (rank == 0) return serve(world, mine, watch, next);
  Socket server;
  CHARLM_TRY(connect_to(master_, watch, {kMeetMax, true}, &server));
  Card card = card_of(rank, world, mine);
  CHARLM_TRY(charlm::exchange({&server, &card, sizeof card, nullptr, nullptr, 0}, watch));
  CHARLM_TRY(charlm::exchange({nullptr, nullptr, 0, &server, &card, sizeof card}, watch));
  if (!is_sound(card, world)) return Outcome::refused("MASTER_ADDR:MASTER_PORT does not answer as rank 0 of this job");
  *next = {card.host, card.port};
  return {};
}

Outcome MasterRendezvous::serve(std::uint32_t world, const Address& mine, Watch& watch, Address* next) {
  Socket listener;
  Address bound;
  Outcome listening = listen_on(master_, &listener, &bound);
  if (!listening.ok()) return Outcome::refused("rank 0: " + listening.what);
  std::vector<Card> cards(world);
  std::vector<Socket> peers(world);
  cards[0] = card_of(0, world, mine);
  for (std::uint32_t met = 1; met < world;) {
    Socket peer;
    CHARLM_TRY(accept_from(listener, watch, kMeetMax, &peer));
    Card card;
    Outcome heard = charlm::exchange({nullptr, nullptr, 0, &peer, &card, sizeof card}, watch, std::chrono::seconds(5));
    if (heard.kind == Outcome::Kind::interrupted) return heard;
    if (!heard.ok() || !is_sound(card, world) || card.rank == 0 || peers[card.rank].open()) continue;
    cards[card.rank] = card;
    peers[card.rank] = std::move(peer);
    ++met;
  }
  for (std::uint32_t rank = 1; rank < world; ++rank) {
    CHARLM_TRY(charlm::exchange({&peers[rank], &cards[(rank + 1) % world], sizeof(Card), nullptr, nullptr, 0}, watch));
  }
  *next = {cards[1].host, cards[1].port};
  return {};
}

}  // namespace charlm
