#include "cli/arguments.h"

int main(int argc, char** argv) {
  return pawl::run_command_line(argc, argv);
}
