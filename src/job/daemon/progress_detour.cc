#include "job/daemon/progress_detour.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "base/log.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::json;

constexpr Duration kPause = 100ms;  // between two writes; and before the first: most links that break come back at once

std::optional<std::uint64_t> number_in(const Json& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  if (found == object.end() || !found->is_number_unsigned()) return std::nullopt;
  return found->get<std::uint64_t>();
}

}  // namespace

std::string to_json(const ProgressNews& news) {
  return Json{{"known", news.report.known.pack()},
              {"held", news.report.held},
              {"voided", news.report.voided},
              {"progress", news.progress.pack()}}
      .dump();
}

std::optional<ProgressNews> parse_progress_news(const std::string& value) {
  const Json json = Json::parse(value, nullptr, false);
  const auto known = number_in(json, "known"), held = number_in(json, "held"), voided = number_in(json, "voided"),
             progress = number_in(json, "progress");
  if (!known || !held || !voided || !progress) return std::nullopt;
  return ProgressNews{{Progress::unpack(*known), *held, *voided}, Progress::unpack(*progress)};
}

void ProgressDetour::consider() {
  if (writing_ || std::exchange(planned_, true)) return;
  context_.after(kPause, [this] {
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
  if (!written_.starts_with(key)) log_warn("progress_by_control", "why", "a link of the tree does not stand");
  writing_ = true;
  context_.control->put(key, value, [this, said = key + value](Status put) {
    writing_ = false;
    if (put) written_ = said;
  });
}

}  // namespace pawl::job
