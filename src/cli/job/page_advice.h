// What `pawl doctor` says of huge pages for pawl's memory. Pure.
#pragma once

#include <string>

#include "env/shared_memory.h"

namespace pawl::job {

struct PageAdvice {
  bool huge = false;   // large segments can be of huge pages
  std::string found;   // which, or why not
  std::string remedy;  // the commands that give better ones; empty: there are none
};
[[nodiscard]] PageAdvice advise_on_pages(const HugePages& pages);

}  // namespace pawl::job
