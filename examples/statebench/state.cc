#include "state.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>

namespace statebench {
namespace {

constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15ull;
constexpr std::uint64_t kBlockWords = kBlockBytes / sizeof(std::uint64_t);

// The finisher of SplitMix64: a bijection that spreads every input bit over the output.
constexpr std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// What a block begins with; each next word is greater by kGolden, so that writing it costs no more than memory does.
std::uint64_t first_word(Identity identity, std::uint64_t block, std::uint64_t step) {
  std::uint64_t key = mixed(identity.seed + kGolden);
  key = mixed(key ^ identity.seat) + kGolden;
  key = mixed(key ^ block) + kGolden;
  return mixed(key ^ step);
}

// The last step up to `step` that wrote this block; 0: none.
std::uint64_t written_at(std::uint64_t block, std::uint64_t step, std::uint64_t period) {
  const std::uint64_t ago = (step % period + period - block % period) % period;
  return ago < step ? step - ago : 0;
}

void write_block(std::uint64_t* words, std::uint64_t first) {
  for (std::uint64_t i = 0; i < kBlockWords; ++i) words[i] = first + i * kGolden;
}

bool equals_block(const std::uint64_t* words, std::uint64_t first) {
  std::uint64_t different = 0;
  for (std::uint64_t i = 0; i < kBlockWords; ++i) different |= words[i] ^ (first + i * kGolden);
  return different == 0;
}

}  // namespace

State::~State() {
  if (is_own_) munmap(words_, bytes());
}

bool State::allocate(std::uint64_t bytes, double touch) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return false;
  use(data, bytes, touch);
  is_own_ = true;
  return true;
}

void State::use(void* memory, std::uint64_t bytes, double touch) {
  words_ = static_cast<std::uint64_t*>(memory);
  block_count_ = bytes / kBlockBytes;
  const auto wanted = static_cast<std::uint64_t>(std::llround(std::min(1 / touch, 1e9)));
  period_ = std::clamp<std::uint64_t>(wanted, 1, block_count_);
}

void State::fill(Identity identity) {
  for (std::uint64_t i = 0; i < block_count_; ++i) write_block(block(i), first_word(identity, i, 0));
}

void State::advance(Identity identity, std::uint64_t step) {
  each_change(step, [&](std::uint64_t begin) {
    const std::uint64_t i = begin / kBlockBytes;
    write_block(block(i), first_word(identity, i, step));
  });
}

std::optional<std::uint64_t> State::first_difference(Identity identity, std::uint64_t step) const {
  for (std::uint64_t i = 0; i < block_count_; ++i)
    if (!equals_block(block(i), first_word(identity, i, written_at(i, step, period_)))) return i * kBlockBytes;
  return std::nullopt;
}

std::span<std::uint64_t> State::tensor(std::uint64_t index, std::uint64_t count) const {
  const std::uint64_t begin = block_count_ * index / count;
  const std::uint64_t end = block_count_ * (index + 1) / count;
  return {block(begin), (end - begin) * kBlockWords};
}

}  // namespace statebench
