#include "job/recovery/classes.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "base/text.h"

namespace pawl::job {
namespace {

using enum FaultKind;
using enum FailureClass;
using enum Action;

// In the order of FaultKind.
constexpr std::array<ClassRow, 14> kClasses{{
    {FaultKind::none, transient_communication, roll_back_in_place, roll_back_in_place, 0, "nothing is wrong"},
    {node_lost, FailureClass::node, replace_node, stop, 8,
     "look at the machines' kernel logs and at `pawl events` for what ended them, and start sound nodes as spares"},
    {node_silent, FailureClass::node, replace_node, stop, 8,
     "look for stopped processes, an overloaded machine or a cut link between the nodes"},
    {trainer_exit, trainer_process, restart_trainer, replace_node, 2,
     "read the end of the trainer's output: the same step fails again and again"},
    {trainer_hang, trainer_process, restart_trainer, replace_node, 2,
     "look where the trainer hangs (a debugger on its pid); raise --hang-ms if a step truly takes so long"},
    {trainer_stuck, trainer_process, restart_trainer, replace_node, 2,
     "the trainer cannot be freed from what it waits in: poll pawl_event_fd beside its sockets"},
    {communication, transient_communication, roll_back_in_place, replace_node, 3,
     "look at the links between the nodes and at the trainers' own time limits for collectives"},
    {corrupt_source, FailureClass::node, roll_back_in_place, roll_back_in_place, 0,
     "memory returned other bytes than were written: test the named nodes' memory"},
    {leader_lost, FailureClass::node, replace_node, stop, 8,
     "look at the machines' kernel logs and at `pawl events` for what ended them, and start sound nodes as spares"},
    {operator_stop, repeated, stop, stop, 0, "start the job again when it should go on"},
    {layout_conflict, repeated, stop, stop, 0,
     "declare the same meshes and replicated tensors on every rank; the detail names the first that differ"},
    {drain, FailureClass::node, replace_node, replace_node, 0, "`pawl node uncordon` lets the node take seats again"},
    {source_unreached, transient_communication, roll_back_in_place, replace_node, 1,
     "look for a cut link between the node of the seat and the named source", false},
    {last_checkpoint, repeated, roll_back_in_place, roll_back_in_place, 0, "`pawl run --resume auto` goes on from it"},
}};

constexpr bool in_order() {
  for (std::size_t i = 0; i < kClasses.size(); ++i)
    if (static_cast<std::size_t>(kClasses[i].kind) != i) return false;
  return true;
}
static_assert(in_order() && kClasses.size() == static_cast<std::size_t>(last_checkpoint) + 1);

}  // namespace

std::span<const ClassRow> failure_classes() {
  return kClasses;
}

const ClassRow& class_of(FaultKind kind) {
  const auto index = static_cast<std::size_t>(kind);
  return kClasses[index < kClasses.size() ? index : 0];
}

Action action_for(const Cause& cause, std::uint32_t attempts) {
  const ClassRow& row = class_of(cause.kind);
  const bool named = cause.kind == communication && cause.node.has_value();
  const std::uint32_t patience = named ? kSuspectAttemptsMax : row.attempts_max;
  if (row.attempts_max == 0 || attempts < patience) return row.action;
  return attempts / 2 < row.attempts_max || !row.stops ? row.escalation : Action::stop;
}

// --- Signs

namespace {

constexpr std::size_t kFailureBytesMax = 300;
constexpr std::size_t kFleetingDigits = 5;  // shorter numbers mean something: an index, a shape, a line

struct ClassWord {
  std::string_view word;
  FailureClass failure_class;
};
constexpr ClassWord kClassWords[] = {{"network", transient_communication},
                                     {"trainer", trainer_process},
                                     {"node", FailureClass::node},
                                     {"repeated", repeated},
                                     {"permanent", permanent},
                                     {"numerical", numerical}};

bool is_digit(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0;
}
bool is_hexadecimal(char c) {
  return std::isxdigit(static_cast<unsigned char>(c)) != 0;
}

// "exited 1" must not be found in "exited 127".
bool shows_in(std::string_view place, std::string_view sign) {
  for (std::size_t at = place.find(sign); at != std::string_view::npos; at = place.find(sign, at + 1)) {
    const std::size_t end = at + sign.size();
    if (end == place.size() || !is_digit(place[end]) || !is_digit(sign.back())) return true;
  }
  return false;
}

std::string_view trimmed(std::string_view line) {
  while (!line.empty() && (line.back() == '\r' || line.back() == ' ' || line.back() == '\t')) line.remove_suffix(1);
  return line;
}

// torch writes "[rank3]: " before each line of a traceback.
std::string_view without_rank(std::string_view line) {
  const std::size_t end = line.find("]: ");
  if (line.starts_with("[rank") && end != std::string_view::npos) line.remove_prefix(end + 3);
  return line;
}

std::string_view take_line(std::string_view& lines) {
  const std::size_t end = std::min(lines.find('\n'), lines.size());
  const std::string_view line = lines.substr(0, end);
  lines.remove_prefix(std::min(end + 1, lines.size()));
  return trimmed(line);
}

// Addresses and numbers of processes differ from one life to the next.
std::string without_fleeting_numbers(std::string_view failure) {
  std::string out;
  while (!failure.empty()) {
    const bool hexadecimal = failure.starts_with("0x");
    std::size_t end = hexadecimal ? 2 : 0;
    while (end < failure.size() && (hexadecimal ? is_hexadecimal(failure[end]) : is_digit(failure[end]))) ++end;
    if (hexadecimal || end >= kFleetingDigits)
      out += '#';
    else
      out += failure.substr(0, std::max<std::size_t>(end, 1));
    failure.remove_prefix(std::max<std::size_t>(end, 1));
  }
  return out;
}

}  // namespace

std::span<const FailureSign> known_signs() {
  static const auto* signs = new std::vector<FailureSign>{
      {"exited 78", permanent, "pawl has refused it, as its output says"},
      {"exited 126", permanent, "the command can't be executed"},
      {"exited 127", permanent, "there is no such command"},
      {"no such program", permanent, "look at the command after `--`"},
      {": not in PATH", permanent, "look at the command after `--`"},
      {": Permission denied", permanent, "the command can't be executed: look at its permissions"},
      {": Exec format error", permanent, "the command is no program for this machine"},
      {"ModuleNotFoundError:", permanent, "install the module on every node, or start with another interpreter"},
      {"ImportError:", permanent, "install what is missing on every node"},
      {"SyntaxError:", permanent, "mend the script"},
      {"IndentationError:", permanent, "mend the script"},
      {"FloatingPointError:", numerical, "look at the loss and the gradients of the last steps"},
      {"uncorrectable ECC error", FailureClass::node, "the device's memory is damaged"},
      {"NVRM: Xid", FailureClass::node, "look up the Xid number in the driver's manual"},
      {"CUDA error: unspecified launch failure", FailureClass::node, "look into the kernel log for Xid messages"},
      {"CUDA error: unknown error", FailureClass::node, "look into the kernel log for Xid messages"},
      {"CUDA-capable device(s) is/are busy or unavailable", FailureClass::node, "look at the node's devices"},
      {"No CUDA GPUs are available", FailureClass::node, "look at the node's devices and driver"},
      {"ncclRemoteError", transient_communication, ""},
      {"ncclSystemError", transient_communication, ""},
      {"NCCL error", transient_communication, ""},
      {"Connection reset by peer", transient_communication, ""},
      {"Connection closed by peer", transient_communication, ""},
      {"No space left on device", trainer_process, "make room on the disk that the trainer writes to"},
      {"out of memory", trainer_process, "give the trainer more memory, or let it use less"},
      {"MemoryError", trainer_process, "give the trainer more memory, or let it use less"},
  };
  return *signs;
}

Result<std::vector<FailureSign>> parse_signs(std::string_view lines) {
  std::vector<FailureSign> signs;
  for (std::size_t number = 1; !lines.empty(); ++number) {
    const std::string_view line = take_line(lines);
    if (line.empty() || line.front() == '#') continue;
    const std::size_t space = std::min(line.find(' '), line.size());
    const auto failure_class = failure_class_named(line.substr(0, space));
    if (!failure_class || *failure_class == repeated || space + 1 >= line.size())
      return Error{Code::invalid, text("line ", number,
                                       ": expected a class (network, trainer, node, permanent or "
                                       "numerical), a blank and a text to look for")};
    signs.push_back({std::string(line.substr(space + 1)), *failure_class, ""});
  }
  return signs;
}

const FailureSign* sign_of(std::string_view how, std::string_view failure, std::span<const FailureSign> users) {
  for (const std::span<const FailureSign> signs : {users, known_signs()})
    for (const FailureSign& sign : signs)
      if (shows_in(how, sign.text) || shows_in(failure, sign.text)) return &sign;
  return nullptr;
}

std::string failure_in(std::string_view said) {
  std::string_view last;
  std::string_view exception;
  bool in_stack = false;  // its lines are indented; the first after them is the exception
  while (!said.empty()) {
    const std::string_view line = without_rank(take_line(said));
    if (line.empty()) continue;
    last = line;
    if (in_stack && line.front() != ' ') {
      exception = line;
      in_stack = false;
    }
    if (line.starts_with("Traceback (most recent call last)")) in_stack = true;
  }
  return std::string((exception.empty() ? last : exception).substr(0, kFailureBytesMax));
}

bool same_failure(std::string_view a, std::string_view b) {
  return without_fleeting_numbers(a) == without_fleeting_numbers(b);
}

std::optional<FailureClass> failure_class_named(std::string_view name) {
  const auto* word = std::ranges::find(kClassWords, name, &ClassWord::word);
  return word != std::end(kClassWords) ? std::optional(word->failure_class) : std::nullopt;
}

const char* name_of(FailureClass failure_class) {
  for (const ClassWord& word : kClassWords)
    if (word.failure_class == failure_class) return word.word.data();
  return "unknown";
}

}  // namespace pawl::job
