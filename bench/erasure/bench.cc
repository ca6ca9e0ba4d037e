// What encoding, rebuilding, and copying with parity make of this machine's memory, against its read and copy limits and
// against ISA-L: erasure_bench [MIB of a fragment] [ROUNDS] [THREADS] [ISA-L]. bench/erasure/run gets ISA-L.
//
// A row is a name and what is timed (rows_of): to add one, add it there. GB/s are of data read, not of parity. Rounds are
// shuffled; a ratio is formed within its round, against the row that `against` names. Threads are pinned, each has its part
// of all fragments. All memory is touched before, and results are compared with ISA-L's before anything is measured.
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/memory_kernel.h"
#include "base/text.h"
#include "isal.h"
#include "job/erasure/copied_parity.h"
#include "job/erasure/parity.h"
#include "job/erasure/parity_kernel.h"
#include "job/erasure/parity_sums.h"
#include "print.h"

namespace pawl::job::bench {
namespace {

using pawl::bench::load;
using pawl::bench::spread;

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kPieceBytes = 256 << 10;  // a bucket: what one call gets
constexpr std::size_t kBuffers = 14;            // 8+3, and three parities to compare with; or 4+2, and four copies
constexpr std::size_t kHotBytes = 32 << 10;     // of a fragment: 4+2 of them stay in a core's own cache

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "erasure_bench: %s\n", why.c_str());
  std::exit(1);
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Fragments that lie one after the other, each on a page of its own.
class Buffers {
 public:
  explicit Buffers(std::size_t bytes) : bytes_(bytes) {
    void* memory = mmap(nullptr, kBuffers * stride(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) give_up("no memory");
    begin_ = static_cast<std::byte*>(memory);
    std::mt19937_64 random(static_cast<unsigned>(getpid()));
    auto* words = reinterpret_cast<std::uint64_t*>(begin_);
    for (std::size_t i = 0; i < kBuffers * stride() / 8; ++i) words[i] = random();
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  ~Buffers() { munmap(begin_, kBuffers * stride()); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] std::byte* at(std::size_t index) const { return begin_ + index * stride(); }

 private:
  [[nodiscard]] std::size_t stride() const {
    return bytes_ + kPageBytes;
  }  // so that not all are in the same sets of a cache
  std::size_t bytes_;
  std::byte* begin_;
};

// `count` buffers from `first` on, [begin, begin + size) of each.
std::vector<std::byte*> pieces_of(const Buffers& buffers, std::size_t first, std::size_t count, std::size_t begin) {
  std::vector<std::byte*> pieces;
  for (std::size_t i = 0; i < count; ++i) pieces.push_back(buffers.at(first + i) + begin);
  return pieces;
}
std::vector<FragmentBytes> bytes_of(std::span<std::byte* const> pieces, std::size_t size) {
  std::vector<FragmentBytes> fragments;
  for (const std::byte* piece : pieces) fragments.emplace_back(piece, size);
  return fragments;
}
std::vector<FragmentRoom> rooms_of(std::span<std::byte* const> pieces, std::size_t size) {
  std::vector<FragmentRoom> fragments;
  for (std::byte* piece : pieces) fragments.emplace_back(piece, size);
  return fragments;
}
void must(const Status& status) {
  if (!status) give_up(status.error().what);
}

// Reads all, a line of each fragment in turn, and nothing else: of the orders that were tried the fastest.
using Lane = std::uint64_t __attribute__((vector_size(64), may_alias));
#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
std::uint64_t
read_all(const std::byte* const* fragments, std::size_t count, std::size_t size) {
  Lane sum = {};
  for (std::size_t at = 0; at + 64 <= size; at += 64) {
    for (std::size_t i = 0; i < count; ++i) sum ^= *reinterpret_cast<const Lane*>(fragments[i] + at);
  }
  std::uint64_t all = 0;
  for (int i = 0; i < 8; ++i) all ^= sum[i];
  return all;
}
// Copies past the caches in the order of addresses.
#if defined(__x86_64__)
__attribute__((target("avx512f"), noinline)) void copy_lines(std::byte* to, const std::byte* from, std::size_t size) {
  for (std::size_t at = 0; at + 64 <= size; at += 64)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at), _mm512_loadu_si512(from + at));
}
bool copies_in_order() {
  return __builtin_cpu_supports("avx512f") != 0;
}
#else
void copy_lines(std::byte* to, const std::byte* from, std::size_t size) {}
bool copies_in_order() {
  return false;
}
#endif

// Called with a part of all fragments: [begin, begin + size).
using Part = std::function<void(std::size_t begin, std::size_t size)>;

struct Sample {
  double seconds = 0;
  double core_seconds = 0;
};

struct Row {
  std::string name;
  std::string against;
  double data_bytes = 0;
  std::function<Sample()> sample{};
};

double core_seconds_now() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

Sample timed(const std::function<void()>& work) {
  const double begun = seconds_now(), used = core_seconds_now();
  work();
  return {seconds_now() - begun, core_seconds_now() - used};
}

void by_threads(std::size_t bytes, unsigned threads, const Part& part) {
  const std::size_t each = bytes / threads / kPageBytes * kPageBytes;
  std::vector<std::thread> others;
  for (unsigned i = 1; i < threads; ++i) {
    others.emplace_back([&, i] {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(i, &set);
      pthread_setaffinity_np(pthread_self(), sizeof set, &set);
      part(i * each, i + 1 == threads ? bytes - i * each : each);
    });
  }
  part(0, threads == 1 ? bytes : each);
  for (std::thread& other : others) other.join();
}

constexpr const char* kRead4 = "read, 4 fragments in turn";
constexpr const char* kRead8 = "read, 8 fragments in turn";
constexpr const char* kCopy = "copy, best kernel";
constexpr const char* kCopyInOrder = "copy, lines in order";
constexpr const char* kCopySum = "copy with CRC32C, best kernel";

class Rows {
 public:
  Rows(const Buffers& buffers, unsigned threads, const std::optional<Isal>& isal)
      : buffers_(buffers), threads_(threads), isal_(isal) {}

