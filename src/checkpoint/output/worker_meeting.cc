#include "checkpoint/output/worker_meeting.h"

#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <optional>
#include <set>
#include <span>
#include <thread>

#include "base/crc32c.h"
#include "base/first_few.h"
#include "base/text.h"
#include "env/files.h"

namespace pawl::checkpoint {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kLookEvery = 50ms;
constexpr auto kRefusalStays = 1s;  // so that the others see why
constexpr std::uint64_t kFileBytesMax = std::uint64_t{1} << 30;
constexpr std::uint64_t kWaitWordsMax = 5;

// --- Texts: lines of words; the last line is the checksum of all before.

std::string sealed(std::string lines) {
  lines += text("sum ", crc32c(std::as_bytes(std::span(lines))), "\n");
  return lines;
}

std::optional<std::uint64_t> number_of(std::string_view word) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return value;
}

// Nothing where the sum is not that of the text.
std::optional<std::string_view> unsealed(std::string_view all) {
  if (!all.ends_with('\n')) return std::nullopt;
  const std::size_t before = all.substr(0, all.size() - 1).rfind('\n');
  if (before == std::string_view::npos) return std::nullopt;
  std::string_view last = all.substr(before + 1, all.size() - before - 2);
  if (!last.starts_with("sum ")) return std::nullopt;
  last.remove_prefix(4);
  const std::string_view lines = all.substr(0, before + 1);
  if (number_of(last) != crc32c(std::as_bytes(std::span(lines)))) return std::nullopt;
  return lines;
}

class Reader {
 public:
  explicit Reader(std::string_view lines) : rest_(lines) {}
  [[nodiscard]] bool at_end() const { return rest_.empty(); }
  // What stands behind the key in the next line, if that begins with it.
  std::optional<std::string_view> line(std::string_view key) {
    const std::size_t end = rest_.find('\n');
    if (end == std::string_view::npos || !rest_.starts_with(key)) return std::nullopt;
    std::string_view value = rest_.substr(key.size(), end - key.size());
    if (value.starts_with(' ')) value.remove_prefix(1);
    rest_.remove_prefix(end + 1);
    return value;
  }
  std::optional<std::pair<std::uint64_t, std::uint64_t>> pair(std::string_view key) {
    const auto value = line(key);
    if (!value) return std::nullopt;
    const std::size_t gap = value->find(' ');
    if (gap == std::string_view::npos) return std::nullopt;
    const auto first = number_of(value->substr(0, gap)), second = number_of(value->substr(gap + 1));
    if (!first || !second) return std::nullopt;
    return std::pair(*first, *second);
  }
  std::optional<std::string_view> bytes(std::uint64_t count) {
    if (count >= rest_.size()) return std::nullopt;
    const std::string_view value = rest_.substr(0, count);
    rest_.remove_prefix(count + 1);
    return value;
  }
  [[nodiscard]] bool next_is(std::string_view key) const { return rest_.starts_with(key); }

 private:
  std::string_view rest_;
};

std::string identity_of(const MeetingOptions& options) {
  return text("job ", options.job, "\nplan ", options.digest, "\nworkers ", options.workers, "\n");
}

std::string head_of(const MeetingOptions& options, const std::string& attempt) {
  return text("attempt ", attempt, "\n", identity_of(options));
}

std::string text_of(const ShareReport& report) {
  std::string out = text("bytes ", report.bytes, " ", report.bytes_read, "\n");
  for (const auto& [tensor, count] : report.overflowed) out += text("overflowed ", tensor, " ", count, "\n");
  for (const auto& [index, sum] : report.sums) out += text("range ", index, " ", sum, "\n");
  for (const std::string& words : report.texts) out += text("text ", words.size(), "\n", words, "\n");
  return out;
}

std::optional<ShareReport> parse_report(Reader& reader) {
  ShareReport report;
  const auto bytes = reader.pair("bytes");
  if (!bytes) return std::nullopt;
  report.bytes = bytes->first;
  report.bytes_read = bytes->second;
  while (reader.next_is("overflowed ")) {
    const auto pair = reader.pair("overflowed");
    if (!pair || pair->first > ~std::uint32_t{0}) return std::nullopt;
    report.overflowed.emplace_back(static_cast<std::uint32_t>(pair->first), pair->second);
  }
  while (reader.next_is("range ")) {
    const auto pair = reader.pair("range");
    if (!pair || pair->first > ~std::uint32_t{0} || pair->second > ~std::uint32_t{0}) return std::nullopt;
    report.sums.emplace_back(static_cast<std::uint32_t>(pair->first), static_cast<std::uint32_t>(pair->second));
  }
  while (reader.next_is("text ")) {
    const auto size = reader.line("text");
    const auto count = size ? number_of(*size) : std::nullopt;
    const auto words = count ? reader.bytes(*count) : std::nullopt;
    if (!words) return std::nullopt;
    report.texts.emplace_back(*words);
  }
  if (!reader.at_end()) return std::nullopt;
  return report;
}

std::string host_and_process() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
  return text("process ", ::getpid(), " on ", host.data());
}

