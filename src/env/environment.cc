#include "env/environment.h"

namespace pawl {

const Environment& real_environment() {
  static const Environment environment{real_clock(), real_tasks(),     real_network(),
                                       real_files(), real_processes(), real_shared_memory()};
  return environment;
}

}  // namespace pawl
