#include "checkpoint/formats/dcp/dcp_writer.h"

#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/first_few.h"
#include "base/text.h"
#include "checkpoint/containers/pickle_writer.h"
#include "checkpoint/containers/torch_writer.h"

namespace pawl::checkpoint {
namespace {

constexpr const char* kModule = "torch.distributed.checkpoint.metadata";
constexpr std::uint64_t kAlignment = 64;

using Path = std::vector<std::string>;

// A key of the state that was, as it were, saved; and what it shows.
struct Entry {
  std::string key;
  Path path;                  // what its steps are: names of parameters have dots of their own
  std::uint32_t planned = 0;  // in OutputPlan::tensors
};

// An item: a range of a file.
struct Item {
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
};

Entry entry_of(const std::string& name, const std::string& role, bool flat, std::uint32_t planned) {
  const bool is_of_the_model = role == "weight" || role == "buffer";
  Path path;
  if (!is_of_the_model)
    path = {"optim", "state", name, role};
  else if (flat)
    path = {name};
  else
    path = {"model", name};
  std::string key;
  for (const std::string& step : path) key += key.empty() ? step : "." + step;
  return {std::move(key), std::move(path), planned};
}

std::vector<Entry> entries_of(const CheckpointView& view, const OutputPlan& plan, bool flat) {
  std::multimap<std::string, std::string> aliases;
  for (const auto& [alias, name] : view.aliases) aliases.emplace(name, alias);
  std::vector<Entry> entries;
  for (std::uint32_t i = 0; i < plan.tensors.size(); ++i) {
    const StoredTensor& tensor = view.tensors[plan.tensors[i].tensor];
    entries.push_back(entry_of(tensor.name, tensor.role, flat, i));
    for (auto [at, end] = aliases.equal_range(tensor.name); at != end; ++at)
      entries.push_back(entry_of(at->second, tensor.role, flat, i));
  }
  return entries;
}

Status check_keys_differ(const std::vector<Entry>& entries) {
  std::unordered_set<std::string_view> keys;
  FirstFew twice;
  for (const Entry& entry : entries)
    if (!keys.insert(entry.key).second) twice.add(text("tensor ", entry.key, " would be there twice"));
  if (!twice.any()) return {};
  return Error{Code::invalid, text("DCP: ", twice.sentence())};
}

// One tensor as torch.save would write it, from `at` of the file with that number.
Result<TorchLayout> lay_out_item(const StoredTensor& tensor, ElementType type, std::uint32_t file, std::uint64_t at) {
  TorchWriter writer;
  writer.tensor(type, tensor.shape);
  Result<TorchLayout> layout = std::move(writer).finish("archive", file, at);
  if (layout) return layout;
  return std::move(layout).error().within(text("DCP: ", label_of(tensor.name, tensor.role),
                                               " can't be written (leave it out with --roles, or write safetensors)"));
}

void append_item(PlannedFile& file, PlannedFile item,
                 std::vector<std::function<std::vector<PlannedText>(const RangeChecksums&)>>& finishes) {
  for (PlannedText& text : item.texts) file.texts.push_back(std::move(text));
  file.checked.insert(file.checked.end(), item.checked.begin(), item.checked.end());
  if (item.finish) finishes.push_back(std::move(item.finish));
}

// A file of the plan's tensors [first, end), which get their places in it.
Result<PlannedFile> plan_file(const CheckpointView& view, OutputPlan& plan, std::size_t first, std::size_t end,
                              std::vector<Item>& items) {
  const auto number = static_cast<std::uint32_t>(plan.files.size());
  PlannedFile file;
  file.name = text("__0_", number, ".distcp");
  std::vector<std::function<std::vector<PlannedText>(const RangeChecksums&)>> finishes;
  std::uint64_t at = 0;
  for (std::size_t i = first; i < end; ++i) {
    PlannedTensor& tensor = plan.tensors[i];
    at = (at + kAlignment - 1) / kAlignment * kAlignment;
    PAWL_ASSIGN(TorchLayout layout, lay_out_item(view.tensors[tensor.tensor], tensor.type, number, at));
    tensor.file = number;
    tensor.offset_bytes = layout.offset_bytes[0];
    items.push_back({at, layout.file.size_bytes});
    at += layout.file.size_bytes;
    append_item(file, std::move(layout.file), finishes);
  }
  file.size_bytes = at;
  file.finish = [finishes = std::move(finishes)](const RangeChecksums& checksums) {
    std::vector<PlannedText> texts;
    for (const auto& finish : finishes)
      for (PlannedText& text : finish(checksums)) texts.push_back(std::move(text));
    return texts;
  };
  return file;
}

// torch's Metadata, as its own pickler writes it: objects made without arguments, then given their attributes.
class MetadataPickle {
 public:
  MetadataPickle(const CheckpointView& view, const OutputPlan& plan, const std::vector<Item>& items,
                 const std::vector<Entry>& entries)
      : view_(view), plan_(plan), items_(items), entries_(entries) {}

  std::string write() {
    begin_object(kModule, "Metadata");
    word("state_dict_metadata");
    begin_dict();
    for (const Entry& entry : entries_) {
      out_.string(entry.key);
      write_tensor(entry);
    }
    out_.set_items();
    word("planner_data");
    begin_dict();
    for (const Entry& entry : entries_) {
      out_.string(entry.key);
      out_.mark();
      for (const std::string& step : entry.path) word(step);
      out_.tuple();
    }
    out_.set_items();
    word("storage_data");
    begin_dict();
    for (const Entry& entry : entries_) write_place(entry);
    out_.set_items();
    word("storage_meta");
    out_.none();
    word("version");
    word("1.0.0");
    end_object();
    return out_.finish();
  }