  // In pieces of kPieceBytes, as buckets come.
  void add(std::string name, std::string against, std::size_t sources, const Part& piece) {
    rows_.push_back({std::move(name), std::move(against), static_cast<double>(sources * buffers_.bytes()), [=, this] {
                       return timed([&] {
                         by_threads(buffers_.bytes(), threads_, [&](std::size_t begin, std::size_t size) {
                           for (std::size_t at = begin; at < begin + size; at += kPieceBytes)
                             piece(at, std::min(kPieceBytes, begin + size - at));
                         });
                       });
                     }});
  }
  // The same piece over and over.
  void add_hot(std::string name, std::string against, std::size_t sources, const std::function<void()>& work) {
    const std::size_t times = buffers_.bytes() / kHotBytes;
    rows_.push_back({std::move(name), std::move(against), static_cast<double>(sources * times * kHotBytes), [=] {
                       return timed([&] {
                         for (std::size_t i = 0; i < times; ++i) work();
                       });
                     }});
  }
  [[nodiscard]] const std::vector<Row>& all() const { return rows_; }

  void limits() {
    for (const std::size_t k : {4U, 8U}) {
      const char* const name = k == 4 ? kRead4 : kRead8;
      add(name, name, k, [this, k](std::size_t at, std::size_t size) {
        sink_ = sink_ ^ read_all(pieces_of(buffers_, 0, k, at).data(), k, size);
      });
    }
    add(kCopy, kCopy, 4, [this](std::size_t at, std::size_t size) {
      for (std::size_t i = 0; i < 4; ++i)
        memory_kernel().copy_rows({buffers_.at(4 + i) + at, 0, buffers_.at(i) + at, 0, size, 1});
      memory_fence();
    });
    if (copies_in_order()) {
      add(kCopyInOrder, kCopy, 4, [this](std::size_t at, std::size_t size) {
        for (std::size_t i = 0; i < 4; ++i) copy_lines(buffers_.at(4 + i) + at, buffers_.at(i) + at, size);
        memory_fence();
      });
    }
    add(kCopySum, kCopy, 4, [this](std::size_t at, std::size_t size) {
      for (std::size_t i = 0; i < 4; ++i)
        (void)memory_kernel().copy_and_sum(buffers_.at(4 + i) + at, buffers_.at(i) + at, size, ~0U);
      memory_fence();
    });
  }

