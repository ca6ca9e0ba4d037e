// The embedded server as a process of its own, for tests that kill it: data directory, then addresses.
// Writes one line with its addresses when it serves; ends when its standard input does.
#include <unistd.h>

#include <cstdio>

#include "base/log.h"
#include "job/control/server.h"

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  pawl::job::ControlServerOptions options;
  options.data_directory = argv[1];
  options.addresses.assign(argv + 2, argv + argc);
  const auto served =
      pawl::job::run_control_server(options, STDIN_FILENO, [](const std::vector<std::string>& addresses) {
        for (const std::string& address : addresses) std::printf("%s\n", address.c_str());
        std::fflush(stdout);
      });
  if (served) return 0;
  std::fprintf(stderr, "%s\n", served.error().what.c_str());
  return 1;
}
