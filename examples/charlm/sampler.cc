#include "sampler.h"

#include <cstring>

#include "random.h"

namespace charlm {
namespace {

constexpr std::uint64_t kStateMagic = 0x31726c706d617301ull;

}  // namespace

Sampler::Slice Sampler::slice(std::size_t rank, std::size_t batch) const {
  Slice slice;
  slice.ids.reserve(batch);
  slice.places.reserve(batch);
  const std::uint64_t key = mix64(options_.seed ^ 0x73616d706c6572ull);
  for (std::size_t i = 0; i < batch; ++i) {
    const std::uint64_t id = position_ + rank * batch + i;
    const std::uint64_t place = random_at(key, id) % options_.place_count;
    slice.ids.push_back(id);
    slice.places.push_back(place);
    slice.digest = mix64(mix64(slice.digest ^ id) ^ place);
  }
  return slice;
}

void Sampler::consume(std::size_t batch, std::span<const std::uint64_t> digests) {
  for (const std::uint64_t digest : digests) hash_ = mix64(hash_ ^ digest) + kGolden;
  position_ += batch * digests.size();
}

void Sampler::save(void* buffer) const {
  const std::uint64_t words[3] = {kStateMagic, position_, hash_};
  static_assert(sizeof words == kStateBytes);
  std::memcpy(buffer, words, sizeof words);
}

bool Sampler::load(const void* buffer, std::size_t size) {
  std::uint64_t words[3];
  if (size != sizeof words) return false;
  std::memcpy(words, buffer, sizeof words);
  if (words[0] != kStateMagic) return false;
  position_ = words[1];
  hash_ = words[2];
  return true;
}

}  // namespace charlm
