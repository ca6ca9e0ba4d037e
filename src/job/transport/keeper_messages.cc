#include "job/transport/keeper_messages.h"

#include <algorithm>

#include "base/text.h"

namespace pawl::job {
namespace {

constexpr std::uint32_t kCodeMax = 255;

// "word rest" -> word, and leaves the rest.
std::string_view take_word(std::string_view& text, char separator = ' ') {
  const std::size_t end = std::min(text.find(separator), text.size());
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return word;
}

std::string write(const HoldSegment& m) {
  return "hold " + m.name;
}
std::string write(const DropSegment& m) {
  return "drop " + m.name;
}
std::string write(const SpawnTrainer& m) {
  std::string packet = text("spawn ", m.local_index);
  for (const std::string& variable : m.environment) packet += "\n" + variable;
  return packet;
}
std::string write(const KillTrainer& m) {
  return text("kill ", m.local_index);
}
std::string write(const ShowTrainer& m) {
  return text(m.shown ? "show " : "hide ", m.local_index);
}
std::string write(const PawldAlive& m) {
  return text("alive ", m.lease_renewed.count());
}
std::string write(const FenceNode& m) {
  return "fence " + m.reason;
}
std::string write(const ResetNode& m) {
  return "reset " + m.reason;
}
std::string write(const EndNode& m) {
  return text("end ", m.code);
}
std::string write(const TrainerSpawned& m) {
  return text("spawned ", m.local_index, " ", m.pid, " ", m.start_time);
}
std::string write(const TrainerExited& m) {
  return text("exited ", m.local_index, " ", m.pid, " ", m.how, m.said.empty() ? "" : "\n", m.said);
}
std::string write(const StopAsked& m) {
  return text("stop ", m.signal, " ", m.grace_ms);
}

}  // namespace

std::string packet_of(const ToKeeper& message) {
  return std::visit([](const auto& m) { return write(m); }, message);
}

std::string packet_of(const FromKeeper& message) {
  return std::visit([](const auto& m) { return write(m); }, message);
}

std::optional<ToKeeper> parse_to_keeper(std::string_view packet) {
  std::string_view rest = packet;
  const std::string_view word = take_word(rest);
  if (word == "hold" && !rest.empty()) return HoldSegment{std::string(rest)};
  if (word == "drop") return DropSegment{std::string(rest)};
  if (word == "fence") return FenceNode{std::string(rest)};
  if (word == "reset") return ResetNode{std::string(rest)};
  if (word == "spawn") {
    SpawnTrainer spawn;
    if (!parse_number(take_word(rest, '\n'), spawn.local_index)) return std::nullopt;
    while (!rest.empty())
      if (const std::string_view line = take_word(rest, '\n'); !line.empty()) spawn.environment.emplace_back(line);
    return spawn;
  }
  if (ShowTrainer show{0, word == "show"}; (show.shown || word == "hide") && parse_number(rest, show.local_index))
    return show;
  if (KillTrainer kill; word == "kill" && parse_number(rest, kill.local_index)) return kill;
  if (std::uint64_t renewed = 0; word == "alive" && parse_number(rest, renewed))
    return PawldAlive{Duration(static_cast<std::int64_t>(renewed))};
  if (EndNode end; word == "end" && parse_number(rest, end.code) && end.code <= kCodeMax) return end;
  return std::nullopt;
}

std::optional<FromKeeper> parse_from_keeper(std::string_view packet) {
  std::string_view rest = packet;
  const std::string_view word = take_word(rest);
  if (word == "stop") {
    StopAsked asked;
    if (!parse_number(take_word(rest), asked.signal) || !parse_number(rest, asked.grace_ms)) return std::nullopt;
    return asked;
  }
  std::uint32_t local_index = 0;
  std::uint64_t pid = 0;
  if (!parse_number(take_word(rest), local_index) || !parse_number(take_word(rest), pid)) return std::nullopt;
  if (word == "exited") {
    const std::string_view how = take_word(rest, '\n');
    return TrainerExited{local_index, pid, std::string(how), std::string(rest)};
  }
  if (TrainerSpawned spawned{local_index, pid, 0}; word == "spawned" && parse_number(rest, spawned.start_time))
    return spawned;
  return std::nullopt;
}

}  // namespace pawl::job
