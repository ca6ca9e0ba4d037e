#include "checkpoint/formats/deepspeed/universal_read_zero.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/text.h"
#include "checkpoint/view/pieces.h"

namespace pawl::checkpoint::deepspeed {
namespace {

constexpr std::string_view kStateSuffix = ".pt";

// A flat tensor in the shape that model_states says it has.
Status unflatten(const ShardFile& file, const UniversalModel& model, StoredTensor& tensor) {
  const auto at = model.trainable.find(tensor.name);
  if (at == model.trainable.end())
    return file.damaged(text("is flat, and no model_states file says which shape ", tensor.name, " has"));
  const std::uint64_t count = volume(whole_box(tensor.shape));
  if (tensor.shape.size() != 1 || count != at->second.count)
    return file.damaged(
        text("has shape ", text_of(tensor.shape), ", and ", tensor.name, " has ", text_of(at->second.shape)));
  tensor.shape = at->second.shape;
  if (tensor.pieces.empty()) return {};
  if (tensor.pieces[0].stride[0] != 1 && count > 1) return file.damaged("is flat and not dense");
  tensor.pieces[0].box = whole_box(tensor.shape);
  tensor.pieces[0].stride = dense_stride(tensor.pieces[0].box);
  return {};
}

Status read_step(const ShardFile& file, const std::string& name, CheckpointView& view) {
  const Pickle::Value root = file.pickle().root();
  if (const TorchTensor* tensor = file.tensor(root)) {
    PAWL_ASSIGN(StoredTensor out, file.stored(*tensor, name));
    out.role = "step";
    view.tensors.push_back(std::move(out));
    return {};
  }
  PAWL_ASSIGN(const std::optional<double> number, file.number(root));
  if (!number) return file.damaged(text("should hold a step, and holds ", file.pickle().describe(root)));
  append_step_number(name, file.path(), *number, view);
  return {};
}

class ZeroReader {
 public:
  ZeroReader(std::string zero, const UniversalModel& model, const KeptTensors& kept, Files& files, CheckpointView& view)
      : folder_(std::move(zero)), model_(model), kept_(kept), files_(files), view_(view) {}

  Result<UniversalZero> read() {
    PAWL_ASSIGN(const std::vector<std::string> names, files_.list(folder_));
    for (const std::string& name : names) {
      if (name == "optimizer_state.pt")
        out_.has_optimizer_state = true;
      else if (name.ends_with(kStateSuffix))
        view_.notes.push_back(text(join_path(folder_, name), " does not belong to a parameter and is ignored"));
      else
        read_parameter(name, join_path(folder_, name));
    }
    if (out_.has_optimizer_state) view_.objects.push_back("optimizer_state");
    return std::move(out_);
  }

 private:
  void read_parameter(const std::string& name, const std::string& path);
  [[nodiscard]] std::optional<std::vector<std::string>> states_in(const std::string& path);
  Status read_tensor(const ShardFile& file, const std::string& name, const std::string& state, bool has_states);
  void append_rounded(StoredTensor weight);

