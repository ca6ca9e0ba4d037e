#include "base/crc32c.h"

#include <array>
#include <bit>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

// The kernels read slots that a trainer may be overwriting (Slot::verify throws the sum away when the slot's word has
// moved), which is a race on purpose. Never inlined: a caller's instrumentation would come over them.
#define PAWL_RACY __attribute__((no_sanitize("thread"), noinline))

namespace pawl {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78;  // reflected: bit 31 is x^0

constexpr std::array<std::uint32_t, 256> make_byte_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ ((rest & 1) != 0 ? kPolynomial : 0);
    table[byte] = rest;
  }
  return table;
}
constexpr std::array<std::uint32_t, 256> kByteTable = make_byte_table();

// a * b modulo the polynomial.
constexpr std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (int bit = 31; bit >= 0; --bit) {
    if ((a >> bit & 1) != 0) product ^= b;
    b = (b >> 1) ^ ((b & 1) != 0 ? kPolynomial : 0);  // b * x
  }
  return product;
}

// x^(8 * bytes): appending that many zero bytes multiplies a CRC by it.
constexpr std::uint32_t zeros_factor(std::uint64_t bytes) {
  std::uint32_t result = 1u << 31;  // x^0
  std::uint32_t square = 1u << 23;  // x^8
  for (; bytes != 0; bytes >>= 1) {
    if ((bytes & 1) != 0) result = multiply(result, square);
    square = multiply(square, square);
  }
  return result;
}

PAWL_RACY std::uint32_t run_table(const std::byte* from, std::size_t size, std::uint32_t state) {
  for (std::size_t i = 0; i < size; ++i) {
    state = (state >> 8) ^ kByteTable[(state ^ static_cast<std::uint32_t>(from[i])) & 255];
  }
  return state;
}

#if defined(__x86_64__)

// The crc32 instruction takes 8 bytes, answers after 3 cycles and can start each cycle: three lanes keep it busy. The
// lanes' sums are joined by multiplying with zeros_factor(lane), by table.
constexpr std::size_t kLongLane = 4096;
constexpr std::size_t kShortLane = 256;
constexpr std::size_t kStreamBytesMin = 64 << 10;  // below, what was written is better left in the cache

using ShiftTable = std::array<std::array<std::uint32_t, 256>, 4>;

constexpr ShiftTable make_shift_table(std::uint64_t bytes) {
  ShiftTable table{};
  const std::uint32_t factor = zeros_factor(bytes);
  for (std::uint32_t place = 0; place < 4; ++place) {
    for (std::uint32_t byte = 1; byte < 256; ++byte) {
      const std::uint32_t rest = byte & (byte - 1);  // linear: the entry without its lowest bit, plus that bit's own
      table[place][byte] =
          rest != 0 ? table[place][rest] ^ table[place][byte ^ rest] : multiply(factor, byte << (8 * place));
    }
  }
  return table;
}
constexpr ShiftTable kLongShift = make_shift_table(kLongLane);
constexpr ShiftTable kShortShift = make_shift_table(kShortLane);

inline std::uint32_t shift(const ShiftTable& table, std::uint32_t state) {
  return table[0][state & 255] ^ table[1][state >> 8 & 255] ^ table[2][state >> 16 & 255] ^ table[3][state >> 24];
}

using Word [[gnu::may_alias, gnu::aligned(1)]] = long long;

// A streaming store goes past the caches by whole lines of 64 bytes. A line that is written in parts, with others between,
// may reach memory part by part: on some processors 25 times as slow as any other copy. So a lane writes a line at once.
constexpr std::size_t kLineBytes = 64;
static_assert(kLongLane % kLineBytes == 0 && kShortLane % kLineBytes == 0);

enum class Store { none, plain, stream };

// `store`, `load` and `sum` are macros and not functions because a function is inlined into a kernel only if it has the
// same target and sanitizer attributes, which compilers judge differently.
#define PAWL_LANE(lane, state)                                                                                    \
  do {                                                                                                            \
    const Word word_ = *reinterpret_cast<const Word*>(from + (lane) + i);                                         \
    (state) = _mm_crc32_u64((state), static_cast<unsigned long long>(word_));                                     \
    if constexpr (kStore == Store::plain) *reinterpret_cast<Word*>(to + (lane) + i) = word_;                      \
    if constexpr (kStore == Store::stream) _mm_stream_si64(reinterpret_cast<long long*>(to + (lane) + i), word_); \
  } while (false)

