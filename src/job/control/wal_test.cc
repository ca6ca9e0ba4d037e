#include "job/control/wal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/text.h"
#include "env/temporary_directory.h"
#include "job/control/failing_files.h"

namespace pawl::job {
namespace {

std::string contents(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path, std::ios::binary).rdbuf();
  return out.str();
}

void overwrite(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

struct Opened {
  std::unique_ptr<Wal> wal;
  std::vector<std::string> replayed;
  Status status;
};

Opened open_wal(const std::string& directory, Files* files = nullptr) {
  Opened opened;
  auto wal = Wal::open({.directory = directory, .fsync = files != nullptr, .files = files},
                       [&](std::string_view payload) -> Status {
                         opened.replayed.emplace_back(payload);
                         return {};
                       });
  if (wal)
    opened.wal = std::move(*wal);
  else
    opened.status = std::move(wal).error();
  return opened;
}

class WalTest : public testing::Test {
 protected:
  TemporaryDirectory directory_;
  const std::string path_ = directory_.path() + "/control.wal";

  void write(const std::vector<std::string>& payloads) {
    auto opened = open_wal(directory_.path());
    ASSERT_TRUE(opened.wal && opened.wal->is_new());
    ASSERT_TRUE(opened.wal->replace({payloads[0]}));
    for (std::size_t i = 1; i < payloads.size(); ++i) ASSERT_TRUE(opened.wal->append(payloads[i]));
  }
};

const std::vector<std::string> kThree = {"first", std::string("se\0cond", 7), std::string(700, 'x')};

TEST_F(WalTest, FindsWhatWasAppended) {
  write(kThree);
  auto again = open_wal(directory_.path());
  ASSERT_TRUE(again.wal);
  EXPECT_EQ(again.replayed, kThree);
  EXPECT_EQ(again.wal->size_bytes(), contents(path_).size());
  ASSERT_TRUE(again.wal->append("fourth"));
  EXPECT_EQ(open_wal(directory_.path()).replayed.back(), "fourth");
  EXPECT_EQ(again.wal->append("").error().code, Code::invalid);
  EXPECT_TRUE(again.wal->append("fifth")) << "a refused payload harms nothing";
}

TEST_F(WalTest, CutsOffATornTailAtEveryLength) {
  write(kThree);
  const std::string whole = contents(path_);
  const std::size_t last_begins = whole.size() - kWalHeaderBytes - kThree[2].size();
  for (std::size_t length = last_begins; length < whole.size();
       length += length < last_begins + kWalHeaderBytes + 4 ? 1 : 97) {
    overwrite(path_, whole.substr(0, length));
    auto opened = open_wal(directory_.path());
    ASSERT_TRUE(opened.wal) << length << ": " << opened.status.error().what;
    ASSERT_EQ(opened.replayed.size(), 2u) << length;
    EXPECT_EQ(opened.wal->torn_bytes(), length - last_begins);
    EXPECT_EQ(contents(path_).size(), last_begins);
    ASSERT_TRUE(opened.wal->append("after"));
    EXPECT_EQ(open_wal(directory_.path()).replayed.back(), "after");
  }
}

TEST_F(WalTest, CutsOffATailWithUnwrittenSectors) {
  write({"first", std::string(3000, 'y')});
  std::string bytes = contents(path_);
  std::fill(bytes.begin() + 1024, bytes.begin() + 1536, '\0');
  overwrite(path_, bytes);
  auto opened = open_wal(directory_.path());
  ASSERT_TRUE(opened.wal);
  EXPECT_EQ(opened.replayed.size(), 1u);

  bytes.resize(contents(path_).size());
  overwrite(path_, bytes + std::string(4096, '\0'));  // the size reached the disk, the bytes did not
  opened = open_wal(directory_.path());
  ASSERT_TRUE(opened.wal);
  EXPECT_EQ(opened.replayed.size(), 1u);
}

TEST_F(WalTest, RefusesEveryFlippedBit) {
  write(kThree);
  const std::string whole = contents(path_);
  for (std::size_t offset = 0; offset < whole.size(); offset += offset < 120 ? 1 : 37) {
    std::string bytes = whole;
    bytes[offset] = static_cast<char>(bytes[offset] ^ (1 << offset % 8));
    overwrite(path_, bytes);
    const auto opened = open_wal(directory_.path());
    ASSERT_FALSE(opened.wal) << "byte " << offset;
    EXPECT_EQ(opened.status.error().code, Code::corrupt);
    EXPECT_NE(opened.status.error().what.find(path_), std::string::npos);
    EXPECT_NE(opened.status.error().what.find("at byte "), std::string::npos);
    EXPECT_EQ(contents(path_), bytes) << "nothing is changed";
  }
}

TEST_F(WalTest, RefusesAHoleInTheMiddleThatLooksTorn) {
  write({"first", std::string(2000, 'y'), "third"});
  std::string bytes = contents(path_);
  std::fill(bytes.begin() + 512, bytes.begin() + 1024, '\0');
  overwrite(path_, bytes);
  EXPECT_EQ(open_wal(directory_.path()).status.error().code, Code::corrupt);
  // The header's sector lost, too: sound frames follow all the same.
  std::fill(bytes.begin(), bytes.begin() + 1024, '\0');
  overwrite(path_, bytes);
  EXPECT_EQ(open_wal(directory_.path()).status.error().code, Code::corrupt);
  overwrite(path_, "");
  EXPECT_EQ(open_wal(directory_.path()).status.error().code, Code::corrupt);
}

TEST_F(WalTest, RefusesAFrameInTheWrongPlace) {
  write({"first", "other", "third"});
  const std::string whole = contents(path_);
  const std::size_t frame = kWalHeaderBytes + 5;
  overwrite(path_, whole.substr(0, frame) + whole.substr(2 * frame));  // the second frame is missing
  EXPECT_EQ(open_wal(directory_.path()).status.error().code, Code::corrupt);
  overwrite(path_, whole.substr(0, 2 * frame) + whole.substr(frame));  // it is there twice
  EXPECT_EQ(open_wal(directory_.path()).status.error().code, Code::corrupt);
}

// Fails the 1st, 2nd, ... nth call to the disk until all passes untouched; what was accepted must always be there.
TEST_F(WalTest, NothingAcceptedIsLostWhicheverCallFails) {
  bool untouched = false;
  for (int fail_at = 1; !untouched; ++fail_at) {
    ASSERT_LT(fail_at, 60);
    for (bool half : {false, true}) {
      TemporaryDirectory fresh;
      FailingFiles files(fail_at, half);
      std::vector<std::string> accepted, offered;
      {
        auto opened = open_wal(fresh.path(), &files);
        if (!opened.wal) continue;  // the failed call was of the opening
        bool no_room_for_another = false;
        const auto offer = [&](const std::string& payload, bool replace) {
          offered.push_back(payload);
          const auto status = replace ? opened.wal->replace({payload}) : opened.wal->append(payload);
          no_room_for_another = replace && !status && !accepted.empty() && status.error().code == Code::full;
          if (status && replace) accepted.clear();
          if (status) accepted.push_back(payload);
          return status.has_value();
        };
        bool all = offer("one", true) && offer("two", false) && offer("three", false) && offer("four", true) &&
                   offer("five", false);
        if (no_room_for_another) {
          EXPECT_TRUE(offer("more", false)) << "the first log goes on";
        } else if (!all) {
          EXPECT_EQ(opened.wal->append("more").error().code, Code::io) << "closed after a failure";
        }
        untouched = all && !files.failed();
      }
      const auto after = open_wal(fresh.path());
      if (!after.wal) {
        ADD_FAILURE() << fail_at << ": " << after.status.error().what;
      } else if (!accepted.empty()) {
        // All that was accepted, then perhaps the one that was refused; or the refused replacement alone.
        std::vector<std::string> more = accepted;
        more.push_back(offered.back());
        const bool replaced = after.replayed == std::vector<std::string>{offered.back()} && offered.back() == "four";
        EXPECT_TRUE(after.replayed == accepted || after.replayed == more || replaced) << "failing call " << fail_at;
      }
    }
  }
}

}  // namespace
}  // namespace pawl::job
