#include "checkpoint/formats/training/training_parts.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "base/text.h"

namespace pawl::checkpoint {
namespace {

using Form = TrainingPart::Form;
using Parts = std::map<std::uint32_t, TrainingPart>;  // by number

constexpr std::string_view kTrainerState = "trainer_state.json";  // Trainer
constexpr std::string_view kMeta = "meta.pt";                     // Lightning, beside a DCP folder's own files
constexpr std::uint32_t kNumberMax = 1 << 16;

struct PartName {
  std::uint32_t number = 0;
  std::uint32_t rank = kNoRank;
};

// STEM, STEM_1, STEM_rank0, STEM_1_rank0, and then the extension.
std::optional<PartName> parse(std::string_view name, std::string_view stem, std::string_view extension) {
  if (name.size() < stem.size() + extension.size() || !name.starts_with(stem) || !name.ends_with(extension))
    return std::nullopt;
  std::string_view rest = name.substr(stem.size(), name.size() - stem.size() - extension.size());
  PartName out;
  if (const std::size_t at = rest.find("_rank"); at != std::string_view::npos) {
    if (!parse_number(rest.substr(at + 5), out.rank) || out.rank > kNumberMax) return std::nullopt;
    rest = rest.substr(0, at);
  }
  if (rest.empty()) return out;
  if (rest[0] != '_' || !parse_number(rest.substr(1), out.number) || out.number > kNumberMax) return std::nullopt;
  return out;
}

class PartFinder {
 public:
  PartFinder(std::span<const std::string> names, std::span<const std::string> adapters)
      : names_(names), adapters_(adapters) {}
  std::optional<TrainingParts> find();

 private:
  bool take_model(const std::string& name);
  bool take_optimizer(const std::string& name);
  bool take_other(const std::string& name);
  void add(Parts& parts, Form form, const PartName& place, const std::string& name);
  void choose_models();
  void take_optimizers();
  [[nodiscard]] bool is_training() const;
  void name_writer();
  void say_missing();
  void say_missing_optimizer();
  void check_numbers(const std::vector<TrainingPart>& parts, std::string_view what, std::string_view prefix);
  void check_ranks(const std::vector<TrainingPart>& parts, std::uint32_t last, std::string_view prefix);
  [[nodiscard]] bool has(std::string_view name) const { return std::ranges::find(names_, name) != names_.end(); }
  [[nodiscard]] std::string first_starting(std::string_view with) const;