  std::string folder_;  // zero/
  const UniversalModel& model_;
  const KeptTensors& kept_;
  Files& files_;
  CheckpointView& view_;
  UniversalZero out_;
};

// Nothing if the folder can't be listed.
std::optional<std::vector<std::string>> ZeroReader::states_in(const std::string& path) {
  Result<std::vector<std::string>> entries = files_.list(path);
  if (!entries) {
    view_.problems.push_back(entries.error().what);
    return std::nullopt;
  }
  std::vector<std::string> out;
  for (const std::string& entry : *entries)
    if (entry.ends_with(kStateSuffix) && entry.size() > kStateSuffix.size())
      out.push_back(entry.substr(0, entry.size() - kStateSuffix.size()));
    else
      view_.notes.push_back(text(join_path(path, entry), " is not a state of a parameter and is ignored"));
  return out;
}

void ZeroReader::read_parameter(const std::string& name, const std::string& path) {
  const std::optional<std::vector<std::string>> states = states_in(path);
  if (!states) return;
  // The converter gives the others fp32.pt alone: no model_states file may name it (ZeRO-0, other ranks' experts).
  const bool has_states =
      std::ranges::any_of(*states, [](const std::string& state) { return state != "fp32" && state != "step"; });
  if (model_.is_alias(name)) return;
  // What model_states has as it was, and the converter wrote again as float32.
  if (!has_states && !model_.trainable.contains(name) && !model_.ranks.empty() && kept_.names.contains(name)) {
    if (model_.buffers.contains(name)) ++out_.buffers_written;
    return;
  }
  if (states->empty()) {
    view_.problems.push_back(text(path, " holds no state of the parameter"));
    return;
  }
  out_.states[name] = std::set<std::string>(states->begin(), states->end());
  for (const std::string& state : *states) {
    const std::string prefix = state == "fp32" ? "" : text(kOfOptimizerState, ": ");
    const std::optional<ShardFile> file = open_shard(join_path(path, text(state, kStateSuffix)), prefix, files_, view_);
    if (!file) continue;
    Status done = state == "step" ? read_step(*file, name, view_) : read_tensor(*file, name, state, has_states);
    if (!done) view_.problems.push_back(prefix + done.error().what);
  }
}

Status ZeroReader::read_tensor(const ShardFile& file, const std::string& name, const std::string& state,
                               bool has_states) {
  const Pickle& pickle = file.pickle();
  const bool is_dict = pickle.holds_pairs(pickle.root());
  const TorchTensor* tensor = file.tensor(is_dict ? file.find("param") : pickle.root());
  if (tensor == nullptr) return file.damaged(is_dict ? "has no tensor under the key param" : "is not a tensor");
  PAWL_ASSIGN(StoredTensor out, file.stored(*tensor, name));
  const bool is_trainable = model_.trainable.contains(name) || has_states || model_.ranks.empty();
  if (state != "fp32")
    out.role = state;
  else if (is_trainable)
    out.role = "master";
  else
    out.role = model_.buffers.contains(name) ? "buffer" : "weight";
  if (!is_dict) PAWL_TRY(unflatten(file, model_, out));
  if (out.role == "master" && !model_.ranks.empty() && !kept_.names.contains(name)) append_rounded(out);
  view_.tensors.push_back(std::move(out));
  return {};
}

// A weight that was not stored: DeepSpeed would make it of its master, and so is it here.
void ZeroReader::append_rounded(StoredTensor weight) {
  weight.role = "weight";
  const auto at = kept_.placeholder_types.find(weight.name);
  const std::optional<ElementType> type = at != kept_.placeholder_types.end() ? at->second : model_.training_type;
  if (!type) return;
  if (*type != weight.type && !weight.pieces.empty()) {
    StoredPiece& piece = weight.pieces[0];
    const bool is_half = *type == ElementType::bfloat16 || *type == ElementType::float16;
    if (!is_half || weight.type != ElementType::float32 || piece.swapped || piece.stride != dense_stride(piece.box)) {
      view_.notes.push_back(text("weight of ", weight.name, " was not stored"));
      return;
    }
    StoredFile rounded = view_.files[piece.file];
    rounded.codec = *type == ElementType::bfloat16 ? StoredFile::Codec::bfloat16 : StoredFile::Codec::float16;
    rounded.offset_bytes = piece.offset_bytes;
    rounded.length_bytes = volume(piece.box) * 4;
    rounded.decoded_bytes = volume(piece.box) * 2;
    piece.file = static_cast<std::uint32_t>(view_.files.size());
    piece.offset_bytes = 0;
    view_.files.push_back(std::move(rounded));
  }
  weight.type = *type;
  view_.tensors.push_back(std::move(weight));
  ++out_.weights_rounded;
}

void check_states_of(const std::string& name, const std::set<std::string>& states, CheckpointView& view) {
  if (!states.contains("fp32")) view.problems.push_back(text("parameter ", name, " has no fp32.pt"));
  const bool has_first = states.contains("exp_avg"), has_second = states.contains("exp_avg_sq");
  if (has_first != has_second)
    view.problems.push_back(
        text(kOfOptimizerState, ": parameter ", name, " has no ", has_first ? "exp_avg_sq.pt" : "exp_avg.pt"));
}

}  // namespace

bool UniversalZero::has_steps() const {
  return std::ranges::any_of(states, [](const auto& entry) { return entry.second.contains("step"); });
}

Result<UniversalZero> read_universal_zero(const std::string& folder, const UniversalModel& model,
                                          const KeptTensors& kept, Files& files, CheckpointView& view) {
  return ZeroReader(join_path(folder, "zero"), model, kept, files, view).read();
}

void check_complete(const std::string& folder, const UniversalModel& model, const UniversalZero& zero,
                    CheckpointView& view) {
  std::size_t without = 0, with = 0;  // parameters, a state of the optimizer
  const std::string* first = nullptr;
  for (const std::string& name : model.order) {
    const auto at = zero.states.find(name);
    const bool is_empty = model.trainable.at(name).count == 0;
    if (at == zero.states.end()) {
      if (!model.is_alias(name) && !is_empty)
        view.problems.push_back(text("parameter ", name, " is missing: ", folder, "/zero has no folder of that name"));
      continue;
    }
    check_states_of(name, at->second, view);
    if (is_empty) continue;
    const bool is_alone =
        std::ranges::all_of(at->second, [](const std::string& state) { return state == "fp32" || state == "step"; });
    ++(is_alone ? without : with);
    if (is_alone && first == nullptr) first = &name;
  }
  if (without != 0 && with != 0)
    view.problems.push_back(text("parameter ", *first, without > 1 ? text(" and ", without - 1, " more have") : " has",
                                 " no state of the optimizer, and others have"));
}

void append_step_number(const std::string& name, const std::string& path, double number, CheckpointView& view) {
  const float value = static_cast<float>(number);
  StoredFile content{.path = path, .codec = StoredFile::Codec::content, .content = std::string(sizeof value, '\0')};
  std::memcpy(content.content.data(), &value, sizeof value);
  view.files.push_back(std::move(content));
  StoredTensor out;
  out.name = name;
  out.role = "step";
  out.pieces = {whole_piece({}, static_cast<std::uint32_t>(view.files.size() - 1), 0)};
  view.tensors.push_back(std::move(out));
}

}  // namespace pawl::checkpoint::deepspeed
