// What the command decides without touching the world.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include "cli/job/drill_script.h"
#include "cli/job/launcher.h"
#include "cli/job/namespaces.h"
#include "cli/job/own_host.h"
#include "cli/job/python_findings.h"
#include "cli/job/run_directory.h"
#include "cli/job/trainer_command.h"
#include "cli/output.h"
#include "env/random.h"

namespace pawl {
namespace {

using namespace job;

using Words = std::vector<std::string>;

TEST(TrainerCommand, ProgramsAreFoundInThePath) {
  RunOptions options;
  options.command = {"sh", "-c", "x.py"};
  const auto command = trainer_command(options);
  ASSERT_TRUE(command) << command.error().what;
  EXPECT_TRUE(command->front().ends_with("/sh"));
  EXPECT_EQ(Words(command->begin() + 1, command->end()), (Words{"-c", "x.py"}));
}

TEST(TrainerCommand, ScriptsAndModulesGetTheInterpreter) {
  setenv("PYTHON_EXEC", "/bin/sh", 1);
  RunOptions options;
  options.module = true;
  options.command = {"package.train", "--flag"};
  EXPECT_EQ(*trainer_command(options), (Words{"/bin/sh", "-u", "-m", "package.train", "--flag"}));
  options.module = false;
  options.command = {"/no/such/script.py"};
  EXPECT_EQ(trainer_command(options).error().code, Code::not_found);
  unsetenv("PYTHON_EXEC");
}

TEST(TrainerCommand, RefusesNothingAndTheUnknown) {
  RunOptions options;
  EXPECT_EQ(trainer_command(options).error().code, Code::invalid);
  options.command = {"/no/such/program"};
  EXPECT_EQ(trainer_command(options).error().code, Code::not_found);
}

TEST(DrillScript, IsTakenByItsDashes) {
  EXPECT_TRUE(is_script_drill({"drill", "--faults", "2", "--", "python", "train.py"}));
  EXPECT_TRUE(is_script_drill({"drill", "--"}));
  EXPECT_FALSE(is_script_drill({"drill", "kill", "node", "1"}));
  EXPECT_FALSE(is_script_drill({"run", "--", "drill"}));
  EXPECT_FALSE(is_script_drill({}));
}

TEST(DrillScript, HandsEverythingOverAsItStands) {
  setenv("PYTHON_EXEC", "/a/python", 1);
  const DrillCommand command = drill_command({"drill", "--seed", "3", "--", "x.py", "--", "-o"}, "/nowhere/bin/pawl");
  EXPECT_EQ(command.argv, (Words{"/a/python", "-m", "pawl.drill", "--pawl", "/nowhere/bin/pawl", "--seed", "3", "--",
                                 "x.py", "--", "-o"}));
  EXPECT_EQ(command.python_path, "");
  unsetenv("PYTHON_EXEC");
}

TEST(PythonFindings, AreTheLastLine) {
  const auto found = parse_findings(
      "noise of a site\n[{\"check\": \"torch\", \"verdict\": \"WARN\", \"found\": \"2.6\", \"remedy\": \"x\"}]\n");
  ASSERT_TRUE(found) << found.error().what;
  ASSERT_EQ(found->size(), 1u);
  EXPECT_EQ(found->front().what, "torch");
  EXPECT_EQ(found->front().verdict, Verdict::warn);
  EXPECT_EQ(found->front().remedy, "x");
  for (const char* bad : {"", "\n", "[]", "{}", "[{}]", "[{\"verdict\": \"GOOD\"}]", "[1"})
    EXPECT_EQ(parse_findings(bad).error().code, Code::invalid) << bad;
}

TEST(PythonFindings, AnInterpreterThatCannotRunIsOne) {
  const auto found = findings_in_python("/no/such/python");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found.front().verdict, Verdict::fail);
  EXPECT_NE(found.front().found.find("/no/such/python"), std::string::npos);
}

TEST(JobName, IsADirectoryAndAKey) {
  EXPECT_TRUE(check_job_name("run-7_a.b"));
  for (const char* bad :
       {"", "a/b", "..", ".hidden", "a b", "0123456789012345678901234567890123456789012345678901234567890123"})
    EXPECT_FALSE(check_job_name(bad)) << bad;
}

TEST(SpecDifference, NamesEveryFieldThatDiffers) {
  JobSpec ours;
  ours.job = "x";
  EXPECT_EQ(spec_difference(ours, ours), "");
  JobSpec theirs = ours;
  theirs.node_count = 4;
  theirs.token_digest = "00";
  theirs.replica_bytes_a_second = 5;
  const std::string difference = spec_difference(ours, theirs);
  EXPECT_NE(difference.find("--nnodes is 4 there and 1 here"), std::string::npos) << difference;
  EXPECT_NE(difference.find("--replica-bandwidth (bytes a second) is 5 there and 0 here"), std::string::npos)
      << difference;
  EXPECT_NE(difference.find("the token differs"), std::string::npos) << difference;
  EXPECT_EQ(difference.find("deadline"), std::string::npos) << difference;
}

TEST(OwnHost, IsToldFromOthersByNameAndAddress) {
  for (const auto& [endpoint, host] : std::vector<std::pair<std::string, std::string>>{{"h", "h"},
                                                                                       {"h:1", "h"},
                                                                                       {"[::1]:1", "::1"},
                                                                                       {"[::1]", "::1"},
                                                                                       {"::1", "::1"},
                                                                                       {"::1:29500", "::1"},
                                                                                       {":1", ""}})
    EXPECT_EQ(host_of(endpoint), host) << endpoint;
  for (const char* host : {"", "localhost", "LOCALHOST", "127.0.0.1", "127.1.2.3", "0.0.0.0", "::", "::1", "0:0::1"})
    EXPECT_EQ(host_kind(host), HostKind::loopback) << host;
  EXPECT_NE(host_kind(this_machine().host), HostKind::another);
  EXPECT_EQ(host_kind("203.0.113.77"), HostKind::another) << "of documentation: nobody's";
  EXPECT_EQ(host_kind("2001:db8:77::77"), HostKind::another);
  ifaddrs* first = nullptr;
  ASSERT_EQ(getifaddrs(&first), 0);
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    char address[INET_ADDRSTRLEN] = "";
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr, address, sizeof address);
    EXPECT_NE(host_kind(address), HostKind::another) << address;
  }
  freeifaddrs(first);
}

