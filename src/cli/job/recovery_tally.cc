#include "cli/job/recovery_tally.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/text.h"
#include "cli/output.h"

namespace pawl::job {
namespace {

constexpr std::string::size_type kQuoteMin = 20;  // bytes; what is shorter is told each time

std::string seconds_of(std::uint64_t ms) {
  return text(fixed(static_cast<double>(ms) / 1000.0, 2), " s");
}

std::string counted(std::uint64_t count, const char* noun) {
  return text(count, " ", noun, count == 1 ? "" : "s");
}

std::string tensors_text(const json& event) {
  std::string names;
  const json& named = array_in(event, "tensors");
  for (const json& name : named)
    names += text(names.empty() ? "" : ", ", name.is_string() ? name.get<std::string>() : "-");
  if (const std::uint64_t count = number_in(event, "count"); count > named.size())
    names += text(" and ", counted(count - named.size(), "other"));
  return text("seat ", number_in(event, "seat"), " differs in ", names);
}

}  // namespace

std::string wait_text(const json& wait) {
  const bool of_seat = member_of(wait, "seat").is_number_unsigned();
  const auto seconds = [&wait](const char* name) {
    return fixed(static_cast<double>(number_in(wait, name)) / 1000.0, 1);
  };
  std::string out = text(of_seat ? text("seat ", number_in(wait, "seat")) : "the recovery", " waits for ",
                         string_in(wait, "what"), ", ", seconds("for_ms"), " s so far");
  if (number_in(wait, "deadline_ms") > 0) out += text(", deadline ", seconds("deadline_ms"), " s");
  if (const std::uint64_t seats = number_in(wait, "seats"); seats > 1)
    out += text("; ", counted(seats - 1, "other seat"), " of its node ", seats == 2 ? "waits, too" : "wait, too");
  return out;
}

std::string difference_text(const json& one) {
  std::string seats;
  const json& named = array_in(one, "seats");
  for (const json& seat : named)
    seats += text(seats.empty() ? "" : ", ", seat.is_number_unsigned() ? seat.dump() : "-");
  const std::uint64_t count = number_in(one, "count"), like = number_in(one, "like_count");
  if (count > named.size()) seats += text(" and ", counted(count - named.size(), "other"));
  return text("the state of seat", count == 1 ? " " : "s ", seats, " differs from that of seat ",
              number_in(one, "like"), like > 1 ? text(" and ", counted(like - 1, "other")) : "", " at step ",
              number_in(one, "step"), ", in ", string_in(one, "bytes"), " of what was declared equal on them");
}

std::optional<std::string> RecoveryTally::note(const json& event) {
  const std::string kind = string_in(event, "kind");
  const std::uint64_t generation = number_in(event, "generation");
  if (kind == "running") return note_running(event);
  if (kind == "trainer_ended") return note_ended(event);
  if (kind == "recovery_waits") return wait_text(event);
  if (kind == "paths_differ") return difference_text(event);
  if (kind == "paths_differ_in") return tensors_text(event);
  if (kind == "paths_equal")
    return text("at step ", number_in(event, "step"), " they are equal again in ", string_in(event, "bytes"));
  if (kind == "fault_detected" && generation >= ran_)
    fault_ms_ = std::min(fault_ms_.value_or(~std::uint64_t{0}), number_in(event, "at_ms"));
  if (kind == "drain_begun" && generation >= ran_) {
    const std::uint64_t at_ms = number_in(event, "at_ms");  // the trainers have waited before that
    fault_ms_ = std::min(fault_ms_.value_or(at_ms), at_ms - std::min(at_ms, number_in(event, "waited_ms")));
    return text("node ", number_in(event, "leaving"), " is drained after step ", number_in(event, "step"));
  }
  if (kind == "frozen" && generation > ran_) begun_step_ = std::max(begun_step_, number_in(event, "step"));
  return std::nullopt;
}

std::string RecoveryTally::note_ended(const json& event) {
  std::string how = string_in(event, "how");  // "exited 1 in or after step 41: QUOTE, its output is in PATH"
  const std::string::size_type begin = how.find(": "), end = how.rfind(", its output is in ");
  if (begin != std::string::npos && end != std::string::npos && end > begin + 2 + kQuoteMin) {
    const std::string quote = how.substr(begin + 2, end - begin - 2);
    if (std::find(quoted_.begin(), quoted_.end(), quote) != quoted_.end())
      how.replace(begin + 2, quote.size(), "as above");
    else
      quoted_.push_back(quote);
  }
  const bool after_all = flag_in(event, "after_all");
  failed_after_all_ = failed_after_all_ || after_all;
  return text("seat ", number_in(event, "seat"), " (node ", number_in(event, "node"), "): its trainer ", how,
              after_all ? "; the job's steps are all done" : "");
}

std::optional<std::string> RecoveryTally::note_running(const json& event) {
  const std::uint64_t generation = number_in(event, "generation");
  if (generation <= ran_) return std::nullopt;  // told twice
  ran_ = generation;
  const std::uint64_t resume = number_in(event, "resume");
  const std::uint64_t begun = std::exchange(begun_step_, 0);
  const auto began_ms = std::exchange(fault_ms_, std::nullopt);
  if (!began_ms) return std::nullopt;  // the start of the job
  const std::uint64_t now_ms = number_in(event, "at_ms");
  const std::uint64_t took_ms = now_ms > *began_ms ? now_ms - *began_ms : 0;
  const std::uint64_t redone = begun > resume ? begun - resume : 0;
  ++recoveries_;
  redone_ += redone;
  took_ms_ += took_ms;
  return text("recovered in ", seconds_of(took_ms), ", ", counted(redone, "step"), " to do again");
}

std::string RecoveryTally::totals() const {
  if (recoveries_ == 0) return {};
  return text(recoveries_, recoveries_ == 1 ? " recovery, " : " recoveries, ", counted(redone_, "step"),
              " done again, ", seconds_of(took_ms_), " in all");
}

}  // namespace pawl::job
