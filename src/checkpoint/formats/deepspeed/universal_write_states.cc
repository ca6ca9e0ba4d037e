#include "checkpoint/formats/deepspeed/universal_write_states.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <span>
#include <string_view>

#include "base/first_few.h"
#include "base/text.h"
#include "checkpoint/reshape/cast.h"
#include "env/byte_source.h"

namespace pawl::checkpoint::deepspeed {
namespace {

constexpr std::size_t kNameBytesMax = 255;

bool is_wanted(const std::string& role, const WriteOptions& options) {
  return options.roles.empty() || std::ranges::find(options.roles, role) != options.roles.end();
}

std::optional<double> number_of(ElementType type, const char* bytes) {
  if (type == ElementType::int64) {
    std::int64_t value = 0;
    std::memcpy(&value, bytes, sizeof value);
    return static_cast<double>(value);
  }
  double wide = 0;
  if (type == ElementType::float64) return std::memcpy(&wide, bytes, sizeof wide), wide;
  float value = 0;
  if (type == ElementType::float32) return std::memcpy(&value, bytes, sizeof value), value;
  return std::nullopt;
}

// The number that a step's tensor holds. Nothing if its bytes can't be read as they lie.
std::optional<double> read_step(const StoredTensor& tensor, const CheckpointView& view, Files& files) {
  if (tensor.pieces.empty() || tensor.pieces[0].swapped) return std::nullopt;
  const StoredPiece& piece = tensor.pieces[0];
  const StoredFile& file = view.files[piece.file];
  char bytes[8] = {};
  const std::size_t size = size_bits(tensor.type) / 8;
  if (size == 0 || size > sizeof bytes) return std::nullopt;
  if (file.codec == StoredFile::Codec::content) {
    if (piece.offset_bytes + size > file.content.size()) return std::nullopt;
    std::memcpy(bytes, file.content.data() + piece.offset_bytes, size);
  } else if (file.codec == StoredFile::Codec::none) {
    const Result<std::unique_ptr<ByteSource>> source = open_bytes(file.path, files);
    if (!source || !(*source)->read(piece.offset_bytes, std::as_writable_bytes(std::span(bytes, size))))
      return std::nullopt;
  } else {
    return std::nullopt;
  }
  return number_of(tensor.type, bytes);
}

}  // namespace

Result<UniversalStates> choose_states(const CheckpointView& view, const WriteOptions& options) {
  std::set<std::string_view> with_master;
  for (const StoredTensor& tensor : view.tensors)
    if (tensor.role == "master" && is_wanted(tensor.role, options)) with_master.insert(tensor.name);
  UniversalStates out;
  FirstFew bad_names;
  for (std::uint32_t i = 0; i < view.tensors.size(); ++i) {
    const StoredTensor& tensor = view.tensors[i];
    const bool is_weight = tensor.role == "weight";
    if (tensor.role == "buffer" || !is_wanted(tensor.role, options) || (is_weight && with_master.contains(tensor.name)))
      continue;
    if (tensor.role != "step" && tensor.type != ElementType::float32 && !can_cast(tensor.type, ElementType::float32)) {
      ++out.left_out;
      continue;
    }
    const std::string state = is_weight || tensor.role == "master" ? "fp32" : tensor.role;
    if (!is_plain_file_name(tensor.name) || tensor.name.size() > kNameBytesMax || !is_plain_file_name(state))
      bad_names.add(text(tensor.name, " (", tensor.role, ")"));
    out.parameters[tensor.name][state] = i;
    out.has_optimizer = out.has_optimizer || state != "fp32";
  }
  if (bad_names.any())
    return Error{Code::invalid, text("a universal checkpoint has a folder for each parameter, but these names can't be "
                                     "folder names: ",
                                     bad_names.sentence(), "; DeepSpeed never uses such names")};
  if (std::ranges::none_of(out.parameters, [](const auto& entry) { return entry.second.contains("fp32"); }))
    return Error{Code::not_found, "the checkpoint holds no weights: there is nothing to convert"};
  return out;
}

StepCounts find_steps(const CheckpointView& view, Files& files) {
  StepCounts out;
  for (const auto& [key, value] : view.facts)
    if (std::uint64_t number = 0; key == "step" && parse_number(value, number)) out.job = number;
  for (const StoredTensor& tensor : view.tensors)
    if (tensor.role == "step" && !out.optimizer) out.optimizer = read_step(tensor, view, files);
  if (out.optimizer && !out.job && *out.optimizer >= 0 && *out.optimizer < 1e15)
    out.job = static_cast<std::uint64_t>(*out.optimizer);
  return out;
}

void append_step(const StepCounts& steps, TorchWriter& writer) {
  const auto step = static_cast<float>(steps.of_optimizer());
  std::string bytes(sizeof step, '\0');
  std::memcpy(bytes.data(), &step, sizeof step);
  writer.tensor(ElementType::float32, {}, std::move(bytes));
}

}  // namespace pawl::checkpoint::deepspeed
