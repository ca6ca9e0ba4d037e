#include "cli/arguments.h"
#include "env/s3/s3_files.h"

int main(int argc, char** argv) {
  pawl::s3::read_s3_addresses();
  return pawl::run_command_line(argc, argv);
}
