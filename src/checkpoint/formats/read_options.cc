#include "checkpoint/formats/read_options.h"

#include <utility>

namespace pawl::checkpoint {
namespace {

constexpr std::uint64_t kNamesBytesMax = 256 << 20;

}  // namespace

Result<std::optional<ParameterNames>> given_names(const ReadOptions& options, Files& files) {
  if (options.parameter_names_file.empty()) return std::optional<ParameterNames>();
  PAWL_ASSIGN(const std::string bytes, read_file(options.parameter_names_file, kNamesBytesMax, files));
  Result<ParameterNames> names = parse_parameter_names(bytes);
  if (!names) return std::move(names).error().within(options.parameter_names_file);
  return std::optional<ParameterNames>(std::move(*names));
}

}  // namespace pawl::checkpoint