  void encodes(std::uint32_t k, std::uint32_t m, bool is_hot) {
    const ErasureCode code = *ErasureCode::make(k, m);
    const std::string what = text(m == 1 ? "XOR " : "RS ", k, "+", m, is_hot ? " hot" : "");
    const std::string peer = what + ", ISA-L";
    const Part ours = [this, code, k, m](std::size_t at, std::size_t size) {
      must(encode(code, bytes_of(pieces_of(buffers_, 0, k, at), size), rooms_of(pieces_of(buffers_, k, m, at), size)));
    };
    const std::string limit = k == 4 ? kRead4 : kRead8;
    const std::string against = m == 1 || !isal_ ? limit : peer;
    if (is_hot) {
      add_hot(what, isal_ ? peer : what, k, [ours] { ours(0, kHotBytes); });
    } else {
      add(what, against, k, ours);
    }
    if (!isal_) return;
    const Isal::Tables tables = isal_->tables_of(code.coefficients(), k);
    const auto theirs = [this, tables, k, m](std::size_t first, std::size_t at, std::size_t size) {
      isal_->multiply(tables, pieces_of(buffers_, 0, k, at), pieces_of(buffers_, first, m, at), size);
    };
    ours(0, kPieceBytes);
    theirs(k + m, 0, kPieceBytes);
    must_be_equal(what, k, k + m, m);
    if (is_hot) {
      add_hot(peer, peer, k, [theirs, k] { theirs(k, 0, kHotBytes); });
      return;
    }
    add(peer, against, k, [theirs, k](std::size_t at, std::size_t size) { theirs(k, at, size); });
    if (m != 1) return;
    add("XOR " + std::to_string(k) + "+1, ISA-L's xor_gen", limit, k,
        [this, k](std::size_t at, std::size_t size) { isal_->exclusive_or(pieces_of(buffers_, 0, k + 1, at), size); });
  }

  void decodes() {  // data 0 and 3 of 4+2
    const ErasureCode code = *ErasureCode::make(4, 2);
    const std::vector<std::uint32_t> there{1, 2, 4, 5}, lost{0, 3};
    const DecodePlan plan = *code.plan_decode(there, lost);
    const auto sources = [this, plan](std::size_t at) {
      std::vector<std::byte*> pieces;
      for (const std::uint32_t source : plan.sources) pieces.push_back(buffers_.at(source) + at);
      return pieces;
    };
    add("decode 2 of 6", isal_ ? "decode 2 of 6, ISA-L" : kRead4, 4,
        [this, plan, sources](std::size_t at, std::size_t size) {
          must(decode(plan, bytes_of(sources(at), size), rooms_of(pieces_of(buffers_, 6, 2, at), size)));
        });
    if (!isal_) return;
    const Isal::Tables tables = isal_->tables_of(plan.coefficients, 4);
    must(decode(plan, bytes_of(sources(0), kPieceBytes), rooms_of(pieces_of(buffers_, 6, 2, 0), kPieceBytes)));
    isal_->multiply(tables, sources(0), pieces_of(buffers_, 8, 2, 0), kPieceBytes);
    must_be_equal("decode", 6, 8, 2);
    add("decode 2 of 6, ISA-L", "decode 2 of 6, ISA-L", 4, [this, tables, sources](std::size_t at, std::size_t size) {
      isal_->multiply(tables, sources(at), pieces_of(buffers_, 6, 2, at), size);
    });
  }

  void with_copies() {
    const ErasureCode code = *ErasureCode::make(4, 2);
    for (const char* const limit : {kCopy, kCopyInOrder, kCopySum}) {
      if (limit == kCopyInOrder && !copies_in_order()) continue;
      add(limit == kCopy ? "copy, CRC32C and RS 4+2 in one pass" : text("the same, beside: ", limit), limit, 4,
          [this, code](std::size_t at, std::size_t size) {
            std::vector<FragmentCopy> copies;
            for (std::size_t i = 0; i < 4; ++i)
              copies.push_back({{buffers_.at(i) + at, size}, {buffers_.at(4 + i) + at, size}});
            must(encode_copied(code, copies, rooms_of(pieces_of(buffers_, 8, 2, at), size)));
          });
    }
    add("the same in two passes, the second behind by 64 MiB", kCopy, 4,
        [this, code](std::size_t at, std::size_t size) {
          for (std::size_t i = 0; i < 4; ++i)
            (void)memory_kernel().copy_and_sum(buffers_.at(4 + i) + at, buffers_.at(i) + at, size, ~0U);
          const std::size_t later = (at + (64 << 20)) % buffers_.bytes();
          const std::size_t room = std::min(size, buffers_.bytes() - later);
          must(encode(code, bytes_of(pieces_of(buffers_, 0, 4, later), room),
                      rooms_of(pieces_of(buffers_, 8, 2, later), room)));
        });
    add("one by one: copy, CRC32C, contribution to 2 parities", kCopy, 4,
        [this, code](std::size_t at, std::size_t size) {
          for (std::uint32_t i = 0; i < 4; ++i) {
            const std::vector<ParityRoom> rooms{{0, {buffers_.at(8) + at, size}}, {1, {buffers_.at(9) + at, size}}};
            const auto sum = contribute_copied(code, i, {{buffers_.at(i) + at, size}, {buffers_.at(4 + i) + at, size}},
                                               rooms, i == 0 ? Contribution::first : Contribution::further);
            if (!sum) give_up(sum.error().what);
          }
        });
    add("CRC32C of 2 multiples", kRead4, 4, [this](std::size_t at, std::size_t size) {
      const std::array<std::uint8_t, 2> coefficients{1, 7};
      std::array<std::uint32_t, 2> sums{};
      for (std::size_t i = 0; i < 4; ++i) multiplied_crc32c({buffers_.at(i) + at, size}, coefficients, sums);
    });
  }

