#include "checkpoint/formats/deepspeed/shard_file.h"

#include "base/text.h"

namespace pawl::checkpoint::deepspeed {

using Value = Pickle::Value;

Result<ShardFile> ShardFile::open(const std::string& path, std::uint32_t index, Files& files) {
  ShardFile file;
  file.path_ = path;
  file.index_ = index;
  PAWL_ASSIGN(file.bytes_, open_bytes(path, files));
  Result<TorchFile> torch = TorchFile::read(*file.bytes_);
  if (!torch) return std::move(torch).error().within(path);
  file.torch_ = std::move(*torch);
  file.copies_ = std::make_unique<CopyBudget>(file.torch_.copies());
  const std::vector<TorchTensor>& tensors = file.torch_.tensors();
  for (std::size_t i = 0; i < tensors.size(); ++i)
    file.tensor_of_.emplace(tensors[i].value, static_cast<std::uint32_t>(i));
  return file;
}

Error ShardFile::damaged(std::string why) const {
  return Error{Code::corrupt, text(path_, ": ", why)};
}

Status ShardFile::take_copies(std::uint64_t count, std::uint64_t bytes_each) const {
  Status fits = copies_->take(count, bytes_each);
  if (!fits) return std::move(fits).error().within(path_);
  return {};
}

const TorchTensor* ShardFile::tensor(Value value) const {
  const auto found = tensor_of_.find(value);
  return found == tensor_of_.end() ? nullptr : &torch_.tensors()[found->second];
}

Result<StoredTensor> ShardFile::stored(const TorchTensor& tensor, std::string name) const {
  const auto refuse = [&](std::string_view why) { return damaged(text("tensor ", name, " ", why)); };
  if (!tensor.layout.empty() || tensor.storage == kNoStorage || !torch_.storages()[tensor.storage].has_data)
    return refuse(text("has no plain bytes (", tensor.layout.empty() ? "no data" : tensor.layout, ")"));
  if (torch_.storages()[tensor.storage].deflated)
    return refuse("lies in a deflated record: pack the file again without compression");
  if (tensor.conjugated || tensor.negated) return refuse("is stored conjugated or negated");
  if (tensor.shape.size() > kDimensionsMax || tensor.strides.size() != tensor.shape.size())
    return refuse(text("has ", tensor.shape.size(), " dimensions"));
  if (size_bits(tensor.type) % 8 != 0) return refuse(text("has packed elements (", name_of(tensor.type), ")"));
  StoredTensor out;
  out.type = tensor.type;
  out.shape = tensor.shape;
  Result<std::uint64_t> count = element_count(tensor.shape);
  if (!count) return refuse(count.error().what);
  out.name = std::move(name);
  if (*count == 0) return out;
  StoredPiece piece = whole_piece(
      tensor.shape, index_,
      torch_.storages()[tensor.storage].offset_bytes + tensor.storage_offset * (size_bits(tensor.type) / 8));
  for (std::size_t d = 0; d < tensor.shape.size(); ++d)
    if (tensor.shape[d] != 1) piece.stride[d] = tensor.strides[d];
  piece.swapped = torch_.is_big_endian() && swapped_bytes(tensor.type) > 1;
  out.pieces.push_back(piece);
  return out;
}

Result<FlatTensor> ShardFile::flat(Value value, std::string_view what) const {
  const TorchTensor* found = tensor(value);
  if (found == nullptr) return damaged(text(what, " is ", pickle().describe(value), ", no tensor"));
  PAWL_ASSIGN(const StoredTensor plain, stored(*found, std::string(what)));
  if (plain.shape.size() != 1) return damaged(text(what, " has shape ", text_of(plain.shape), ", which is not flat"));
  FlatTensor out{index_, 0, plain.shape[0], plain.type, false};
  if (plain.pieces.empty()) return out;
  if (plain.pieces[0].stride[0] != 1) return damaged(text(what, " is not dense"));
  out.offset_bytes = plain.pieces[0].offset_bytes;
  out.swapped = plain.pieces[0].swapped;
  return out;
}

Result<std::optional<double>> ShardFile::number(Value value) const {
  if (pickle().is(value, PickleKind::real)) return std::optional<double>(pickle().real(value));
  if (pickle().is(value, PickleKind::integer))
    return std::optional<double>(static_cast<double>(*pickle().integer(value)));
  const TorchTensor* found = tensor(value);
  if (found == nullptr) return std::optional<double>();
  Result<std::optional<double>> number = number_of(*bytes_, torch_, *found);
  if (!number) return std::move(number).error().within(path_);
  if (*number) PAWL_TRY(prove(found->storage));
  return number;
}

// It is a value of its own from here on, and nothing proves its bytes later. Each storage once.
Status ShardFile::prove(std::uint32_t number) const {
  if (proven_.contains(number)) return {};
  if (Status proven = prove_storage(*bytes_, torch_, number); !proven) return std::move(proven).error().within(path_);
  proven_.insert(number);
  return {};
}

TensorNumber ShardFile::numbers(Status& fault) const {
  return [this, &fault](Value value) {
    Result<std::optional<double>> found = number(value);
    const bool is_damage = !found && (found.error().code == Code::corrupt || found.error().code == Code::io);
    if (is_damage && fault) fault = std::move(found).error();
    return found ? *found : std::nullopt;
  };
}

std::optional<std::uint64_t> count_at(const Pickle& pickle, Value dict, std::string_view key) {
  return pickle.unsigned_(pickle.find(dict, key));
}

std::string text_at(const Pickle& pickle, Value dict, std::string_view key) {
  const Value found = pickle.find(dict, key);
  return pickle.is(found, PickleKind::string) ? std::string(pickle.text(found)) : std::string();
}

bool flag_at(const Pickle& pickle, Value dict, std::string_view key) {
  return pickle.boolean(pickle.find(dict, key));
}

}  // namespace pawl::checkpoint::deepspeed
