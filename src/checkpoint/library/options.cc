#include "checkpoint/library/options.h"

#include "base/text.h"

namespace pawl::checkpoint {
namespace {

constexpr std::uint32_t kThreadsMax = 1024;

constexpr CStruct kOpenOptions{"pawl_checkpoint_open_options", sizeof(pawl_checkpoint_open_options),
                               sizeof(pawl_checkpoint_open_options)};
constexpr CStruct kAccessOptions{"pawl_checkpoint_access_options", sizeof(pawl_checkpoint_access_options),
                                 sizeof(pawl_checkpoint_access_options)};
constexpr CStruct kStoreOptions{"pawl_checkpoint_store_options", sizeof(pawl_checkpoint_store_options),
                                sizeof(pawl_checkpoint_store_options)};
constexpr CStruct kDivisionOptions{"pawl_checkpoint_division_options", sizeof(pawl_checkpoint_division_options),
                                   sizeof(pawl_checkpoint_division_options)};

// What the caller gave, in our form; all zeros for nullptr.
template <class T>
Result<T> copy_of(const T* given, const CStruct& known) {
  if (given == nullptr) return T{};
  PAWL_TRY(check_input_struct(given, known));
  return read_struct<T>(given);
}

}  // namespace

Result<ViewOptions> view_options_of(const pawl_checkpoint_open_options* given) {
  PAWL_ASSIGN(const pawl_checkpoint_open_options options, copy_of(given, kOpenOptions));
  ViewOptions view;
  if (options.tag != nullptr) view.read.tag = options.tag;
  if (options.parameter_names_file != nullptr) view.read.parameter_names_file = options.parameter_names_file;
  switch (options.names) {
    case PAWL_CHECKPOINT_NAMES_STORED:
      break;
    case PAWL_CHECKPOINT_NAMES_HUGGINGFACE:
      view.names = Names::huggingface;
      break;
    case PAWL_CHECKPOINT_NAMES_MEGATRON:
      view.names = Names::megatron;
      break;
    default:
      return Error{Code::invalid, text("options: names is ", static_cast<int>(options.names),
                                       ": stored (0), huggingface (1) and megatron (2) are possible")};
  }
  view.family.attention_heads = options.attention_heads;
  view.family.query_groups = options.query_groups;
  view.family.head_size = options.head_size;
  view.family.vocabulary = options.vocabulary;
  if (options.family == nullptr || *options.family == '\0') return view;
  view.family.family = family_named(options.family);
  if (!view.family.family)
    return Error{Code::invalid,
                 text("options: family \"", options.family, "\": gpt, llama, mixtral and gpt_neox are possible")};
  return view;
}

Result<AccessOptions> access_options_of(const pawl_checkpoint_access_options* given, AccessOptions defaults) {
  PAWL_ASSIGN(const pawl_checkpoint_access_options options, copy_of(given, kAccessOptions));
  AccessOptions access = std::move(defaults);
  if (options.memory_bytes != 0) access.execute.memory_bytes = options.memory_bytes;
  if (options.threads > kThreadsMax)
    return Error{Code::invalid, text("options: threads is ", options.threads, ": at most ", kThreadsMax)};
  if (options.threads != 0) access.execute.threads = options.threads;
  if (options.without_io_uring != 0) access.execute.io_uring = false;
  if (options.without_direct != 0) access.execute.direct = false;
  access.prove = options.prove != 0;
  if (options.seen != nullptr) access.seen = options.seen;
  if (options.trusted_copy != nullptr) access.source.trusted_copy = *options.trusted_copy;
  access.watch = options.watch;
  return access;
}

Result<StoreOptions> store_options_of(const pawl_checkpoint_store_options* given) {
  PAWL_ASSIGN(const pawl_checkpoint_store_options options, copy_of(given, kStoreOptions));
  StoreOptions store;
  store.overwrite = options.overwrite != 0;
  store.bytes = options.expected_bytes;
  return store;
}

Result<DivisionOptions> division_options_of(const pawl_checkpoint_division_options* given) {
  PAWL_ASSIGN(const pawl_checkpoint_division_options options, copy_of(given, kDivisionOptions));
  DivisionOptions division;
  division.check_replicas = options.without_replica_check == 0;
  if (options.part_bytes_min != 0) division.part_bytes_min = options.part_bytes_min;
  return division;
}

}  // namespace pawl::checkpoint