 private:
  void must_be_equal(const std::string& what, std::size_t ours, std::size_t theirs, std::size_t count) const {
    for (std::size_t i = 0; i < count; ++i) {
      if (std::memcmp(buffers_.at(ours + i), buffers_.at(theirs + i), kPieceBytes) != 0)
        give_up(what + ": ISA-L makes other bytes");
    }
  }
  const Buffers& buffers_;
  unsigned threads_;
  const std::optional<Isal>& isal_;
  std::vector<Row> rows_;
  volatile std::uint64_t sink_ = 0;
};

void measure(std::size_t bytes, int rounds, unsigned threads, const std::string& isal_path) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(0, &set);
  sched_setaffinity(0, sizeof set, &set);
  std::string why;
  const std::optional<Isal> isal = Isal::load(isal_path, why);
  std::printf("%zu MiB a fragment, %u threads; kernels %s and %s; %s; load %s before\n", bytes >> 20, threads,
              parity_kernel().name, memory_kernel().name,
              isal ? ("ISA-L is " + isal->path()).c_str() : ("ISA-L is left out: " + why).c_str(), load().c_str());
  const Buffers buffers(bytes);
  Rows rows(buffers, threads, isal);
  rows.limits();
  for (const auto& [k, m] : {std::pair{4U, 1U}, {8U, 1U}, {4U, 2U}, {8U, 2U}, {8U, 3U}}) rows.encodes(k, m, false);
  rows.decodes();
  rows.with_copies();
  if (threads == 1) {
    for (const auto& [k, m] : {std::pair{4U, 1U}, {4U, 2U}, {8U, 2U}, {8U, 3U}}) rows.encodes(k, m, true);
  }

  std::vector<std::size_t> order(rows.all().size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::mt19937 random(static_cast<unsigned>(getpid()));
  std::vector<std::vector<Sample>> samples(order.size());
  for (int round = 0; round < rounds; ++round) {
    std::ranges::shuffle(order, random);
    for (const std::size_t i : order) samples[i].push_back(rows.all()[i].sample());
  }
  std::printf("load %s after; medians of %d shuffled rounds (least .. greatest)\n\n", load().c_str(), rounds);
  std::printf(
      "| | GB/s of data | GB a second of a core | of the rate of | ratio | ratio by time of cores "
      "|\n|---|---|---|---|---|---|\n");
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const Row& row = rows.all()[i];
    const auto peer = static_cast<std::size_t>(
        std::ranges::find_if(rows.all(), [&](const Row& each) { return each.name == row.against; }) -
        rows.all().begin());
    const double scale = row.data_bytes / rows.all()[peer].data_bytes;
    std::vector<double> rates, core_rates, ratios, core_ratios;
    for (std::size_t round = 0; round < samples[i].size(); ++round) {
      const Sample &sample = samples[i][round], &other = samples[peer][round];
      rates.push_back(row.data_bytes / sample.seconds * 1e-9);
      core_rates.push_back(row.data_bytes / sample.core_seconds * 1e-9);
      ratios.push_back(scale * other.seconds / sample.seconds);
      core_ratios.push_back(scale * other.core_seconds / sample.core_seconds);
    }
    std::printf("| %s | %s | %s | %s | %s | %s |\n", row.name.c_str(), spread(rates, 1).c_str(),
                spread(core_rates, 1).c_str(), row.against.c_str(), spread(ratios, 2).c_str(),
                spread(core_ratios, 2).c_str());
  }
}

}  // namespace
}  // namespace pawl::job::bench

int main(int argc, char** argv) {
  const std::size_t mib = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 384;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 7;
  const int threads = argc > 3 ? std::atoi(argv[3]) : 1;
  if (mib == 0 || rounds < 1 || threads < 1) {
    std::fprintf(stderr, "erasure_bench [MIB of a fragment] [ROUNDS] [THREADS] [ISA-L]\n");
    return 2;
  }
  pawl::job::bench::measure(mib << 20, rounds, static_cast<unsigned>(threads), argc > 4 ? argv[4] : "libisal.so.2");
}
