#include "checkpoint/formats/deepspeed/universal.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/text.h"
#include "checkpoint/formats/deepspeed/universal_read_kept.h"
#include "checkpoint/formats/deepspeed/universal_read_model.h"
#include "checkpoint/formats/deepspeed/universal_read_zero.h"
#include "env/byte_source.h"

namespace pawl::checkpoint {
namespace {

using namespace deepspeed;

// What the first rank's file says of the job, for people.
void append_facts(const UniversalModel& model, CheckpointView& view) {
  const ModelFacts& first = model.ranks[0].states.facts;
  const auto fact = [&](std::string key, std::string value) {
    if (!value.empty()) view.facts.emplace_back(std::move(key), std::move(value));
  };
  fact("writer", first.writer_version.empty() ? "" : text("DeepSpeed ", first.writer_version));
  if (first.step) fact("step", text(*first.step));
  if (first.data_world && first.model_world && *first.model_world < 1 << 20 && *first.data_world < 1 << 20)
    fact("world", text(*first.data_world * *first.model_world));
  const std::uint64_t pipeline = first.pipeline_degree.value_or(1);
  if (first.data_world) fact("layout", text("pp=", pipeline, " tp=", model.tensor_ranks, " dp=", *first.data_world));
  fact("optimizer", first.optimizer_name);
  fact("zero", text(first.stage));
  const std::vector<std::string>& objects = model.ranks[0].states.objects;
  view.objects.insert(view.objects.end(), objects.begin(), objects.end());
}

void append_notes(const std::string& folder, const std::vector<std::string>& entries, const UniversalZero& zero,
                  std::vector<std::string>& notes) {
  if (zero.buffers_written != 0)
    notes.push_back(text(zero.buffers_written,
                         " buffers are stored twice: those of model_states are taken, "
                         "not the float32 copies (DeepSpeed itself loads neither)"));
  if (zero.weights_rounded != 0)
    notes.push_back(text(zero.weights_rounded,
                         " weights are not stored: they are the masters, rounded to the "
                         "training's type, as DeepSpeed makes them when it loads this"));
  if (std::ranges::find(entries, "tmp") != entries.end())
    notes.push_back(text(folder, "/tmp was left by a conversion that was interrupted or told to keep it"));
}

// The folder itself, or the one that it points to.
Result<std::string> find_folder(const std::string& folder, const ReadOptions& options, Files& files) {
  if (options.tag.empty() && is_universal(folder, files)) return folder;
  std::string tag = options.tag;
  if (tag.empty()) {
    const Result<std::string> pointer = read_file(join_path(folder, "latest_universal"), 4096, files);
    if (!pointer)
      return Error{Code::not_found, text(folder,
                                         ": no universal checkpoint of DeepSpeed: no folder zero with the "
                                         "parameters in it, and no latest_universal")};
    tag = pointer->substr(0, pointer->find_last_not_of(" \r\n\t") + 1);
  }
  if (!is_plain_file_name(tag))
    return Error{Code::corrupt, text(join_path(folder, "latest_universal"), ": names no folder beside itself")};
  std::string out = join_path(folder, tag);
  if (!is_universal(out, files))
    return Error{Code::not_found, text(out,
                                       ": no universal checkpoint of DeepSpeed: no folder zero with the "
                                       "parameters in it")};
  return out;
}

}  // namespace

bool is_universal(const std::string& folder, Files& files) {
  const std::string zero = join_path(folder, "zero");
  const Result<std::vector<std::string>> names = files.list(zero);
  if (!names) return false;
  for (const std::string& name : *names) {
    if (name.ends_with(".pt")) continue;
    const Result<std::vector<std::string>> states = files.list(join_path(zero, name));
    if (states && std::ranges::find(*states, "fp32.pt") != states->end()) return true;
  }
  return false;
}

Result<CheckpointView> view_universal(const std::string& folder, const ReadOptions& options, Files& files) {
  PAWL_ASSIGN(const std::string found, find_folder(folder, options, files));
  PAWL_ASSIGN(const std::vector<std::string> entries, files.list(found));
  CheckpointView view;
  view.format = "DeepSpeed universal";
  const UniversalModel model = read_universal_model(found, entries, files, view);
  const KeptTensors kept = append_kept(model, view);
  PAWL_ASSIGN(const UniversalZero zero, read_universal_zero(found, model, kept, files, view));
  check_complete(found, model, zero, view);
  if (zero.has_optimizer_state) read_optimizer_state(found, model, zero, files, view);
  if (!model.ranks.empty()) append_facts(model, view);
  append_notes(found, entries, zero, view.notes);
  return view;
}

}  // namespace pawl::checkpoint
