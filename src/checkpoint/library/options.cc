#include "checkpoint/library/options.h"

#include <functional>
#include <map>

#include "base/text.h"
#include "checkpoint/containers/json_scan.h"

namespace pawl::checkpoint {
namespace {

using ReadValue = std::function<bool(JsonScan&)>;
using Keys = std::map<std::string, ReadValue, std::less<>>;

ReadValue text_to(std::string& out) {
  return [&out](JsonScan& scan) { return scan.string(out); };
}

ReadValue number_to(std::uint64_t& out) {
  return [&out](JsonScan& scan) { return scan.number(out); };
}

ReadValue flag_to(bool& out) {
  return [&out](JsonScan& scan) {
    const char kind = scan.peek();
    out = kind == 't';
    return kind == 't' || kind == 'f' ? scan.skip() : scan.fail("neither true nor false");
  };
}

Status parse(const char* json, const Keys& keys) {
  if (json == nullptr || *json == '\0') return {};
  JsonScan scan(json);
  scan.begin_object();
  std::string key;
  while (scan.next_key(key)) {
    const auto known = keys.find(key);
    if (known == keys.end()) return Error{Code::invalid, text("options: \"", key, "\" is not one that is known")};
    if (!known->second(scan)) return Error{Code::invalid, text("options: \"", key, "\": ", scan.error().what)};
  }
  scan.finish();
  if (scan.failed()) return Error{Code::invalid, text("options: ", scan.error().what)};
  return {};
}

}  // namespace

Result<ViewOptions> parse_view_options(const char* json) {
  ViewOptions options;
  std::string names = "stored";
  std::string family;
  PAWL_TRY(parse(json, {{"tag", text_to(options.read.tag)},
                        {"parameter_names_file", text_to(options.read.parameter_names_file)},
                        {"names", text_to(names)},
                        {"family", text_to(family)},
                        {"attention_heads", number_to(options.family.attention_heads)},
                        {"query_groups", number_to(options.family.query_groups)},
                        {"head_size", number_to(options.family.head_size)},
                        {"vocabulary", number_to(options.family.vocabulary)}}));
  if (names == "huggingface") options.names = Names::huggingface;
  if (names == "megatron") options.names = Names::megatron;
  if (options.names == Names::stored && names != "stored")
    return Error{Code::invalid, text("options: names \"", names, "\": stored, huggingface and megatron are possible")};
  if (family.empty()) return options;
  options.family.family = family_named(family);
  if (!options.family.family)
    return Error{Code::invalid,
                 text("options: family \"", family, "\": gpt, llama, mixtral and gpt_neox are possible")};
  return options;
}

Result<AccessOptions> parse_access_options(const char* json, AccessOptions options) {
  constexpr std::uint64_t kNone = ~std::uint64_t{0};
  constexpr std::uint64_t kThreadsMax = 1024;
  std::uint64_t trusted = kNone;
  std::uint64_t threads = 0;
  PAWL_TRY(parse(json, {{"memory_bytes", number_to(options.execute.memory_bytes)},
                        {"threads", number_to(threads)},
                        {"trusted_copy", number_to(trusted)},
                        {"prove", flag_to(options.prove)},
                        {"seen", text_to(options.seen)},
                        {"io_uring", flag_to(options.execute.io_uring)},
                        {"direct", flag_to(options.execute.direct)}}));
  if (threads > kThreadsMax) return Error{Code::invalid, text("options: threads: at most ", kThreadsMax)};
  options.execute.threads = static_cast<std::uint32_t>(threads);
  if (trusted == kNone) return options;
  if (trusted > ~std::uint32_t{0}) return Error{Code::invalid, "options: trusted_copy: no copy has such a number"};
  options.source.trusted_copy = static_cast<std::uint32_t>(trusted);
  return options;
}

Result<StoreOptions> parse_store_options(const char* json) {
  StoreOptions options;
  PAWL_TRY(parse(json, {{"overwrite", flag_to(options.overwrite)}, {"bytes", number_to(options.bytes)}}));
  return options;
}

}  // namespace pawl::checkpoint
