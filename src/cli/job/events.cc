// `pawl events`: what happened to the job, as its daemons recorded it in the control.
#include <atomic>
#include <ctime>
#include <mutex>

#include "base/json_access.h"
#include "base/text.h"
#include "cli/job/commands.h"
#include "cli/job/run_directory.h"
#include "cli/output.h"
#include "env/clock.h"
#include "job/membership/job_state.h"

namespace pawl::job {
namespace {

std::string time_of(std::uint64_t wall_ms) {
  const auto wall_seconds = static_cast<time_t>(wall_ms / 1000);
  tm utc{};
  gmtime_r(&wall_seconds, &utc);
  char buffer[64];
  const std::size_t size = std::strftime(buffer, sizeof buffer, "%H:%M:%S", &utc);
  const std::string millis = text(wall_ms % 1000);
  return text(std::string_view(buffer, size), ".", std::string(3 - millis.size(), '0'), millis);
}

std::string line_of(const json& event) {
  std::string line = text(time_of(number_in(event, "at_ms")), "  node ", number_in(event, "node"), "  generation ",
                          number_in(event, "generation"), "  ", string_in(event, "kind"));
  for (const auto& [key, value] : event.items())
    if (key != "at_ms" && key != "node" && key != "generation" && key != "kind" && key != "at_monotonic_ns")
      line += text("  ", key, "=", value.is_string() ? value.get<std::string>() : value.dump());
  return line;
}

// Whether the job ended with it.
bool show(const KeyValue& kv, bool as_json) {
  const json event = json::parse(kv.value, nullptr, false);
  if (!event.is_object()) return false;
  print((as_json ? event.dump() : line_of(event)) + "\n");
  const std::string kind = string_in(event, "kind");
  return kind == "job_finished" || kind == "job_failed";
}

int follow(const JobAccess& access, Revision from, bool as_json, bool ended) {
  std::atomic<bool> over{ended};
  WatchOptions options;
  options.from_revision = from;
  const auto watch = access.control->watch(JobKeys(access.job).events(), options, [&](const WatchEvent& event) {
    if (event.kind == WatchEvent::Kind::put && show(event.kv, as_json)) over = true;
    if (event.kind == WatchEvent::Kind::resync) say("some events are missing here");
  });
  // A launcher that is gone took its control with it: nothing more will come.
  while (!over && (!access.launcher || is_running(*access.launcher)))
    real_clock().sleep(std::chrono::milliseconds(100));
  return kExitOk;
}

}  // namespace

int command_events(const EventsOptions& options) {
  const Result<JobAccess> access = find_job(options.job);
  if (!access) return report_error(access.error());
  const JobKeys keys(access->job);
  const Result<KeyValue> spec = access->control->get(keys.spec());
  if (!spec && spec.error().code == Code::not_found)
    return report_error({Code::not_found, text("the control ", access->endpoints, " knows no job ", access->job)});
  const Result<Listing> listing = access->control->list(keys.events());
  if (!listing) return report_error(listing.error());
  bool ended = false;
  for (const KeyValue& kv : listing->kvs) ended |= show(kv, options.job.json);
  return options.follow ? follow(*access, listing->revision + 1, options.job.json, ended) : kExitOk;
}

}  // namespace pawl::job