bool is_set(const std::atomic<bool>* flag) {
  return flag != nullptr && flag->load(std::memory_order_relaxed);
}

std::string seconds_of(std::chrono::milliseconds time) {
  return time < 10s ? text(time.count(), " ms") : text(time.count() / 1000, " s");
}

Error damaged(const std::string& path) {
  return Error{Code::corrupt, text(path, ": damaged: its sum is not its own; start all workers again")};
}

Error not_one_plan(std::uint32_t worker, std::string_view who) {
  return Error{Code::invalid,
               text("worker ", worker, " (", who,
                    ") has another source, other options or another number of workers: start all of them "
                    "alike, from one source that nobody changes")};
}

}  // namespace

std::string new_nonce() {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::array<unsigned char, 8> bytes{};
  while (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
  }
  std::string nonce;
  for (const unsigned char byte : bytes) {
    nonce.push_back(kDigits[byte >> 4]);
    nonce.push_back(kDigits[byte & 15]);
  }
  return nonce;
}

std::string WorkerMeeting::path(std::string_view name) const {
  return join_path(options_.folder, name);
}

Status WorkerMeeting::open() {
  if (::mkdir(options_.folder.c_str(), 0777) == 0) return {};
  return system_error(text("make ", options_.folder), errno);
}

Status WorkerMeeting::gather(const std::string& attempt, const MeetingWait& wait) {
  const Clock::time_point end = Clock::now() + wait.longest;
  std::map<std::uint32_t, std::string> nonces;  // of each worker: the first one seen counts
  while (nonces.size() + 1 < options_.workers) {
    if (is_set(wait.cancel)) return Error{Code::cancelled, "interrupted"};
    PAWL_ASSIGN(const std::vector<std::string> names, real_files().list(options_.folder));
    for (const std::string& name : names) {
      if (!name.starts_with("hello-") || name.ends_with(".tmp")) continue;
      const Result<std::string> all = read_file(path(name), kFileBytesMax);
      const auto lines = all ? unsealed(*all) : std::nullopt;
      if (!lines) continue;
      Reader reader(*lines);
      const auto number = reader.line("worker"), nonce = reader.line("nonce"), who = reader.line("who");
      const std::uint64_t worker = number ? number_of(*number).value_or(0) : 0;
      const std::string expected_job = text("job ", options_.job, "\n");
      if (!number || !nonce || !who || !reader.next_is(expected_job)) continue;  // of another job
      if (!lines->ends_with(identity_of(options_)) || worker == 0 || worker >= options_.workers) {
        const Error error = not_one_plan(static_cast<std::uint32_t>(worker), *who);
        (void)write_file_atomically(path("go"), sealed(text("refused ", error.what, "\n", "job ", options_.job, "\n")));
        std::this_thread::sleep_for(kRefusalStays);
        return error;
      }
      nonces.emplace(static_cast<std::uint32_t>(worker), std::string(*nonce));
    }
    if (nonces.size() + 1 >= options_.workers) break;
    if (Clock::now() >= end) {
      std::string missing;
      std::uint64_t named = 0, count = 0;
      for (std::uint32_t i = 1; i < options_.workers; ++i)
        if (!nonces.contains(i) && ++count && named++ < kWaitWordsMax) missing += text(missing.empty() ? "" : ", ", i);
      return Error{Code::timeout,
                   text(count, " of ", options_.workers, " workers did not come within ", seconds_of(wait.longest),
                        ": ", missing, count > kWaitWordsMax ? ", ..." : "", "; start them, or wait longer (--wait)")};
    }
    std::this_thread::sleep_for(kLookEvery);
  }
  attempt_ = attempt;
  std::string go = head_of(options_, attempt_);
  for (const auto& [worker, nonce] : nonces) go += text("with ", nonce, "\n");
  return write_file_atomically(path("go"), sealed(std::move(go)));
}

Result<std::string> WorkerMeeting::join(const MeetingWait& wait) {
  const Clock::time_point end = Clock::now() + wait.longest;
  const std::string nonce = new_nonce();
  const std::string name = text("hello-", options_.worker, "-", nonce);
  const std::string hello = sealed(
      text("worker ", options_.worker, "\nnonce ", nonce, "\nwho ", host_and_process(), "\n", identity_of(options_)));
  bool is_there = false;
  for (;; std::this_thread::sleep_for(kLookEvery)) {
    if (is_set(wait.cancel)) return Error{Code::cancelled, "interrupted"};
    if (Clock::now() >= end)
      return Error{Code::timeout,
                   text("worker 0 ", is_there ? "did not let us begin" : "did not begin", " within ",
                        seconds_of(wait.longest), " at ", options_.folder, ": start it, or wait longer (--wait)")};
    const Result<std::vector<std::string>> names = real_files().list(options_.folder);
    if (!names) continue;  // not yet
    is_there = std::ranges::find(*names, name) != names->end();
    if (!is_there) {  // worker 0 empties what an earlier attempt left, and us with it
      (void)write_file_atomically(path(name), hello);
      continue;
    }
    const Result<std::string> all = read_file(path("go"), kFileBytesMax);
    const auto lines = all ? unsealed(*all) : std::nullopt;
    if (!lines) continue;
    Reader reader(*lines);
    if (const auto why = reader.line("refused")) {
      if (reader.next_is(text("job ", options_.job, "\n"))) return Error{Code::invalid, std::string(*why)};
      continue;
    }
    const auto attempt = reader.line("attempt");
    if (!attempt || lines->find(text("\nwith ", nonce, "\n")) == std::string_view::npos) continue;
    attempt_ = *attempt;
    if (!lines->starts_with(head_of(options_, attempt_))) return not_one_plan(0, "who lets the others go");
    return attempt_;
  }
}

