// Savers that are killed, run out of disk, or meet another: what is at the path is always one whole checkpoint.
//
// A saver is a process that begins a folder and starts one process for each part; all are of one process group, killed
// with SIGKILL at random instants. PAWL_SEED: of the instants, printed on failure. PAWL_ROUNDS: how many kills.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <random>
#include <thread>

#include "base/text.h"
#include "checkpoint/store/store_folder.h"
#include "checkpoint/store/store_test_kit.h"

namespace pawl::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kParts = 2;
enum Exit : int { kSaved = 0, kFailed = 1, kStale = 2, kFull = 3, kWriterDied = 4 };

int exit_of(const Status& status) {
  if (status) return kSaved;
  return status.error().code == Code::stale ? kStale : status.error().code == Code::full ? kFull : kFailed;
}

// The state of a generation: every byte tells which.
struct Generation {
  explicit Generation(std::uint64_t number, std::uint64_t rows_) : number(number), rows(rows_) {
    matrix = pattern(rows * 1024 * 4, number);
    small = pattern(40, number + 1000);
  }
  [[nodiscard]] std::vector<StorePiece> part(std::uint32_t part) const {
    const std::uint64_t half = rows / 2;
    const Box box = part == 0 ? box_of({0, 0}, {half, 1024}) : box_of({half, 0}, {rows - half, 1024});
    std::vector<StorePiece> pieces = {piece_of("matrix", "weight", ElementType::float32, {rows, 1024}, box, matrix)};
    if (part == 0) pieces.push_back(whole_of("small", "buffer", ElementType::float32, {10}, small));
    return pieces;
  }
  std::uint64_t number;
  std::uint64_t rows;
  Bytes matrix, small;
};

Status write_all(int fd, std::string_view bytes) {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t count = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (count <= 0) return Error{Code::io, "pipe"};
    done += static_cast<std::size_t>(count);
  }
  return {};
}

std::string read_all(int fd) {
  std::string out;
  std::array<char, 4096> buffer{};
  for (ssize_t count = 0; (count = ::read(fd, buffer.data(), buffer.size())) > 0;)
    out.append(buffer.data(), static_cast<std::size_t>(count));
  return out;
}

struct Writer {
  pid_t pid = -1;
  int answer = -1;
};

// A rank: writes its part, and answers its share through a pipe.
Writer start_writer(const std::string& folder, const Generation& state, std::uint32_t part, bool dies) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return {};
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::close(ends[0]);
    if (dies && part == 1) {
      std::thread([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        ::kill(::getpid(), SIGKILL);
      }).detach();
    }
    const Result<std::string> share = write_store_part(folder, part, state.part(part), small_options());
    if (dies && part == 1) ::kill(::getpid(), SIGKILL);
    if (!share) ::_exit(exit_of(share.error()));
    ::_exit(exit_of(write_all(ends[1], *share)));
  }
  ::close(ends[1]);
  return {pid, ends[0]};
}

// What all of a job's ranks do together. The exit status of the first.
int save(const std::string& path, const Generation& state, bool a_writer_dies = false) {
  Result<StoreFolder> folder = StoreFolder::begin(path, {.overwrite = true});
  if (!folder) return exit_of(folder.error());
  std::vector<Writer> writers;
  for (std::uint32_t part = 0; part < kParts; ++part)
    writers.push_back(start_writer(folder->folder(), state, part, a_writer_dies));
  std::vector<std::string> shares;
  int worst = kSaved;
  for (const Writer& writer : writers) {
    shares.push_back(read_all(writer.answer));
    ::close(writer.answer);
    int status = 0;
    ::waitpid(writer.pid, &status, 0);
    worst = std::max(worst, WIFEXITED(status) ? WEXITSTATUS(status) : static_cast<int>(kWriterDied));
  }
  if (worst != kSaved) return worst;  // and the folder is abandoned
  return exit_of(folder->publish(shares, {text("{\"generation\":", state.number, "}"), {}}));
}

pid_t start_saver(const std::string& path, const Generation& state, bool a_writer_dies = false) {
  const pid_t pid = ::fork();
  if (pid != 0) {
    (void)::setpgid(pid, pid);  // both do, so that it is so for both
    return pid;
  }
  (void)::setpgid(0, 0);
  ::_exit(save(path, state, a_writer_dies));
}

