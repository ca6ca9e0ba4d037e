// Every call to the system that a save makes, failed once: what is at the path is then the old checkpoint, whole, and
// nothing is left beside it. Each failure names its path. And savers that meet: the second is told who holds it.
//
// This program's own open(), pwrite(), fsync(), ... stand before those of the C library, and the nth one fails while a
// save is going on. (Writes by io_uring can't be failed so: store_crash_test fills its disk.)
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>

#include "base/text.h"
#include "checkpoint/store/store_folder.h"
#include "checkpoint/store/store_test_kit.h"

namespace {

// What fails: of the calls of these names the nth, with this errno. Armed only while a save runs.
struct Faults {
  std::atomic<bool> armed{false};
  int fail_at = 0;  // from 1; 0: none
  int error = EIO;
  bool syncs_only = false;
  std::mutex mutex;
  std::vector<std::string> calls;  // their names, since it was armed
};
Faults faults;

bool fails(const char* call, bool is_sync) {
  if (!faults.armed || (faults.syncs_only && !is_sync)) return false;
  const std::lock_guard lock(faults.mutex);
  faults.calls.emplace_back(call);
  if (static_cast<int>(faults.calls.size()) != faults.fail_at) return false;
  errno = faults.error;
  return true;
}

}  // namespace

#define PAWL_FAILING(call, ...) fails(#call, false) ? -1 : static_cast<int>(::syscall(SYS_##call, __VA_ARGS__))
extern "C" {
int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const auto mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : mode_t{0};
  va_end(rest);
  if ((flags & O_CREAT) != 0 && fails("open", false)) return -1;
  return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}
int mkdir(const char* path, mode_t mode) noexcept {
  return fails("mkdir", false) ? -1 : static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}
int ftruncate(int fd, off_t size) noexcept {
  return PAWL_FAILING(ftruncate, fd, size);
}
int fallocate(int fd, int mode, off_t offset, off_t size) {
  return PAWL_FAILING(fallocate, fd, mode, offset, size);
}
ssize_t pwrite(int fd, const void* bytes, size_t size, off_t offset) {
  return fails("pwrite", false) ? -1 : ::syscall(SYS_pwrite64, fd, bytes, size, offset);
}
int fsync(int fd) {
  return fails("fsync", true) ? -1 : static_cast<int>(::syscall(SYS_fsync, fd));
}
int fdatasync(int fd) {
  return fails("fdatasync", true) ? -1 : static_cast<int>(::syscall(SYS_fdatasync, fd));
}
int chmod(const char* path, mode_t mode) noexcept {
  return fails("chmod", false) ? -1 : static_cast<int>(::syscall(SYS_fchmodat, AT_FDCWD, path, mode));
}
int rename(const char* from, const char* to) noexcept {
  return fails("rename", false) ? -1 : static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0u));
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  return PAWL_FAILING(renameat2, from_folder, from, to_folder, to, flags);
}
}

namespace pawl::checkpoint {
namespace {

struct Trial {
  Status status;
  std::vector<std::string> calls;
};

class StoreFaults : public testing::Test {
 protected:
  // Two parts of two pieces, as two ranks write them.
  Status save(std::uint64_t generation) {
    const Bytes matrix = pattern(64 * 4, generation), small = pattern(40, generation + 1000);
    PAWL_ASSIGN(StoreFolder folder, StoreFolder::begin(path_, {.overwrite = true, .bytes = 64 * 4 + 40}));
    std::vector<std::string> shares;
    StorePartOptions options = small_options();
    options.execution.io_uring = options.execution.direct = false;
    for (std::uint64_t part = 0; part < 2; ++part) {
      std::vector<StorePiece> pieces = {
          piece_of("matrix", "weight", ElementType::float32, {8, 8}, box_of({4 * part, 0}, {4, 8}), matrix)};
      if (part == 0) pieces.push_back(whole_of("small", "buffer", ElementType::float32, {10}, small));
      PAWL_ASSIGN(std::string share,
                  write_store_part(folder.folder(), static_cast<std::uint32_t>(part), pieces, options));
      shares.push_back(std::move(share));
    }
    return folder.publish(shares, {text("{\"generation\":", generation, "}"), {}});
  }

  Trial save_with(std::uint64_t generation, int fail_at, int error, bool syncs_only) {
    faults.calls.clear();
    faults.fail_at = fail_at;
    faults.error = error;
    faults.syncs_only = syncs_only;
    faults.armed = true;
    Trial trial{save(generation), {}};
    faults.armed = false;
    trial.calls = faults.calls;
    return trial;
  }

