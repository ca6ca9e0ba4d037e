#include "checkpoint/containers/torch_writer.h"

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace pawl::checkpoint {
namespace {

struct StorageClass {
  ElementType type;
  std::string_view name;
};
constexpr StorageClass kStorageClasses[] = {
    {ElementType::float32, "FloatStorage"},
    {ElementType::float64, "DoubleStorage"},
    {ElementType::float16, "HalfStorage"},
    {ElementType::bfloat16, "BFloat16Storage"},
    {ElementType::int8, "CharStorage"},
    {ElementType::int16, "ShortStorage"},
    {ElementType::int32, "IntStorage"},
    {ElementType::int64, "LongStorage"},
    {ElementType::uint8, "ByteStorage"},
    {ElementType::boolean, "BoolStorage"},
    {ElementType::complex64, "ComplexFloatStorage"},
    {ElementType::complex128, "ComplexDoubleStorage"},
};

// Types that torch keeps as plain bytes, and names beside the tensor.
bool is_kept_untyped(ElementType type) {
  switch (type) {
    case ElementType::uint16:
    case ElementType::uint32:
    case ElementType::uint64:
    case ElementType::complex32:
    case ElementType::float8_e4m3fn:
    case ElementType::float8_e5m2:
    case ElementType::float8_e4m3fnuz:
    case ElementType::float8_e5m2fnuz:
    case ElementType::float8_e8m0fnu:
    case ElementType::float4_e2m1fn_x2:
      return true;
    default:
      return false;
  }
}

void append_tuple(PickleWriter& pickle, const Shape& numbers) {
  if (numbers.size() > 3) pickle.mark();
  for (const std::uint64_t number : numbers) pickle.unsigned_(number);
  if (numbers.size() > 3)
    pickle.tuple();
  else
    pickle.tuple(static_cast<std::uint32_t>(numbers.size()));
}

// As torch has them: an extent of 0 counts as 1.
Shape torch_strides_of(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * std::max<std::uint64_t>(shape[d], 1);
  return strides;
}

// What torch calls the folder in the archive: the file's name without its ending.
std::string archive_of(std::string_view name) {
  const std::string_view last = name.substr(name.rfind('/') + 1);
  return std::string(last.substr(0, last.rfind('.')));
}

}  // namespace

std::optional<std::string_view> storage_class_of(ElementType type) {
  for (const StorageClass& one : kStorageClasses)
    if (one.type == type) return one.name;
  return std::nullopt;
}

std::uint32_t TorchWriter::tensor(ElementType type, const Shape& shape, std::optional<std::string> content) {
  const auto record = static_cast<std::uint32_t>(records_.size());
  const std::optional<std::string_view> typed = storage_class_of(type);
  const Result<std::uint64_t> count = element_count(shape);
  const std::optional<std::uint64_t> bytes = count ? size_bytes(type, *count) : std::nullopt;
  if (refused_.empty() && !typed && !is_kept_untyped(type)) refused_ = text("torch has no plain ", name_of(type));
  if (refused_.empty() && !bytes) refused_ = "a tensor that is not a whole number of bytes, or too large";
  const std::uint64_t size = bytes.value_or(0);
  if (refused_.empty() && content && content->size() != size)
    refused_ = text("a tensor of ", size, " bytes and a content of ", content->size());
  pickle_.global("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
  pickle_.mark();
  pickle_.mark();
  pickle_.string("storage");
  pickle_.global(typed ? "torch" : "torch.storage", typed.value_or("UntypedStorage"));
  pickle_.string(text(record));
  pickle_.string("cpu");
  pickle_.unsigned_(typed ? count.value_or(0) : size);
  pickle_.tuple();
  pickle_.persistent_id();
  pickle_.integer(0);
  append_tuple(pickle_, shape);
  append_tuple(pickle_, torch_strides_of(shape));
  pickle_.boolean(false);
  pickle_.global("collections", "OrderedDict");
  pickle_.empty_tuple();
  pickle_.reduce();
  if (!typed) pickle_.global("torch", name_of(type));
  pickle_.tuple();
  pickle_.reduce();
  records_.push_back({text("data/", record), size, std::move(content)});
  return record;
}

void TorchWriter::size(const Shape& shape) {
  pickle_.global("torch", "Size");
  append_tuple(pickle_, shape);
  pickle_.tuple(1);
  pickle_.reduce();
}

Result<ZipLayout> TorchWriter::lay_out(std::string_view archive, std::uint32_t index, std::uint64_t at) {
  if (!refused_.empty()) return Error{Code::invalid, refused_};
  std::vector<ZipMember> members;
  const auto add = [&](std::string name, std::string content) {
    const std::uint64_t size = content.size();
    members.push_back({std::move(name), size, std::move(content)});
  };
  add("data.pkl", pickle_.finish());
  add(".format_version", "1");
  add(".storage_alignment", "64");
  add("byteorder", "little");
  // Before the records: what is known beforehand is one text.
  add("version", "3\n");
  for (ZipMember& record : records_) members.push_back(std::move(record));
  return lay_out_zip(archive, members, index, at);
}

Result<TorchLayout> TorchWriter::finish(std::string name, std::uint32_t index, std::uint64_t at) && {
  const std::size_t records = records_.size();
  Result<ZipLayout> zip = lay_out(archive_of(name), index, at);
  if (!zip) return std::move(zip).error().within(name);
  TorchLayout out;
  out.file = std::move(zip->file);
  out.file.name = std::move(name);
  out.offset_bytes.assign(zip->offset_bytes.end() - static_cast<std::ptrdiff_t>(records), zip->offset_bytes.end());
  return out;
}

Result<std::string> TorchWriter::finish_in_memory(std::string_view archive) && {
  PAWL_ASSIGN(ZipLayout zip, lay_out(archive, 0, 0));
  if (zip.file.finish || zip.file.texts.size() != 1)
    return Error{Code::broken, text(archive, ": a tensor without content in a file that is made in memory")};
  return std::move(zip.file.texts[0].text);
}

TorchCopy::TorchCopy(ByteSource& source, const TorchFile& file, TorchWriter& writer)
    : source_(source), file_(file), writer_(writer) {
  for (std::uint32_t i = 0; i < file.tensors().size(); ++i)
    if (file.tensors()[i].value != Pickle::kNothing) tensors_.try_emplace(file.tensors()[i].value, i);
}

bool TorchCopy::fits(Pickle::Value value, std::uint64_t tensor_bytes_max) const {
  TorchWriter trial;
  return TorchCopy(source_, file_, trial).copy(value, tensor_bytes_max).has_value();
}

Status TorchCopy::copy(Pickle::Value value, std::uint64_t tensor_bytes_max) {
  const Pickle& from = file_.pickle();
  PickleWriter& to = writer_.pickle();
  if (const auto at = memo_.find(value); at != memo_.end()) {
    to.recall(at->second);
    return {};
  }
  switch (from.kind(value)) {
    case PickleKind::none:
      to.none();
      return {};
    case PickleKind::boolean:
      to.boolean(from.boolean(value));
      return {};
    case PickleKind::integer:
      to.integer(from.integer(value).value_or(0));
      return {};
    case PickleKind::long_integer:
      to.long_integer(from.text(value));
      return {};
    case PickleKind::real:
      to.real(from.real(value));
      return {};
    case PickleKind::string:
      to.string(from.text(value));
      break;
    case PickleKind::bytes:
      to.bytes(from.text(value));
      break;
    case PickleKind::global:
      to.global(from.symbol(value).module, from.symbol(value).name);
      return {};
    case PickleKind::tuple:
    case PickleKind::list:
    case PickleKind::dict:
    case PickleKind::set:
    case PickleKind::frozenset:
      return copy_items(value, tensor_bytes_max);
    case PickleKind::object:
      return copy_object(value, tensor_bytes_max);
    case PickleKind::persistent:
      return Error{Code::invalid, "a storage that is not a tensor's"};
  }
  memo_[value] = to.memoize();
  return {};
}

Status TorchCopy::copy_items(Pickle::Value value, std::uint64_t tensor_bytes_max) {
  const Pickle& from = file_.pickle();
  PickleWriter& to = writer_.pickle();
  const PickleKind kind = from.kind(value);
  const bool is_set = kind == PickleKind::set || kind == PickleKind::frozenset;
  const bool is_mutable = kind == PickleKind::list || kind == PickleKind::dict;
  if (is_set) {
    to.global("builtins", kind == PickleKind::set ? "set" : "frozenset");
    to.empty_list();
  } else if (kind == PickleKind::list) {
    to.empty_list();
  } else if (kind == PickleKind::dict) {
    to.empty_dict();
  }
  if (is_mutable) memo_[value] = to.memoize();  // before its items: one of them may be it
  to.mark();
  const std::vector<Pickle::Value> items(from.items(value).begin(), from.items(value).end());
  for (const Pickle::Value item : items) PAWL_TRY(copy(item, tensor_bytes_max));
  if (kind == PickleKind::dict)
    to.set_items();
  else if (kind == PickleKind::tuple)
    to.tuple();
  else
    to.append_items();
  if (is_set) {
    to.tuple(1);
    to.reduce();
  }
  if (!is_mutable) memo_[value] = to.memoize();
  return {};
}

Status TorchCopy::copy_object(Pickle::Value value, std::uint64_t tensor_bytes_max) {
  const Pickle& from = file_.pickle();
  PickleWriter& to = writer_.pickle();
  if (const auto tensor = tensors_.find(value); tensor != tensors_.end()) {
    PAWL_TRY(copy_tensor(file_.tensors()[tensor->second], tensor_bytes_max));
    memo_[value] = to.memoize();
    return {};
  }
  const Pickle::Object object = from.object(value);
  if (object.call == Pickle::Call::newobj_ex) return Error{Code::invalid, from.describe(value)};
  PAWL_TRY(copy(object.callable, tensor_bytes_max));
  PAWL_TRY(copy(object.arguments, tensor_bytes_max));
  if (object.call == Pickle::Call::reduce)
    to.reduce();
  else
    to.newobj();
  memo_[value] = to.memoize();
  const std::vector<Pickle::Value> items(from.items(value).begin(), from.items(value).end());
  if (!items.empty()) {
    to.mark();
    for (const Pickle::Value item : items) PAWL_TRY(copy(item, tensor_bytes_max));
    if (object.holds_pairs)
      to.set_items();
    else
      to.append_items();
  }
  if (object.state == Pickle::kNothing) return {};
  PAWL_TRY(copy(object.state, tensor_bytes_max));
  to.build();
  return {};
}

Status TorchCopy::copy_tensor(const TorchTensor& tensor, std::uint64_t tensor_bytes_max) {
  PAWL_ASSIGN(std::string content, read_elements(source_, file_, tensor, tensor_bytes_max));
  writer_.tensor(tensor.type, tensor.shape, std::move(content));
  return {};
}

}  // namespace pawl::checkpoint
