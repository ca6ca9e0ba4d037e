#include "job/erasure/parity.h"

#include <array>

#include "base/check.h"
#include "base/memory_kernel.h"
#include "base/text.h"
#include "job/erasure/parity_arguments.h"
#include "job/erasure/parity_kernel.h"

namespace pawl::job {
namespace {

// What together is larger than this isn't read again from a core's own cache.
constexpr std::size_t kStreamedBytesMin = 1 << 20;

void multiply(std::span<const FragmentBytes> from, std::span<const FragmentRoom> to,
              std::span<const std::uint8_t> coefficients) {
  std::array<const std::byte*, kFragmentsMax> sources{};
  std::array<std::byte*, kFragmentsMax> rows{};
  for (std::size_t i = 0; i < from.size(); ++i) sources[i] = from[i].data();
  for (std::size_t i = 0; i < to.size(); ++i) rows[i] = to[i].data();
  const std::size_t size = from[0].size();
  const bool streams = (from.size() + to.size()) * size >= kStreamedBytesMin;
  parity_kernel().multiply({std::span(sources).first(from.size()), std::span(rows).first(to.size()), coefficients, size,
                            streams ? ParityWrite::stream : ParityWrite::assign});
  memory_fence();
}

}  // namespace

Status encode(const ErasureCode& code, std::span<const FragmentBytes> data, std::span<const FragmentRoom> parities) {
  PAWL_TRY(check_fragments("encode", code, data, parities));
  multiply(data, parities, code.coefficients());
  return {};
}

Status contribute(const ErasureCode& code, std::uint32_t data_index, FragmentBytes data,
                  std::span<const ParityRoom> rooms, Contribution contribution) {
  ContributedRows rows;
  PAWL_TRY(rows.take("contribute", code, data_index, data.size(), rooms));
  if (rooms.empty()) return {};
  const std::byte* const source = data.data();
  parity_kernel().multiply(
      {std::span(&source, 1), rows.rows(), rows.coefficients(), data.size(), write_of(contribution)});
  memory_fence();
  return {};
}

Status decode(const DecodePlan& plan, std::span<const FragmentBytes> sources, std::span<const FragmentRoom> rebuilt) {
  if (sources.size() != plan.sources.size() || rebuilt.size() != plan.rebuilt.size())
    return Error{Code::invalid, text("decode: the plan rebuilds ", plan.rebuilt.size(), " fragments from ",
                                     plan.sources.size(), ", given are ", rebuilt.size(), " and ", sources.size())};
  PAWL_ENSURE(!sources.empty() && sources.size() + rebuilt.size() <= kFragmentsMax &&
                  plan.coefficients.size() == sources.size() * rebuilt.size(),
              "decode: a plan that plan_decode() has not made");
  PAWL_TRY(check_sizes("decode", sources, rebuilt));
  if (!rebuilt.empty()) multiply(sources, rebuilt, plan.coefficients);
  return {};
}

}  // namespace pawl::job