  // Which one is there, every checksum proven; 0: none.
  std::uint64_t generation_there() {
    if (!path_exists(path_)) return 0;
    const Result<CheckpointView> view = open_checkpoint(path_);
    const Result<StoreProof> proof = prove_store(path_, {.threads = 1});
    if (!view || !proof || !proof->wrong.empty()) {
      ADD_FAILURE() << (view ? "damaged" : view.error().what);
      return ~0u;
    }
    std::uint64_t generation = 0;
    EXPECT_TRUE(parse_number(std::string_view(view->values).substr(14, view->values.size() - 15), generation));
    EXPECT_EQ(load(*view, 0).value_or(Bytes()), pattern(64 * 4, generation));
    return generation;
  }

  void make_old(std::uint64_t generation) {
    ASSERT_TRUE(remove_tree(folder_.path(), path_).has_value());
    if (generation != 0) {
      ASSERT_TRUE(save(generation).has_value());
    }
  }

  void expect_failed(const Trial& trial, int fail_at, std::uint64_t there) {
    const std::string call = trial.calls.empty() ? "" : trial.calls.back();
    SCOPED_TRACE(text("call ", fail_at, ", ", call));
    EXPECT_NE(trial.status.error().what.find(folder_.path()), std::string::npos) << trial.status.error().what;
    EXPECT_EQ(generation_there(), there) << trial.status.error().what;
    EXPECT_EQ(real_files().list(folder_.path())->size(), there == 0 ? 0u : 1u) << "something is left";
  }

  TemporaryDirectory folder_;
  std::string path_ = folder_.path("checkpoint");
};

TEST_F(StoreFaults, AnyCallThatFailsLeavesTheOldOneAndNothingElse) {
  for (const int error : {EIO, ENOSPC})
    for (const std::uint64_t old : {0, 1}) {
      make_old(old);
      int failed = 0, spared = 0;
      Trial trial = save_with(2, 1, error, false);
      for (int fail_at = 1; static_cast<int>(trial.calls.size()) >= fail_at;) {
        ASSERT_LT(fail_at, 200);
        if (trial.status) {  // what only says whose the folder is, or clears up the old one: the next save does that
          ++spared;
          EXPECT_EQ(generation_there(), 2u);
          make_old(old);
        } else {
          ++failed;
          expect_failed(trial, fail_at, old);
          const Error& said = trial.status.error();
          EXPECT_EQ(said.code, error == EIO ? Code::io : Code::full) << said.what;
          EXPECT_EQ(said.what.find("free some space") != std::string::npos, error == ENOSPC) << said.what;
        }
        ASSERT_FALSE(testing::Test::HasFailure());
        trial = save_with(2, ++fail_at, error, false);
      }
      EXPECT_GT(failed, 25);
      EXPECT_LT(spared, 10);
      EXPECT_EQ(generation_there(), 2u);
    }
}

// The bytes of a file that could not be synced count as lost, however often one asks again.
TEST_F(StoreFaults, NothingIsPublishedAfterASyncThatFailed) {
  ASSERT_TRUE(save(1).has_value());
  int syncs = 0;
  for (int fail_at = 1;; ++fail_at) {
    const Trial trial = save_with(2, fail_at, EIO, true);
    if (trial.status) break;
    ++syncs;
    expect_failed(trial, fail_at, 1);
    EXPECT_EQ(trial.status.error().code, Code::io);
    EXPECT_NE(trial.status.error().what.find("sync"), std::string::npos) << trial.status.error().what;
  }
  EXPECT_GE(syncs, 10);  // each data file, manifest and marker where they were written and again; two folders
  EXPECT_EQ(generation_there(), 2u);
}

TEST_F(StoreFaults, TheSecondOfTwoSaversIsToldWhoHoldsIt) {
  const Result<StoreFolder> first = StoreFolder::begin(path_);
  ASSERT_TRUE(first.has_value());
  const pid_t other = ::fork();
  if (other == 0) {
    const Result<StoreFolder> second = StoreFolder::begin(path_);
    const std::string expected = text("is being written by process ", ::getppid(), " on ");
    ::_exit(!second && second.error().code == Code::stale && second.error().what.find(expected) != std::string::npos
                ? 0
                : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(other, &status, 0), other);
  EXPECT_EQ(status, 0);
}

TEST_F(StoreFaults, TooLittleRoomIsSaidBeforeAnythingIsWritten) {
  const Result<StoreFolder> begun = StoreFolder::begin(path_, {.bytes = std::uint64_t{1} << 60});
  ASSERT_FALSE(begun.has_value());
  EXPECT_EQ(begun.error().code, Code::full);
  EXPECT_NE(begun.error().what.find("are missing"), std::string::npos) << begun.error().what;
  EXPECT_TRUE(real_files().list(folder_.path())->empty());
}

}  // namespace
}  // namespace pawl::checkpoint