bool WorkerMeeting::goes_on() const {
  const Result<std::string> all = read_file(path("go"), kFileBytesMax);
  return all && all->starts_with(head_of(options_, attempt_));
}

Status WorkerMeeting::tell_progress(std::uint64_t bytes) const {
  return write_file_atomically(path(text("beat-", options_.worker, "-", attempt_)),
                               sealed(text("bytes ", bytes, "\n")));
}

Status WorkerMeeting::leave_report(const ShareReport& report) const {
  return write_file_atomically(path(text("report-", options_.worker, "-", attempt_)),
                               sealed(head_of(options_, attempt_) + text_of(report)));
}

void WorkerMeeting::leave_failure(const Error& error) const {
  std::string what = error.what;
  std::ranges::replace(what, '\n', ' ');
  (void)write_file_atomically(
      path(text("failed-", options_.worker, "-", attempt_)),
      sealed(text(head_of(options_, attempt_), "code ", static_cast<unsigned>(error.code), "\nwhat ", what, "\n")));
}

Result<WorkerMeeting::Standing> WorkerMeeting::standing_of(std::uint32_t worker) const {
  Standing standing;
  const std::string head = head_of(options_, attempt_);
  const Result<std::string> failed = read_file(path(text("failed-", worker, "-", attempt_)), kFileBytesMax);
  if (const auto lines = failed ? unsealed(*failed) : std::nullopt; lines && lines->starts_with(head)) {
    Reader reader(lines->substr(head.size()));
    const auto code = reader.line("code"), what = reader.line("what");
    const auto number = code ? number_of(*code) : std::nullopt;
    const bool is_known = number && *number <= static_cast<std::uint64_t>(Code::broken);
    return Error{is_known ? static_cast<Code>(*number) : Code::broken,
                 text("worker ", worker, " of ", options_.workers, ": ", what.value_or("failed"))};
  }
  if (const Result<std::string> beat = read_file(path(text("beat-", worker, "-", attempt_)), kFileBytesMax)) {
    const auto lines = unsealed(*beat);
    Reader reader(lines.value_or(""));
    const auto bytes = reader.line("bytes");
    standing.bytes = bytes ? number_of(*bytes).value_or(0) : 0;
  }
  const std::string name = path(text("report-", worker, "-", attempt_));
  const Result<std::string> all = read_file(name, kFileBytesMax);
  if (!all && all.error().code == Code::not_found) return standing;
  if (!all) return all.error();
  const auto lines = unsealed(*all);
  if (!lines) return damaged(name);
  if (!lines->starts_with(head))
    return Error{Code::stale, text(name,
                                   ": a report of another attempt, plan or number of workers; start all workers "
                                   "again")};
  Reader reader(lines->substr(head.size()));
  standing.report = parse_report(reader);
  if (!standing.report) return damaged(name);
  standing.bytes = standing.report->bytes;
  return standing;
}

Result<std::vector<ShareReport>> WorkerMeeting::wait_for_reports(
    const MeetingWait& wait, const std::function<void(std::uint64_t)>& progress) const {
  std::vector<std::optional<ShareReport>> reports(options_.workers);
  std::vector<std::uint64_t> bytes(options_.workers, 0);
  std::vector<Clock::time_point> moved(options_.workers, Clock::now());
  for (;; std::this_thread::sleep_for(kLookEvery)) {
    if (is_set(wait.cancel)) return Error{Code::cancelled, "interrupted"};
    std::uint64_t sum = 0;
    bool all_there = true;
    for (std::uint32_t i = 0; i < options_.workers; ++i) {
      if (!reports[i]) {
        PAWL_ASSIGN(Standing now, standing_of(i));
        if (now.bytes != bytes[i]) moved[i] = Clock::now();
        bytes[i] = now.bytes;
        reports[i] = std::move(now.report);
      }
      sum += bytes[i];
      all_there = all_there && reports[i];
      if (!reports[i] && Clock::now() - moved[i] >= wait.longest)
        return Error{Code::timeout,
                     text("worker ", i, " of ", options_.workers, " wrote nothing for ", seconds_of(wait.longest),
                          " and left no report: look for its end, and start "
                          "all workers again")};
    }
    progress(sum);
    if (all_there) break;
  }
  std::vector<ShareReport> out;
  for (std::optional<ShareReport>& report : reports) out.push_back(std::move(*report));
  return out;
}

}  // namespace pawl::checkpoint