int exit_status_of(pid_t pid) {
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// The saver and all of its writers.
int kill_saver(pid_t pid) {
  ::kill(-pid, SIGKILL);
  const int status = exit_status_of(pid);
  while (::waitpid(-1, nullptr, 0) > 0) {
  }  // its writers are ours by now
  return status;
}

// Which generation is there, whole and unharmed; 0: none.
std::uint64_t generation_at(const std::string& path, std::uint64_t rows) {
  if (!path_exists(path)) return 0;
  const Result<CheckpointView> view = open_checkpoint(path);
  if (!view) {
    ADD_FAILURE() << view.error().what;
    return ~0u;
  }
  std::uint64_t number = 0;
  const std::string_view values = view->values;
  EXPECT_TRUE(values.starts_with("{\"generation\":") && parse_number(values.substr(14, values.size() - 15), number))
      << values;
  const Generation expected(number, rows);
  const StoredTensor* matrix = find(*view, "matrix", "weight");
  const StoredTensor* small = find(*view, "small", "buffer");
  if (matrix == nullptr || small == nullptr) {
    ADD_FAILURE() << "a tensor is missing";
    return ~0u;
  }
  EXPECT_EQ(load(*view, static_cast<std::uint32_t>(matrix - view->tensors.data())).value_or(Bytes()), expected.matrix);
  EXPECT_EQ(load(*view, static_cast<std::uint32_t>(small - view->tensors.data())).value_or(Bytes()), expected.small);
  const Result<StoreProof> proof = prove_store(path);
  EXPECT_TRUE(proof.has_value() && proof->wrong.empty());
  return number;
}

std::uint64_t seed() {
  const char* given = std::getenv("PAWL_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
}

int rounds() {
  const char* given = std::getenv("PAWL_ROUNDS");
  return given != nullptr ? std::atoi(given) : 16;
}

class StoreCrash : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0); }
  TemporaryDirectory folder_;
  std::string path_ = folder_.path("checkpoint");
};

TEST_F(StoreCrash, AtAnyInstantLeavesTheOldOrTheNew) {
  constexpr std::uint64_t kRows = 700;  // 3 MB, most of it past the page cache
  const std::uint64_t chosen = seed();
  SCOPED_TRACE(text("PAWL_SEED=", chosen));
  std::mt19937_64 random(chosen);
  std::uint64_t there = 0, number = 0;
  int olds = 0, news = 0;
  std::chrono::duration<double> least = std::chrono::hours(1);  // that a save takes: one may have stood still for long
  for (int round = 0; round < rounds() + 3; ++round) {
    ++number;
    const Generation next(number, kRows);
    const auto begun = Clock::now();
    const pid_t saver = start_saver(path_, next);
    int status = -1;
    if (round % 8 == 1 || round == 0) {  // untouched: it must do, whatever the others left
      status = exit_status_of(saver);
      ASSERT_EQ(status, kSaved);
      least = std::min(least, std::chrono::duration<double>(Clock::now() - begun));
    } else {
      std::this_thread::sleep_for(least * std::uniform_real_distribution<double>(0, 1.1)(random));
      status = kill_saver(saver);
    }
    const std::uint64_t found = generation_at(path_, kRows);
    ASSERT_FALSE(testing::Test::HasFailure()) << "round " << round;
    ASSERT_TRUE(found == there || found == number) << found << " in round " << round;
    ASSERT_TRUE(status != kSaved || found == number);
    (found == number ? news : olds) += 1;
    there = found;
  }
  EXPECT_GT(news, 0);
  EXPECT_GT(olds, 0);
}

TEST_F(StoreCrash, OfAFirstSaveLeavesNothingOrAll) {
  constexpr std::uint64_t kRows = 300;
  const std::uint64_t chosen = seed();
  SCOPED_TRACE(text("PAWL_SEED=", chosen));
  std::mt19937_64 random(chosen);
  const Generation state(7, kRows);
  const auto begun = Clock::now();
  ASSERT_EQ(exit_status_of(start_saver(path_, state)), kSaved);
  const std::chrono::duration<double> longest = Clock::now() - begun;
  for (int round = 0; round < rounds() / 2; ++round) {
    ASSERT_TRUE(remove_tree(folder_.path(), path_).has_value());
    const pid_t saver = start_saver(path_, state);
    std::this_thread::sleep_for(longest * std::uniform_real_distribution<double>(0, 1.1)(random));
    (void)kill_saver(saver);
    const std::uint64_t found = generation_at(path_, kRows);
    ASSERT_TRUE(found == 0 || found == 7) << found;
  }
}

TEST_F(StoreCrash, OfOneRankLeavesTheOldOneAndNothingElse) {
  constexpr std::uint64_t kRows = 300;
  ASSERT_EQ(exit_status_of(start_saver(path_, Generation(1, kRows))), kSaved);
  EXPECT_EQ(exit_status_of(start_saver(path_, Generation(2, kRows), true)), kWriterDied);
  EXPECT_EQ(generation_at(path_, kRows), 1u);
  EXPECT_EQ(*real_files().list(folder_.path()), std::vector<std::string>{"checkpoint"});
}

