#include "job/daemon/progress_detour.h"

#include <algorithm>
#include <utility>

#include "base/json_access.h"
#include "base/log.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

// Between two writes; and before the first: most links that break come back at once. Whoever has a broken link writes,
// and every node reads all of it, so that many nodes write less often.
constexpr Duration kPause = 100ms, kPausePerNode = 2ms;

}  // namespace

std::string to_json(const ProgressNews& news) {
  return json{{"known", news.report.known.pack()},
              {"held", news.report.held},
              {"voided", news.report.voided},
              {"progress", news.progress.pack()}}
      .dump();
}

std::optional<ProgressNews> parse_progress_news(const std::string& value) {
  const json news = json::parse(value, nullptr, false);
  for (const char* key : {"known", "held", "voided", "progress"})
    if (!member_of(news, key).is_number_unsigned()) return std::nullopt;
  return ProgressNews{{Progress::unpack(number_in(news, "known")), number_in(news, "held"), number_in(news, "voided")},
                      Progress::unpack(number_in(news, "progress"))};
}

void ProgressDetour::consider() {
  if (writing_ || std::exchange(planned_, true)) return;
  const auto nodes = static_cast<Duration::rep>(context_.mirror.has_state() ? context_.mirror.state().seats.size() : 0);
  context_.after(std::max(kPause, nodes * kPausePerNode), [this] {
    planned_ = false;
    write();
  });
}

void ProgressDetour::write() {
  const std::optional<ProgressNews> news = news_();
  if (!news) return;
  const std::string key = context_.mirror.keys().progress(context_.mirror.generation(), context_.self.node);
  const std::string value = to_json(*news);
  if (written_ == key + value) return;
  if (std::exchange(told_in_, context_.mirror.generation()) != context_.mirror.generation())
    log_warn("progress_by_control", "why", "a link of the tree does not stand");
  writing_ = true;
  context_.control->put(key, value, [this, said = key + value](const Status& put) {
    writing_ = false;
    if (put) written_ = said;
  });
}

}  // namespace pawl::job