TEST(LauncherRecord, ComesBackFromItsText) {
  LauncherRecord record{12,
                        34,
                        "x",
                        "10.77.0.1:2379",
                        56,
                        "/proc/12/ns/net",
                        {{NodeId(3), 78, "10.77.0.13:7000", "/proc/12/fd/9", "pn3"}},
                        {"node-a", "0123"}};
  const auto back = parse_launcher_record(to_json(record));
  ASSERT_TRUE(back) << back.error().what;
  EXPECT_EQ(to_json(*back), to_json(record));
  EXPECT_FALSE(parse_launcher_record("{}"));
  EXPECT_FALSE(parse_launcher_record("[1"));
}

TEST(TokenDigest, TellsTokensApart) {
  EXPECT_EQ(token_digest("a").size(), 16u);
  EXPECT_NE(token_digest("a"), token_digest("b"));
  EXPECT_NE(random_hex(16), random_hex(16));
}

TEST(Table, AlignsAndTrims) {
  EXPECT_EQ(table({{"A", "LONG"}, {"wide", "x"}}), "A     LONG\nwide  x\n");
}

TEST(FabricHosts, NameEveryNode) {
  EXPECT_NE(fabric_hosts(2).find("10.77.0.11 node-1\n"), std::string::npos);
}

}  // namespace
}  // namespace pawl
