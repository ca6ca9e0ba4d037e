#include "job/erasure/copied_parity.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/memory_kernel.h"
#include "base/text.h"
#include "job/erasure/parity_arguments.h"
#include "job/erasure/parity_kernel_parts.h"

namespace pawl::job {
namespace {

// Four pages, which a memory kernel copies in turn. Of all sources together they stay in a core's own cache.
constexpr std::size_t kStretchBytes = 16 << 10;

// Sources, what becomes of them, and how far that is.
class CopiedProduct {
 public:
  CopiedProduct(std::span<FragmentCopy> copies, std::span<std::byte* const> rows,
                std::span<const std::uint8_t> coefficients, ParityWrite write)
      : count_(copies.size()), rows_(rows), coefficients_(coefficients), write_(write) {
    for (std::size_t i = 0; i < count_; ++i) {
      from_[i] = copies[i].from.data();
      to_[i] = copies[i].to.data();
      states_[i] = ~copies[i].sum;
    }
  }

  void run(std::size_t size) {
    const std::span<std::byte* const> to = std::span(to_).first(count_);
    const bool streams = write_ == ParityWrite::stream;
    std::size_t head = size;  // what goes stretch by stretch
    if (parity_kernel().copy_and_multiply != nullptr && !rows_.empty() && lie_alike(to) &&
        (!streams || lie_alike_with(rows_)))
      head = std::min(bytes_to_next_line(to_[0]), size);
    stretches(0, head);
    const std::size_t lines = (size - head) / kLineBytes * kLineBytes;
    if (lines > 0) {
      place(head);
      parity_kernel().copy_and_multiply(product(lines), std::span(placed_to_).first(count_),
                                        std::span(states_).first(count_));
    }
    stretches(head + lines, size);
    memory_fence();
  }

  [[nodiscard]] std::uint32_t sum(std::size_t source) const { return ~states_[source]; }

 private:
  bool lie_alike_with(std::span<std::byte* const> rows) const {
    return lie_alike(rows) && bytes_to_next_line(rows[0]) == bytes_to_next_line(to_[0]);
  }
  void stretches(std::size_t begin, std::size_t end) {
    for (std::size_t at = begin; at < end; at += kStretchBytes) {
      const std::size_t size = std::min(kStretchBytes, end - at);
      place(at);
      for (std::size_t i = 0; i < count_; ++i)
        states_[i] = memory_kernel().copy_and_sum(placed_to_[i], placed_from_[i], size, states_[i]);
      if (!rows_.empty()) parity_kernel().multiply(product(size));
    }
  }
  void place(std::size_t at) {
    for (std::size_t i = 0; i < count_; ++i) placed_from_[i] = from_[i] + at;
    for (std::size_t i = 0; i < count_; ++i) placed_to_[i] = to_[i] + at;
    for (std::size_t i = 0; i < rows_.size(); ++i) placed_rows_[i] = rows_[i] + at;
  }
  [[nodiscard]] ParityProduct product(std::size_t size) const {
    return {std::span(placed_from_).first(count_), std::span(placed_rows_).first(rows_.size()), coefficients_, size,
            write_};
  }

  std::size_t count_;
  std::array<const std::byte*, kFragmentsMax> from_{}, placed_from_{};
  std::array<std::byte*, kFragmentsMax> to_{}, placed_to_{}, placed_rows_{};
  std::span<std::byte* const> rows_;
  std::span<const std::uint8_t> coefficients_;
  ParityWrite write_;
  std::array<std::uint32_t, kFragmentsMax> states_{};
};

Status check_copy(std::string_view call, std::size_t index, const FragmentCopy& copy) {
  if (copy.to.size() == copy.from.size()) return {};
  return Error{Code::invalid, text(call, ": the copy of source ", index, " has ", copy.to.size(),
                                   " bytes, the source has ", copy.from.size())};
}

}  // namespace

Result<std::uint32_t> contribute_copied(const ErasureCode& code, std::uint32_t data_index, const FragmentCopy& copy,
                                        std::span<const ParityRoom> rooms, Contribution contribution) {
  PAWL_TRY(check_copy("contribute", data_index, copy));
  ContributedRows rows;
  PAWL_TRY(rows.take("contribute", code, data_index, copy.from.size(), rooms));
  FragmentCopy one = copy;
  CopiedProduct copied({&one, 1}, rows.rows(), rows.coefficients(), write_of(contribution));
  copied.run(copy.from.size());
  return copied.sum(0);
}

Status encode_copied(const ErasureCode& code, std::span<FragmentCopy> copies, std::span<const FragmentRoom> parities) {
  std::vector<FragmentBytes> data;
  for (const FragmentCopy& copy : copies) {
    PAWL_TRY(check_copy("encode", data.size(), copy));
    data.push_back(copy.from);
  }
  PAWL_TRY(check_fragments("encode", code, data, parities));
  std::array<std::byte*, kFragmentsMax> rows{};
  for (std::size_t i = 0; i < parities.size(); ++i) rows[i] = parities[i].data();
  CopiedProduct copied(copies, std::span(rows).first(parities.size()), code.coefficients(), ParityWrite::stream);
  copied.run(data[0].size());
  for (std::size_t i = 0; i < copies.size(); ++i) copies[i].sum = copied.sum(i);
  return {};
}

}  // namespace pawl::job
