// Four real processes of the plain training, twice: the same losses and the same final state, bit for bit.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "socket.h"

namespace charlm {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr int kWorld = 4;

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// "key":value or "key":"value" out of one line of a record.
std::string field(const std::string& line, const std::string& key) {
  const std::size_t at = line.find("\"" + key + "\":");
  if (at == line.npos) return "";
  std::size_t begin = at + key.size() + 3;
  if (line[begin] == '"') ++begin;
  return line.substr(begin, line.find_first_of("\",}", begin) - begin);
}

std::string free_port() {
  Socket listener;
  Address bound;
  const Outcome listening = listen_on({"127.0.0.1", "0"}, &listener, &bound);
  EXPECT_TRUE(listening.ok()) << listening.what;
  return bound.port;
}

class Processes : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "charlm_process.XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override {
    for (const pid_t pid : started_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    fs::remove_all(folder_);
  }

  pid_t start(const char* program, std::map<std::string, std::string> environment, std::vector<std::string> arguments,
              const fs::path& errors) {
    arguments.insert(arguments.begin(), program);
    std::vector<char*> raw;
    for (std::string& argument : arguments) raw.push_back(argument.data());
    raw.push_back(nullptr);
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
      const int file = open(errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      dup2(file, STDERR_FILENO);
      dup2(file, STDOUT_FILENO);
      execv(program, raw.data());
      _exit(127);
    }
    started_.push_back(pid);
    return pid;
  }
  int wait_for(pid_t pid) {
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    std::erase(started_, pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::vector<pid_t> start_all(const char* program, const std::string& name, const std::vector<std::string>& arguments,
                               std::map<std::string, std::string> environment = {}) {
    environment["WORLD_SIZE"] = std::to_string(kWorld);
    environment["MASTER_ADDR"] = "127.0.0.1";
    environment["MASTER_PORT"] = free_port();
    std::vector<pid_t> pids;
    for (int rank = 0; rank < kWorld; ++rank) {
      environment["RANK"] = std::to_string(rank);
      auto own = arguments;
      own.insert(own.end(), {"--record", (folder_ / name).string()});
      pids.push_back(start(program, environment, own, folder_ / (name + "." + std::to_string(rank) + ".err")));
    }
    return pids;
  }
  std::string errors_of(const std::string& name, int rank) {
    return content_of(folder_ / (name + "." + std::to_string(rank) + ".err"));
  }
  void run_all(const char* program, const std::string& name, const std::vector<std::string>& arguments,
               std::map<std::string, std::string> environment = {}) {
    const auto pids = start_all(program, name, arguments, std::move(environment));
    for (int rank = 0; rank < kWorld; ++rank) ASSERT_EQ(wait_for(pids[rank]), 0) << errors_of(name, rank);
  }
  // The lines of one seat; there must be one file.
  std::vector<std::string> lines_of(const std::string& name, int seat) {
    std::vector<std::string> lines;
    std::error_code missing;  // so far nobody has written
    for (const auto& entry : fs::directory_iterator(folder_ / name, missing)) {
      if (!entry.path().filename().string().starts_with("loss." + std::to_string(seat) + ".")) continue;
      EXPECT_TRUE(lines.empty()) << "two processes wrote for seat " << seat;
      std::istringstream file(content_of(entry.path()));
      for (std::string line; std::getline(file, line);) lines.push_back(line);
    }
    return lines;
  }
  void expect_equal(const std::string& one, const std::string& other, std::size_t steps) {
    for (int seat = 0; seat < kWorld; ++seat) {
      const auto first = lines_of(one, seat), second = lines_of(other, seat);
      ASSERT_EQ(first.size(), steps);
      ASSERT_EQ(second.size(), steps);
      for (std::size_t i = 0; i < steps; ++i) {
        EXPECT_EQ(field(first[i], "step"), std::to_string(i + 1));
        EXPECT_EQ(field(first[i], "updates"), std::to_string(i + 1));
        EXPECT_EQ(field(first[i], "loss_bits"), field(second[i], "loss_bits"));
        EXPECT_EQ(field(first[i], "loss_bits"), field(lines_of(one, 0)[i], "loss_bits")) << "ranks disagree";
        EXPECT_EQ(field(first[i], "samples_hash"), field(second[i], "samples_hash"));
      }
      const std::string file = "/final." + std::to_string(seat);
      const std::string bytes = content_of(folder_ / one += file + ".bin");
      EXPECT_GT(bytes.size(), 100000u);
      EXPECT_TRUE(bytes == content_of(folder_ / other += file + ".bin")) << "final state of seat " << seat;
      EXPECT_EQ(field(content_of(folder_ / one += file + ".json"), "rng_hash"),
                field(content_of(folder_ / other += file + ".json"), "rng_hash"));
    }
  }

  fs::path folder_;
  std::vector<pid_t> started_;
};

const std::vector<std::string> kSmall = {"--steps", "60", "--batch", "64", "--hidden", "128"};

TEST_F(Processes, TwoRunsAreBitwiseEqualAndTheLossFalls) {
  run_all(CHARLM_PLAIN, "one", kSmall);
  run_all(CHARLM_PLAIN, "two", kSmall);
  expect_equal("one", "two", 60);
  const auto lines = lines_of("one", 0);
  EXPECT_GT(std::atof(field(lines.front(), "loss").c_str()), 5.0);
  EXPECT_LT(std::atof(field(lines.back(), "loss").c_str()), 3.5);
}

TEST_F(Processes, AnotherSeedIsAnotherRun) {
  const std::vector<std::string> tiny = {"--steps", "2", "--batch", "8", "--hidden", "32"};
  auto seeded = tiny;
  seeded.insert(seeded.end(), {"--seed", "2"});
  run_all(CHARLM_PLAIN, "one", tiny);
  run_all(CHARLM_PLAIN, "two", seeded);
  EXPECT_NE(field(lines_of("one", 0)[0], "loss_bits"), field(lines_of("two", 0)[0], "loss_bits"));
}

#ifdef CHARLM
// libpawl linked and switched off: the same machine code computes the same bits.
TEST_F(Processes, PawlSwitchedOffChangesNothing) {
  run_all(CHARLM_PLAIN, "plain", kSmall);
  run_all(CHARLM, "off", kSmall, {{"PAWL", "off"}});
  expect_equal("plain", "off", 60);
}
#endif

TEST_F(Processes, DeathOfARankEndsThePlainJobWithASentence) {
  const auto pids = start_all(CHARLM_PLAIN, "killed", {"--steps", "1000000", "--batch", "8", "--hidden", "32"});
  for (int waited = 0; lines_of("killed", 2).size() < 3 && waited < 3000; ++waited) std::this_thread::sleep_for(10ms);
  const std::string maps = content_of("/proc/" + std::to_string(pids[2]) + "/maps");
  EXPECT_NE(maps.find("charlm_plain"), std::string::npos);
  EXPECT_EQ(maps.find("libpawl"), std::string::npos) << "the reference has libpawl in its maps";
  kill(pids[2], SIGKILL);
  EXPECT_EQ(wait_for(pids[2]), 128 + SIGKILL);
  for (const int rank : {0, 1, 3}) {
    EXPECT_EQ(wait_for(pids[rank]), 1);
    EXPECT_TRUE(errors_of("killed", rank).starts_with("charlm: ")) << errors_of("killed", rank);
  }
}

TEST_F(Processes, BadInputIsASentenceAndACode) {
  const fs::path errors = folder_ / "bad.0.err";
  EXPECT_EQ(wait_for(start(CHARLM_PLAIN, {}, {"--stesp", "3"}, errors)), 2);
  EXPECT_NE(content_of(errors).find("unknown flag --stesp"), std::string::npos);
  EXPECT_EQ(wait_for(start(CHARLM_PLAIN, {}, {"--data", "/dev/null"}, errors)), 1);
  EXPECT_NE(content_of(errors).find("too little text"), std::string::npos) << content_of(errors);
  EXPECT_EQ(wait_for(start(CHARLM_PLAIN, {{"RANK", "4"}, {"WORLD_SIZE", "4"}}, {}, errors)), 1);
  EXPECT_NE(content_of(errors).find("RANK"), std::string::npos) << content_of(errors);
  EXPECT_EQ(wait_for(start(CHARLM_PLAIN, {}, {"--record", "/proc/none", "--steps", "1"}, errors)), 1);
  EXPECT_NE(content_of(errors).find("--record"), std::string::npos) << content_of(errors);
}

}  // namespace
}  // namespace charlm
