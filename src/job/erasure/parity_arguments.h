// What the calls of parity.h and copied_parity.h check of their arguments. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/result.h"
#include "job/erasure/erasure_code.h"
#include "job/erasure/parity.h"
#include "job/erasure/parity_kernel.h"

namespace pawl::job {

[[nodiscard]] Status check_sizes(std::string_view call, std::span<const FragmentBytes> sources,
                                 std::span<const FragmentRoom> rooms);
// k data and m parities, all equally long.
[[nodiscard]] Status check_fragments(std::string_view call, const ErasureCode& code,
                                     std::span<const FragmentBytes> data, std::span<const FragmentRoom> parities);

// The parities that one data fragment contributes to, and by which coefficients.
class ContributedRows {
 public:
  [[nodiscard]] Status take(std::string_view call, const ErasureCode& code, std::uint32_t data_index, std::size_t size,
                            std::span<const ParityRoom> rooms);
  [[nodiscard]] std::span<std::byte* const> rows() const { return std::span(rows_).first(count_); }
  [[nodiscard]] std::span<const std::uint8_t> coefficients() const { return std::span(coefficients_).first(count_); }

 private:
  std::size_t count_ = 0;
  std::array<std::byte*, kFragmentsMax> rows_{};
  std::array<std::uint8_t, kFragmentsMax> coefficients_{};
};

[[nodiscard]] constexpr ParityWrite write_of(Contribution contribution) {
  return contribution == Contribution::first ? ParityWrite::assign : ParityWrite::add;
}

}  // namespace pawl::job
