// The part of a parity kernel that is the same for all processors. Included once for each kernel, within a namespace of its
// own, since an instruction set is an attribute of each function, and templates can't be given one.
//
// Before it: PAWL_KERNEL and PAWL_KERNEL_ENTRY (the attributes); Line (64 bytes) and its load, store, stream (to a multiple
// of 64 only), nothing() and add (one to another); Factor, what multiplies by one coefficient, and factor_of; Parts, what is
// made of a line once for all its products, and parts_of; add_product; and kLinesAtOnce, for so many rows.
// No include guard, on purpose.
//
// Lines are read in order from each source. Prefetching them by instructions, or taking several pages of each in turn, is
// slower on the processors that were measured (docs/decisions/0014).

struct Group {  // of up to kRowsAtOnce rows
  const std::byte* const* sources;
  std::size_t count;
  std::byte* const* to;
  const Factor* factors;  // [source * rows + row]
};

// What else becomes of a source's lines: here nothing (parity_kernel_copies.h copies and sums them).
struct NoCopies {
  struct OfSource {};
  PAWL_KERNEL inline OfSource begin(std::size_t source, std::size_t at) const { return {}; }
  PAWL_KERNEL inline void take(OfSource& state, std::size_t offset, const Line& line) const {}
  PAWL_KERNEL inline void end(const OfSource& state, std::size_t source) const {}
};

// So many lines of all rows, while each line of a source is loaded once.
template <std::size_t kRows, bool kFirstIsSum, ParityWrite kWrite, std::size_t kLines, class Copies>
PAWL_KERNEL inline void one_column(const Group& group, std::size_t at, const Copies& copies) {
  Line sums[kRows][kLines];
  PAWL_UNROLLED for (std::size_t row = 0; row < kRows; ++row) {
    PAWL_UNROLLED for (std::size_t i = 0; i < kLines; ++i) {
      sums[row][i] = kWrite == ParityWrite::add ? load(group.to[row] + at + i * kLineBytes) : nothing();
    }
  }
  const Factor* factors = group.factors;
  for (std::size_t source = 0; source < group.count; ++source, factors += kRows) {
    const std::byte* const from = group.sources[source] + at;
    auto copied = copies.begin(source, at);
    PAWL_UNROLLED for (std::size_t i = 0; i < kLines; ++i) {
      const Line line = load(from + i * kLineBytes);
      copies.take(copied, i * kLineBytes, line);
      if constexpr (kFirstIsSum) add(sums[0][i], line);
      if constexpr (kRows > 1 || !kFirstIsSum) {
        const Parts& parts = parts_of(line);
        PAWL_UNROLLED for (std::size_t row = kFirstIsSum ? 1 : 0; row < kRows; ++row) {
          add_product(sums[row][i], parts, factors[row]);
        }
      }
    }
    copies.end(copied, source);
  }
  PAWL_UNROLLED for (std::size_t row = 0; row < kRows; ++row) {
    PAWL_UNROLLED for (std::size_t i = 0; i < kLines; ++i) {
      std::byte* const to = group.to[row] + at + i * kLineBytes;
      if constexpr (kWrite == ParityWrite::stream) {
        stream(to, sums[row][i]);
        PAWL_LINE_ENDS;
      } else {
        store(to, sums[row][i]);
      }
    }
  }
}

// Fewer bytes than a line, by way of lines of our own.
template <std::size_t kRows, bool kFirstIsSum, ParityWrite kWrite>
PAWL_KERNEL inline void some_bytes(const Group& group, std::size_t at, std::size_t size) {
  if (size == 0) return;
  alignas(kLineBytes) std::byte lines[kFragmentsMax + kRows][kLineBytes] = {};
  std::array<const std::byte*, kFragmentsMax> sources{};
  std::array<std::byte*, kRows> to{};
  for (std::size_t source = 0; source < group.count; ++source) {
    sources[source] = lines[source];
    for (std::size_t i = 0; i < size; ++i) lines[source][i] = group.sources[source][at + i];
  }
  for (std::size_t row = 0; row < kRows; ++row) {
    to[row] = lines[kFragmentsMax + row];
    if constexpr (kWrite == ParityWrite::add) {
      for (std::size_t i = 0; i < size; ++i) to[row][i] = group.to[row][at + i];
    }
  }
  constexpr ParityWrite kOwn = kWrite == ParityWrite::add ? kWrite : ParityWrite::assign;
  one_column<kRows, kFirstIsSum, kOwn, 1>({sources.data(), group.count, to.data(), group.factors}, 0, NoCopies{});
  for (std::size_t row = 0; row < kRows; ++row) {
    for (std::size_t i = 0; i < size; ++i) group.to[row][at + i] = to[row][i];
  }
}

template <std::size_t kRows, bool kFirstIsSum, ParityWrite kWrite>
PAWL_KERNEL inline void columns(const Group& group, std::size_t begin, std::size_t end) {
  constexpr std::size_t kLines = kLinesAtOnce<kRows>;
  constexpr std::size_t kColumnBytes = kLines * kLineBytes;
  std::size_t at = begin;
  if constexpr (kWrite == ParityWrite::stream) {
    const std::size_t head = smaller_of(bytes_to_next_line(group.to[0] + at), end - at);
    some_bytes<kRows, kFirstIsSum, kWrite>(group, at, head);
    at += head;
  }
  for (; end - at >= kColumnBytes; at += kColumnBytes)
    one_column<kRows, kFirstIsSum, kWrite, kLines>(group, at, NoCopies{});
  for (; end - at >= kLineBytes; at += kLineBytes) one_column<kRows, kFirstIsSum, kWrite, 1>(group, at, NoCopies{});
  some_bytes<kRows, kFirstIsSum, kWrite>(group, at, end - at);
}

using MultiplyRows = void (*)(const Group& group, std::size_t begin, std::size_t end);

template <std::size_t kRows, bool kFirstIsSum, ParityWrite kWrite>
PAWL_KERNEL_ENTRY void multiply_rows(const Group& group, std::size_t begin, std::size_t end) {
  columns<kRows, kFirstIsSum, kWrite>(group, begin, end);
}

// [write][rows - 1][whether the first is the sum]
template <ParityWrite kWrite>
constexpr std::array<std::array<MultiplyRows, 2>, kRowsAtOnce> kMultiplyRowsBy{{
    {&multiply_rows<1, false, kWrite>, &multiply_rows<1, true, kWrite>},
    {&multiply_rows<2, false, kWrite>, &multiply_rows<2, true, kWrite>},
    {&multiply_rows<3, false, kWrite>, &multiply_rows<3, true, kWrite>},
    {&multiply_rows<4, false, kWrite>, &multiply_rows<4, true, kWrite>},
}};
constexpr std::array kMultiplyRows{kMultiplyRowsBy<ParityWrite::assign>, kMultiplyRowsBy<ParityWrite::stream>,
                                   kMultiplyRowsBy<ParityWrite::add>};

void multiply(const ParityProduct& product) {
  const bool streams = product.write == ParityWrite::stream && lie_alike(product.to);
  const auto write =
      static_cast<std::size_t>(streams || product.write == ParityWrite::add ? product.write : ParityWrite::assign);
  const RowGroups<Group, Factor> groups(product, &factor_of);
  for (std::size_t at = 0, end = 0; at < product.size; at = end) {
    end = groups.end_of_pass(at, product.size);
    for (std::size_t i = 0; i < groups.count(); ++i)
      kMultiplyRows[write][groups.rows(i) - 1][groups.first_is_sum(i) ? 1 : 0](groups[i], at, end);
  }
}