 private:
  void begin_dict() {
    out_.empty_dict();
    out_.mark();
  }
  void begin_object(std::string_view module, std::string_view name) {
    out_.global(module, name);
    out_.empty_tuple();
    out_.newobj();
    begin_dict();
  }
  void end_object() {
    out_.set_items();
    out_.build();
  }
  // A string that comes often: written once.
  void word(const std::string& text) {
    const auto found = words_.find(text);
    if (found != words_.end()) return out_.recall(found->second);
    out_.string(text);
    words_.emplace(text, out_.memoize());
  }

  void size(const Shape& shape) {
    out_.global("torch", "Size");
    out_.mark();
    for (const std::uint64_t extent : shape) out_.unsigned_(extent);
    out_.tuple();
    out_.tuple(1);
    out_.reduce();
  }

  void properties(ElementType type) {
    const auto found = properties_.find(type);
    if (found != properties_.end()) return out_.recall(found->second);
    out_.global(kModule, "TensorProperties");
    out_.empty_tuple();
    out_.newobj();
    out_.mark();
    out_.global("torch", name_of(type));
    out_.global("torch.serialization", "_get_layout");
    out_.string("torch.strided");
    out_.tuple(1);
    out_.reduce();
    out_.boolean(false);  // requires_grad
    out_.global(kModule, "_MEM_FORMAT_ENCODING");
    out_.integer(0);  // contiguous
    out_.tuple(1);
    out_.reduce();
    out_.boolean(false);  // pin_memory
    out_.tuple();
    out_.build();
    properties_.emplace(type, out_.memoize());
  }

  void write_tensor(const Entry& entry) {
    const PlannedTensor& planned = plan_.tensors[entry.planned];
    const Shape& shape = view_.tensors[planned.tensor].shape;
    begin_object(kModule, "TensorStorageMetadata");
    word("properties");
    properties(planned.type);
    word("size");
    size(shape);
    word("chunks");
    out_.empty_list();
    begin_object(kModule, "ChunkStorageMetadata");
    word("offsets");
    size(Shape(shape.size(), 0));
    word("sizes");
    size(shape);
    end_object();
    out_.append_item();
    end_object();
  }

  void write_place(const Entry& entry) {
    const PlannedTensor& planned = plan_.tensors[entry.planned];
    begin_object(kModule, "MetadataIndex");
    word("fqn");
    out_.string(entry.key);
    word("index");
    out_.integer(0);
    word("offset");
    size(Shape(view_.tensors[planned.tensor].shape.size(), 0));
    end_object();
    begin_object("torch.distributed.checkpoint.filesystem", "_StorageInfo");
    word("relative_path");
    word(plan_.files[planned.file].name);
    word("offset");
    out_.unsigned_(items_[entry.planned].offset_bytes);
    word("length");
    out_.unsigned_(items_[entry.planned].size_bytes);
    end_object();
  }

  const CheckpointView& view_;
  const OutputPlan& plan_;
  const std::vector<Item>& items_;
  const std::vector<Entry>& entries_;
  PickleWriter out_{4};
  std::unordered_map<std::string, std::uint32_t> words_;
  std::map<ElementType, std::uint32_t> properties_;
};

}  // namespace

Result<OutputPlan> plan_dcp(const CheckpointView& view, const WriteOptions& options) {
  PAWL_ASSIGN(const std::vector<std::uint32_t> chosen, with_roles(view, options.roles));
  PAWL_ASSIGN(OutputPlan plan, plan_tensors(view, chosen, options));
  plan.is_folder = true;
  plan.marker = kDcpMetadataName;
  const std::vector<Entry> entries = entries_of(view, plan, options.flat_names);
  PAWL_TRY(check_keys_differ(entries));
  std::vector<std::uint64_t> sizes;
  for (const PlannedTensor& tensor : plan.tensors) sizes.push_back(tensor.size_bytes);
  const std::vector<std::uint32_t> file_of = split_into_files(sizes, options.file_bytes_max);
  std::vector<Item> items;
  for (std::size_t first = 0, end = 0; first < plan.tensors.size(); first = end) {  // files are filled one by one
    for (end = first; end < plan.tensors.size() && file_of[end] == file_of[first];) ++end;
    PAWL_ASSIGN(PlannedFile file, plan_file(view, plan, first, end, items));
    plan.files.push_back(std::move(file));
  }
  for (const Entry& entry : entries)
    if (plan.tensors[entry.planned].key.empty()) plan.tensors[entry.planned].key = entry.key;
  PlannedFile metadata;
  metadata.name = kDcpMetadataName;
  metadata.texts.push_back({0, MetadataPickle(view, plan, items, entries).write()});
  metadata.size_bytes = metadata.texts[0].text.size();
  plan.files.push_back(std::move(metadata));
  for (const PlannedFile& file : plan.files) plan.all_bytes += file.size_bytes;
  for (const auto& [alias, name] : view.aliases)
    plan.notes.push_back(text(alias, " is tied to ", name, ": both keys show the same bytes"));
  return plan;
}

}  // namespace pawl::checkpoint
