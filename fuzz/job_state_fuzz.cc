// The records that a job's members read from the control, which anybody on the network may have written.
#include <cstdlib>
#include <string_view>

#include "job/membership/inventory.h"
#include "job/membership/job_state.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size);

namespace {

// What is accepted means the same after being written and read again.
template <class Record>
void check(pawl::Result<Record> (*parse)(std::string_view), std::string_view json) {
  const pawl::Result<Record> record = parse(json);
  if (!record) return;
  const pawl::Result<Record> again = parse(pawl::job::to_json(*record));
  if (!again || !(*again == *record)) std::abort();
}

void check_inventory(std::string_view record) {
  const pawl::Result<pawl::job::Inventory> inventory = pawl::job::parse_inventory(record);
  if (!inventory) return;
  const auto again = pawl::job::parse_inventory(pawl::job::to_text(*inventory));
  if (!again || !(*again == *inventory)) std::abort();
}

}  // namespace

int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  check(&pawl::job::parse_job_state, json);
  check(&pawl::job::parse_topology, json);
  check(&pawl::job::parse_job_spec, json);
  check(&pawl::job::parse_node_record, json);
  check_inventory(json);
  check(&pawl::job::parse_accusation, json);
  check(&pawl::job::parse_fault_report, json);
  return 0;
}