  std::span<const std::string> names_;
  std::span<const std::string> adapters_;
  TrainingParts out_;
  Parts safetensors_;
  Parts torch_files_;  // pytorch_model.bin
  Parts fsdp_;
  Parts optimizers_;
  std::vector<std::string> unread_;  // nobody knows them, and they may hold tensors
};

bool may_hold_tensors(std::string_view name) {
  if (name.find("-of-") != std::string_view::npos) return false;  // a shard, which the index names
  constexpr std::string_view kExtensions[] = {".pt", ".pth", ".bin", ".safetensors"};
  return std::ranges::any_of(kExtensions, [&](std::string_view each) { return name.ends_with(each); });
}

std::string PartFinder::first_starting(std::string_view with) const {
  for (const std::string& name : names_)
    if (name.starts_with(with)) return name;
  return {};
}

void PartFinder::add(Parts& parts, Form form, const PartName& place, const std::string& name) {
  const auto [at, is_new] = parts.try_emplace(place.number);
  TrainingPart& part = at->second;
  if (!is_new && form == Form::huggingface && part.form == form) return;  // its reader says which of them is the model
  const bool is_of_a_rank = place.rank != kNoRank && !is_new && part.files[0].first != kNoRank && part.form == form;
  if (!is_new && !is_of_a_rank) {
    if (out_.conflict.empty())
      out_.conflict = text(part.files[0].second, " and ", name, " claim to be the same part of the training");
    return;
  }
  part.form = form;
  part.number = place.number;
  part.files.emplace_back(place.rank, name);
}

bool PartFinder::take_model(const std::string& name) {
  if (const auto place = parse(name, "model", ".safetensors"); place && place->rank == kNoRank)
    return add(safetensors_, Form::huggingface, *place, name), true;
  if (name == "model.safetensors.index.json" || name == "adapter_model.safetensors")
    return add(safetensors_, Form::huggingface, {}, name), true;
  if (const auto place = parse(name, "pytorch_model", ".bin"); place && place->rank == kNoRank)
    return add(torch_files_, Form::torch, *place, name), true;
  if (name == "adapter_model.bin") return add(torch_files_, Form::torch, {}, name), true;
  if (name == "pytorch_model.bin.index.json") return add(torch_files_, Form::huggingface, {}, name), true;
  if (const auto place = parse(name, "pytorch_model_fsdp", ".bin")) return add(fsdp_, Form::torch, *place, name), true;
  if (const auto place = parse(name, "pytorch_model_fsdp", ""); place && place->rank == kNoRank)
    return add(fsdp_, Form::dcp, *place, name), true;
  return false;
}

bool PartFinder::take_optimizer(const std::string& name) {
  if (name == "optimizer.pt") return add(optimizers_, Form::torch, {}, name), true;
  if (const auto place = parse(name, "optimizer", ".bin")) return add(optimizers_, Form::torch, *place, name), true;
  std::uint32_t number = 0;
  constexpr std::string_view kFolder = "optimizer_";
  if (name.starts_with(kFolder) && parse_number(std::string_view(name).substr(kFolder.size()), number) &&
      number <= kNumberMax)
    return add(optimizers_, Form::dcp, {number, kNoRank}, name), true;
  return false;
}

bool PartFinder::take_other(const std::string& name) {
  constexpr std::string_view kStems[] = {"scheduler",     "scaler",  "rng_state",
                                         "random_states", "sampler", "dl_state_dict"};
  constexpr std::string_view kExtensions[] = {".pt", ".bin", ".pth", ".pkl"};
  bool is_other = name == kTrainerState || name == "training_args.bin" || name.starts_with("custom_checkpoint_");
  for (const std::string_view stem : kStems)
    for (const std::string_view extension : kExtensions)
      is_other = is_other || parse(name, stem, extension).has_value();
  if (!is_other) return false;
  if (name == "scheduler.pt" || name == "scheduler.bin") out_.scheduler = name;
  if (name.starts_with("custom_checkpoint_"))
    out_.notes.push_back(
        text(name, " has what the program registered for checkpoints, and is not read with the others"));
  out_.others.push_back(name);
  return true;
}

// A training may have written its weights twice: as it trains them, and for those who only want a model.
void PartFinder::choose_models() {
  Parts* const by_choice[] = {&fsdp_, &safetensors_, &torch_files_};
  Parts* chosen = nullptr;
  for (Parts* const parts : by_choice) {
    if (parts->empty()) continue;
    if (chosen == nullptr) {
      chosen = parts;
      continue;
    }
    for (const auto& [number, part] : *parts)
      out_.notes.push_back(text(part.files[0].second, " has weights, too, and is not read: those of ",
                                chosen->begin()->second.files[0].second, " are"));
  }
  if (chosen != nullptr)
    for (auto& [number, part] : *chosen) out_.models.push_back(std::move(part));
  const bool is_in_adapter = chosen == nullptr && adapters_.size() == 1;
  if (is_in_adapter) out_.models.push_back({Form::huggingface, 0, {{kNoRank, adapters_[0]}}, true});
  for (const std::string& name : adapters_)
    if (!is_in_adapter)
      out_.notes.push_back(text("the adapter in ", name, " is not read; it can be given by its own path"));
}

void PartFinder::take_optimizers() {
  for (auto& [number, part] : optimizers_) out_.optimizers.push_back(std::move(part));
}

// Weights alone are a model's folder, and files of one's own names may be anybody's.
bool PartFinder::is_training() const {
  const bool has_progress = !out_.progress.empty() || !out_.scheduler.empty() || !first_starting("rng_state").empty() ||
                            !first_starting("random_states_").empty();
  if (out_.models.empty() && !unread_.empty() && !has(kTrainerState)) return false;
  if (out_.models.empty()) return !out_.optimizers.empty() && has_progress;
  return !out_.optimizers.empty() || has_progress || !fsdp_.empty();
}

void PartFinder::name_writer() {
  if (!first_starting("random_states_").empty() || has("scheduler.bin") || !fsdp_.empty()) out_.writer = "Accelerate";
  if (has(kTrainerState) || has("scheduler.pt") || has("optimizer.pt")) out_.writer = "transformers Trainer";
  if (has("adapter_config.json") || !adapters_.empty()) out_.writer += out_.writer.empty() ? "PEFT" : " with PEFT";
  if (out_.writer.empty()) out_.writer = "a training library";
}

void PartFinder::check_numbers(const std::vector<TrainingPart>& parts, std::string_view what, std::string_view prefix) {
  for (std::uint32_t i = 0; i < parts.size(); ++i) {
    if (parts[i].number == i) continue;
    out_.problems.push_back(
        text(prefix, what, " number ", i, " is missing, and ", parts[i].files[0].second, " is there"));
    return;
  }
}

// Each rank has a file of each part.
void PartFinder::check_ranks(const std::vector<TrainingPart>& parts, std::uint32_t last, std::string_view prefix) {
  for (const TrainingPart& part : parts) {
    if (part.files[0].first == kNoRank) continue;
    std::vector<std::uint32_t> ranks;
    for (const auto& [rank, name] : part.files) ranks.push_back(rank);
    for (std::uint32_t rank = 0; rank <= last; ++rank) {
      if (std::ranges::find(ranks, rank) != ranks.end()) continue;
      out_.problems.push_back(text(prefix, "rank ", rank, "'s file is missing beside ", part.files[0].second));
      break;
    }
  }
}

void PartFinder::say_missing_optimizer() {
  if (const std::string folder = first_starting("global_step"); !folder.empty()) {
    out_.problems.push_back(
        text(kOfOptimizerState, ": it is in ", folder, " (DeepSpeed); --tag ", folder, " reads it"));
  } else if (std::ranges::any_of(names_, [](const std::string& name) {
               return name.starts_with("rank") && name.ends_with("-optimizer.pt");
             })) {
    out_.problems.push_back(text(kOfOptimizerState,
                                 ": it is in rank#-of-#-optimizer.pt, as torch-xla's FSDP saves it, "
                                 "which is not read"));
  } else if (!out_.scheduler.empty() || !first_starting("rng_state").empty()) {
    out_.problems.push_back(text(kOfOptimizerState, ": its file is missing: ",
                                 out_.scheduler.empty() ? first_starting("rng_state") : out_.scheduler,
                                 " is there, which is saved together with it"));
  } else {
    out_.notes.emplace_back("no optimizer is here: the weights were saved alone");
  }
}

void PartFinder::say_missing() {
  if (out_.models.empty())
    out_.problems.emplace_back(
        "the weights are missing: neither model.safetensors, adapter_model.safetensors nor "
        "pytorch_model.bin is here (weights that a program saved in a folder of its own "
        "are read by that folder's path)");
  if (out_.optimizers.empty()) say_missing_optimizer();
  check_numbers(out_.models, "model", "");
  check_numbers(out_.optimizers, "optimizer", text(kOfOptimizerState, ": "));
  std::uint32_t last = 0;  // rank
  for (const std::vector<TrainingPart>* const each : {&out_.models, &out_.optimizers})
    for (const TrainingPart& part : *each)
      for (const auto& [rank, name] : part.files)
        if (rank != kNoRank) last = std::max(last, rank);
  check_ranks(out_.models, last, "");
  check_ranks(out_.optimizers, last, text(kOfOptimizerState, ": "));
  if (!out_.optimizers.empty() && has("optimizer.pt") && !has(kTrainerState))
    out_.notes.push_back(text(kTrainerState, " is missing: the optimizer alone says the step"));
}

std::optional<TrainingParts> PartFinder::find() {
  if (has(".metadata")) {  // a DCP folder: only Lightning keeps more than that in one
    if (!has(kMeta)) return std::nullopt;
    out_.writer = "Lightning";
    out_.models.push_back({Form::dcp, 0, {{kNoRank, ""}}});
    out_.progress = kMeta;
    out_.others.emplace_back(kMeta);
    return std::move(out_);
  }
  for (const std::string& name : names_)
    if (!take_model(name) && !take_optimizer(name) && !take_other(name) && may_hold_tensors(name))
      unread_.push_back(name);
  if (has(kTrainerState)) out_.progress = kTrainerState;
  if (safetensors_.empty() && torch_files_.empty())  // shards without an index, or names of the program's own
    for (const std::string& name : names_)
      if (name.ends_with(".safetensors")) {
        add(safetensors_, Form::huggingface, {}, name);
        std::erase(unread_, name);
      }
  choose_models();
  take_optimizers();
  if (!is_training()) return std::nullopt;
  name_writer();
  for (const std::string& name : unread_)
    out_.notes.push_back(
        text(name, " may hold tensors of the training, and is not read; it can be given by its own path"));
  say_missing();
  return std::move(out_);
}

}  // namespace

std::optional<TrainingParts> find_training_parts(std::span<const std::string> names,
                                                 std::span<const std::string> adapters) {
  return PartFinder(names, adapters).find();
}

}  // namespace pawl::checkpoint
