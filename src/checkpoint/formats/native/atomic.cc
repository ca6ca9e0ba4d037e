// The reader; atomic_writer.cc has the other way.
#include "checkpoint/formats/native/atomic.h"

#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/text.h"
#include "checkpoint/containers/json_scan.h"
#include "checkpoint/containers/safetensors.h"
#include "checkpoint/containers/safetensors_layout.h"
#include "checkpoint/names/state_names.h"
#include "checkpoint/view/pieces.h"
#include "env/byte_source.h"

namespace pawl::checkpoint {
namespace {

constexpr std::uint64_t kIndexBytesMax = 1 << 30;
constexpr std::size_t kProblemsMax = 5;

struct AtomicState {
  std::string role;
  std::string file;
};
struct AtomicParameter {
  std::string name;
  std::string folder;
  std::vector<AtomicState> states;
};
struct AtomicIndex {
  std::string format;
  std::uint64_t version = 0;
  std::string step;
  std::string source;
  std::vector<AtomicParameter> parameters;
  std::vector<std::pair<std::string, std::string>> aliases;
};

// A name that a folder below ours may have: anything else could lead out of it.
bool scan_plain(JsonScan& scan, std::string& out) {
  return scan.string(out) && (is_plain_file_name(out) || scan.fail(text("\"", out, "\" is not a plain name")));
}

// {"name": "...", "folder": "...", "states": {"weight": "weight.safetensors"}}
void scan_parameter(JsonScan& scan, AtomicParameter& parameter) {
  std::string key;
  bool has_name = false;
  std::unordered_set<std::string> roles;
  scan.begin_object();
  while (scan.next_key(key)) {
    if (key == "name") {
      has_name = scan.string(parameter.name);
    } else if (key == "folder") {
      (void)scan_plain(scan, parameter.folder);
    } else if (key == "states") {
      scan.begin_object();
      while (scan.next_key(key)) {
        if (!roles.insert(key).second) (void)scan.fail(text("state ", key, " is there twice"));
        (void)scan_plain(scan, parameter.states.emplace_back(AtomicState{key, {}}).file);
      }
    } else {
      (void)scan.skip();
    }
  }
  if (!scan.failed() && (!has_name || parameter.folder.empty())) (void)scan.fail("a parameter without name or folder");
}

Result<AtomicIndex> parse_index(std::string_view json) {
  AtomicIndex index;
  JsonScan scan(json);
  std::string key;
  std::unordered_set<std::string> names;
  scan.begin_object();
  while (scan.next_key(key)) {
    if (key == "format") {
      scan.string(index.format);
    } else if (key == "version") {
      scan.number(index.version);
    } else if (key == "step") {
      scan.string(index.step);
    } else if (key == "source") {
      scan.string(index.source);
    } else if (key == "parameters") {
      scan.begin_array();
      while (scan.next_item()) {
        scan_parameter(scan, index.parameters.emplace_back());
        if (!names.insert(index.parameters.back().name).second)
          (void)scan.fail(text("parameter ", index.parameters.back().name, " is there twice"));
      }
    } else if (key == "tied") {
      scan.begin_object();
      while (scan.next_key(key)) scan.string(index.aliases.emplace_back(key, std::string()).second);
    } else {
      (void)scan.skip();
    }
  }
  if (!scan.finish()) return scan.error();
  if (index.format != "pawl atomic") return Error{Code::corrupt, "it does not say that it is \"pawl atomic\""};
  if (index.version != 1)
    return Error{Code::invalid, text("version ", index.version, " is not known here: a newer pawl reads it")};
  return index;
}

class Reader {
 public:
  Reader(const std::string& folder, Files& files) : folder_(folder), files_(files) {}

  Result<CheckpointView> read() {
    const std::string path = join_path(folder_, kAtomicIndexName);
    PAWL_ASSIGN(const std::string json, read_file(path, kIndexBytesMax, files_));
    Result<AtomicIndex> index = parse_index(json);
    if (!index) return std::move(index).error().within(path);
    view_.format = "atomic";
    if (!index->step.empty()) view_.facts.emplace_back("step", index->step);
    if (!index->source.empty()) view_.facts.emplace_back("source", index->source);
    for (const AtomicParameter& parameter : index->parameters)
      for (const AtomicState& state : parameter.states) add(parameter, state);
    for (const auto& [what, count] : more_)
      if (count > kProblemsMax)
        view_.problems.push_back(text(what, count - kProblemsMax, " more states are missing or damaged"));
    add_aliases(*index);
    PAWL_TRY(check_view(view_, file_bytes_));
    return std::move(view_);
  }

 private:
  // Of one state alone it is known what is wrong: all the others are whole.
  void add(const AtomicParameter& parameter, const AtomicState& state) {
    const std::string path = join_path(join_path(folder_, parameter.folder), state.file);
    if (Status added = add_file(parameter, state, path); !added) {
      const bool is_of_the_model = state.role == "weight" || state.role == "buffer";
      const std::string front = is_of_the_model ? std::string() : text(kOfOptimizerState, ": ");
      if (++more_[front] <= kProblemsMax) view_.problems.push_back(text(front, std::move(added).error().what));
    }
  }

  Status add_file(const AtomicParameter& parameter, const AtomicState& state, const std::string& path) {
    PAWL_ASSIGN(SafetensorsFile file, open_safetensors(path, files_));
    const std::string key = role_key(parameter.name, state.role);
    if (file.tensors.size() != 1 || file.tensors[0].name != key)
      return Error{Code::corrupt, text(path, ": not the one tensor ", key, " that ", kAtomicIndexName, " says it is")};
    SafetensorsEntry& entry = file.tensors[0];
    if (entry.shape.size() > kDimensionsMax) return Error{Code::invalid, text(path, ": more than eight dimensions")};
    StoredTensor tensor{parameter.name, state.role, entry.type, std::move(entry.shape)};
    const auto number = static_cast<std::uint32_t>(view_.files.size());
    if (entry.size_bytes != 0) tensor.pieces.assign(1, whole_piece(tensor.shape, number, entry.offset_bytes));
    for (const auto& [name, value] : file.metadata)
      if (name == text(kTrueTypeKey, key)) (void)take_true_type(tensor, value);
    view_.files.push_back({path});
    file_bytes_.push_back(entry.offset_bytes + entry.size_bytes);
    view_.tensors.push_back(std::move(tensor));
    return {};
  }

  void add_aliases(const AtomicIndex& index) {
    std::unordered_set<std::string_view> names;
    for (const StoredTensor& tensor : view_.tensors) names.insert(tensor.name);
    for (const auto& [alias, name] : index.aliases)
      if (names.contains(name) && !names.contains(alias)) view_.aliases.emplace_back(alias, name);
  }

  const std::string& folder_;
  Files& files_;
  CheckpointView view_;
  std::vector<std::uint64_t> file_bytes_;
  std::unordered_map<std::string, std::size_t> more_;  // problems, of the model and of the optimizer
};

}  // namespace

Result<CheckpointView> view_atomic(const std::string& folder, Files& files) {
  return Reader(folder, files).read();
}

}  // namespace pawl::checkpoint
