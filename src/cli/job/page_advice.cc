#include "cli/job/page_advice.h"

#include "base/text.h"

namespace pawl::job {

PageAdvice advise_on_pages(const HugePages& pages) {
  const std::string mode = pages.transparent_mode.empty() ? "unknown" : pages.transparent_mode;
  const std::string reserved =
      text(pages.free_bytes >> 20, " of ", pages.reserved_bytes >> 20, " MiB reserved are free");
  const std::uint64_t a_gib = pages.page_bytes == 0 ? 0 : (std::uint64_t{1} << 30) / pages.page_bytes;
  const std::string reserve =
      a_gib == 0 ? ""
                 : text("sysctl -w vm.nr_hugepages=N, N = ", a_gib, " for each GiB of arenas, before the job starts");
  const std::string allow = "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled";
  if (pages.free_bytes > 0)
    return {true,
            text("arenas that fit get reserved ones: ", reserved,
                 "; others: ", pages.transparent ? "transparent" : "small pages", " (shared memory: ", mode, ")"),
            ""};
  const std::string none = pages.reserved_bytes > 0 ? reserved : "none are reserved";
  if (pages.transparent) return {true, text("arenas get transparent ones (shared memory: ", mode, "); ", none), ""};
  return {false, text("arenas get small pages: ", none, ", shared memory: ", mode),
          text("memory is made and mapped faster with them: ", reserve, reserve.empty() ? "" : "; or ", allow)};
}

}  // namespace pawl::job