// What a process may write of a file is limited, a little more each time: every write of a saver fails once.
TEST_F(StoreCrash, OfADiskThatIsFullAtEachWriteLeavesTheOldOne) {
  constexpr std::uint64_t kRows = 2;  // data files of some 8 KiB, a manifest of some 600 bytes
  for (const bool is_first : {true, false}) {
    if (!is_first) {
      ASSERT_EQ(exit_status_of(start_saver(path_, Generation(1, kRows))), kSaved);
    }
    bool saved = false;
    int full = 0;
    for (rlim_t limit = 0; limit < 16'384 && !saved; limit += limit < 1024 ? 40 : 1500) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        ::signal(SIGXFSZ, SIG_IGN);
        const rlimit limits{limit, limit};
        if (::setrlimit(RLIMIT_FSIZE, &limits) != 0) ::_exit(100);
        ::_exit(save(path_, Generation(2, kRows)));
      }
      const int status = exit_status_of(pid);
      ASSERT_TRUE(status == kSaved || status == kFull) << status << " at " << limit;
      saved = status == kSaved;
      full += status == kFull;
      ASSERT_EQ(generation_at(path_, kRows), saved ? 2u : is_first ? 0u : 1u) << limit;
      ASSERT_FALSE(path_exists(path_ + kPartialSuffix)) << limit;
    }
    EXPECT_TRUE(saved);
    EXPECT_GT(full, 20);
    EXPECT_EQ(generation_at(path_, kRows), 2u);
    ASSERT_TRUE(remove_tree(folder_.path(), path_).has_value());
  }
}

// Only the small files: the manifest and the marker are written by the first rank alone.
TEST_F(StoreCrash, OfADiskThatIsFullWhilePublishingLeavesTheOldOne) {
  constexpr std::uint64_t kRows = 2;
  ASSERT_EQ(exit_status_of(start_saver(path_, Generation(1, kRows))), kSaved);
  int full = 0;
  bool saved = false;
  for (rlim_t limit = 0; limit < 2000 && !saved; limit += 30) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      const Generation next(2, kRows);
      Result<StoreFolder> folder = StoreFolder::begin(path_, {.overwrite = true});
      if (!folder) ::_exit(100);
      std::vector<std::string> shares;
      for (std::uint32_t part = 0; part < kParts; ++part) {
        const Result<std::string> share = write_store_part(folder->folder(), part, next.part(part));
        if (!share) ::_exit(101);
        shares.push_back(*share);
      }
      ::signal(SIGXFSZ, SIG_IGN);
      const rlimit limits{limit, limit};
      if (::setrlimit(RLIMIT_FSIZE, &limits) != 0) ::_exit(102);
      const int done = exit_of(folder->publish(shares, {"{\"generation\":2}", {}}));
      folder->abandon();
      ::_exit(done);
    }
    const int status = exit_status_of(pid);
    ASSERT_TRUE(status == kSaved || status == kFull) << status << " at " << limit;
    saved = status == kSaved;
    full += status == kFull;
    ASSERT_EQ(generation_at(path_, kRows), saved ? 2u : 1u) << limit;
    ASSERT_FALSE(path_exists(path_ + kPartialSuffix)) << limit;
  }
  EXPECT_TRUE(saved);
  EXPECT_GT(full, 5);
}

TEST_F(StoreCrash, IsNoneOfSaversThatMeet) {
  constexpr std::uint64_t kRows = 100;
  ASSERT_EQ(exit_status_of(start_saver(path_, Generation(1, kRows))), kSaved);
  std::uint64_t number = 1;
  for (int round = 0; round < 6; ++round) {
    std::vector<pid_t> savers;
    const std::uint64_t first = number + 1;
    for (int i = 0; i < 3; ++i) savers.push_back(start_saver(path_, Generation(++number, kRows)));
    int of_round = 0;
    for (const pid_t saver : savers) {
      const int status = exit_status_of(saver);
      EXPECT_TRUE(status == kSaved || status == kStale) << status;
      of_round += status == kSaved;
    }
    const std::uint64_t found = generation_at(path_, kRows);
    ASSERT_FALSE(testing::Test::HasFailure()) << "round " << round;
    EXPECT_GE(of_round, 1);
    EXPECT_TRUE(found >= first && found <= number) << found;
  }
  EXPECT_EQ(*real_files().list(folder_.path()), std::vector<std::string>{"checkpoint"});
}

}  // namespace
}  // namespace pawl::checkpoint
