// The part of a parity kernel that copies and sums sources on the way (copy_and_multiply of parity_kernel.h). Included behind
// parity_kernel_lanes.h, within the same namespace, for kernels that have what it needs:
//
// LineSum{}, the raw CRC32C of lines; add_to_sum, of one more line; begin_sum, which sets what came before once the first line
// has been added; and remainder_of.
// No include guard, on purpose.

struct LineCopies {
  struct OfSource {
    std::byte* to;
    LineSum sum;
  };
  PAWL_KERNEL inline OfSource begin(std::size_t source, std::size_t at) const {
    return {to[source] + at, sums[source]};
  }
  PAWL_KERNEL inline void take(OfSource& state, std::size_t offset, const Line& line) const {
    stream(state.to + offset, line);
    add_to_sum(state.sum, line);
  }
  PAWL_KERNEL inline void end(const OfSource& state, std::size_t source) const { sums[source] = state.sum; }
  std::byte* const* to;
  LineSum* sums;
};

using CopyRows = void (*)(const Group& group, std::size_t begin, std::size_t end, const LineCopies& copies);

template <std::size_t kRows, bool kFirstIsSum, ParityWrite kWrite>
PAWL_KERNEL_ENTRY void copy_rows(const Group& group, std::size_t begin, std::size_t end, const LineCopies& copies) {
  constexpr std::size_t kLines = kLinesAtOnce<kRows>;
  constexpr std::size_t kColumnBytes = kLines * kLineBytes;
  std::size_t at = begin;
  for (; end - at >= kColumnBytes; at += kColumnBytes)
    one_column<kRows, kFirstIsSum, kWrite, kLines>(group, at, copies);
  for (; at < end; at += kLineBytes) one_column<kRows, kFirstIsSum, kWrite, 1>(group, at, copies);
}

template <ParityWrite kWrite>
constexpr std::array<std::array<CopyRows, 2>, kRowsAtOnce> kCopyRowsBy{{
    {&copy_rows<1, false, kWrite>, &copy_rows<1, true, kWrite>},
    {&copy_rows<2, false, kWrite>, &copy_rows<2, true, kWrite>},
    {&copy_rows<3, false, kWrite>, &copy_rows<3, true, kWrite>},
    {&copy_rows<4, false, kWrite>, &copy_rows<4, true, kWrite>},
}};
constexpr std::array kCopyRows{kCopyRowsBy<ParityWrite::assign>, kCopyRowsBy<ParityWrite::stream>,
                               kCopyRowsBy<ParityWrite::add>};

PAWL_KERNEL_ENTRY void copy_and_multiply(const ParityProduct& product, std::span<std::byte* const> copies,
                                         std::span<std::uint32_t> states) {
  const auto write = static_cast<std::size_t>(product.write);
  const RowGroups<Group, Factor> groups(product, &factor_of);
  std::array<LineSum, kFragmentsMax> sums{};
  for (std::size_t at = 0, end = 0; at < product.size; at = end) {
    end = at == 0 ? kLineBytes : groups.end_of_pass(at, product.size);
    kCopyRows[write][groups.rows(0) - 1][groups.first_is_sum(0) ? 1 : 0](groups[0], at, end,
                                                                         {copies.data(), sums.data()});
    for (std::size_t i = 1; i < groups.count(); ++i)
      kMultiplyRows[write][groups.rows(i) - 1][groups.first_is_sum(i) ? 1 : 0](groups[i], at, end);
    for (std::size_t i = 0; at == 0 && i < states.size(); ++i) begin_sum(sums[i], states[i]);
  }
  for (std::size_t i = 0; product.size > 0 && i < states.size(); ++i) states[i] = remainder_of(sums[i]);
}