#define PAWL_LINE_ENDS asm volatile("" ::: "memory")  // the compiler moves no store of another line before it
#define PAWL_LINE(lane, state)     \
  do {                             \
    PAWL_LANE((lane) + 0, state);  \
    PAWL_LANE((lane) + 8, state);  \
    PAWL_LANE((lane) + 16, state); \
    PAWL_LANE((lane) + 24, state); \
    PAWL_LANE((lane) + 32, state); \
    PAWL_LANE((lane) + 40, state); \
    PAWL_LANE((lane) + 48, state); \
    PAWL_LANE((lane) + 56, state); \
    PAWL_LINE_ENDS;                \
  } while (false)

template <Store kStore, std::size_t kLane>
__attribute__((target("sse4.2"))) PAWL_RACY std::uint32_t run_lanes(std::byte*& to, const std::byte*& from,
                                                                    std::size_t& size, std::uint32_t state,
                                                                    const ShiftTable& table) {
  while (size >= 3 * kLane) {
    std::uint64_t a = state, b = 0, c = 0;
    for (std::size_t i = 0; i < kLane; i += kLineBytes) {
      PAWL_LINE(0, a);
      PAWL_LINE(kLane, b);
      PAWL_LINE(2 * kLane, c);
    }
    state = shift(table, static_cast<std::uint32_t>(a)) ^ static_cast<std::uint32_t>(b);
    state = shift(table, state) ^ static_cast<std::uint32_t>(c);
    from += 3 * kLane;
    if constexpr (kStore != Store::none) to += 3 * kLane;
    size -= 3 * kLane;
  }
  return state;
}

template <Store kStore>
__attribute__((target("sse4.2"))) PAWL_RACY std::uint32_t run_sse42(std::byte* to, const std::byte* from,
                                                                    std::size_t size, std::uint32_t state) {
  state = run_lanes<kStore, kLongLane>(to, from, size, state, kLongShift);
  state = run_lanes<kStore, kShortLane>(to, from, size, state, kShortShift);
  std::uint64_t wide = state;
  std::size_t i = 0;
  for (; i + 8 <= size; i += 8) PAWL_LANE(0, wide);
  state = static_cast<std::uint32_t>(wide);
  for (; i < size; ++i) {
    const std::byte byte = from[i];
    state = _mm_crc32_u8(state, static_cast<unsigned char>(byte));
    if constexpr (kStore != Store::none) to[i] = byte;
  }
  return state;
}
#undef PAWL_LINE
#undef PAWL_LINE_ENDS
#undef PAWL_LANE

const bool has_sse42 = [] {
  __builtin_cpu_init();
  return __builtin_cpu_supports("sse4.2") != 0;
}();

#endif

}  // namespace

std::uint32_t crc32c_reference(std::span<const std::byte> bytes, std::uint32_t seed) {
  return ~run_table(bytes.data(), bytes.size(), ~seed);
}

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t seed) {
#if defined(__x86_64__)
  if (has_sse42) return ~run_sse42<Store::none>(nullptr, bytes.data(), bytes.size(), ~seed);
#endif
  return crc32c_reference(bytes, seed);
}

std::uint32_t crc32c_combine(std::uint32_t first, std::uint32_t second, std::uint64_t second_bytes) {
  return multiply(zeros_factor(second_bytes), first) ^ second;
}

PAWL_RACY std::uint32_t copy_crc32c_reference(std::byte* to, const std::byte* from, std::size_t size) {
  std::uint32_t state = ~0u;
  for (std::size_t i = 0; i < size; ++i) {
    const std::byte byte = from[i];
    state = (state >> 8) ^ kByteTable[(state ^ static_cast<std::uint32_t>(byte)) & 255];
    to[i] = byte;
  }
  return ~state;
}

std::uint32_t copy_crc32c(std::byte* to, const std::byte* from, std::size_t size) {
#if defined(__x86_64__)
  if (has_sse42) {
    const bool aligned = std::bit_cast<std::uintptr_t>(to) % kLineBytes == 0;
    if (!aligned || size < kStreamBytesMin) return ~run_sse42<Store::plain>(to, from, size, ~0u);
    const std::uint32_t state = run_sse42<Store::stream>(to, from, size, ~0u);
    _mm_sfence();  // else a bucket's `ready` could be seen before its bytes
    return ~state;
  }
#endif
  return copy_crc32c_reference(to, from, size);
}

const char* crc32c_kernel_name() {
#if defined(__x86_64__)
  if (has_sse42) return "sse4.2";
#endif
  return "table";
}

}  // namespace pawl
