// The part of a memory kernel that is the same for all processors. Included once for each kernel, within a namespace of
// its own, since an instruction set is an attribute of each function, and templates can't be given one.
//
// Before it: PAWL_KERNEL (the attributes), Line and its load, store and stream (a whole line; stream only to a multiple
// of kLineBytes), Sum{} and its add (a line, from a Line or from memory) and remainder; shift (a state by so many lines,
// 1..kLaneLines), add_bytes (a few bytes, with or without storing them).
// No include guard, on purpose.

// The line `at` bytes behind both. Without storing, `to` is null.
template <Store kStore, bool kSums>
PAWL_KERNEL inline void one_line(std::byte* to, const std::byte* from, std::size_t at, Sum& sum) {
  if constexpr (kStore == Store::none) {
    add(sum, from + at);
    return;
  }
  const Line line = load(from + at);
  if constexpr (kStore == Store::plain) store(to + at, line);
  if constexpr (kStore == Store::stream) stream(to + at, line);
  if constexpr (kSums) add(sum, line);
}

// So many lines of each of four lanes, one of each in turn, while those that come `ahead_bytes` later are fetched.
template <Store kStore, bool kSums>
PAWL_KERNEL inline std::uint32_t four_lanes(const Lanes& lanes, std::size_t lines, std::size_t ahead_bytes,
                                            std::uint32_t state) {
  std::byte* const to0 = lanes.to[0];
  std::byte* const to1 = lanes.to[1];
  std::byte* const to2 = lanes.to[2];
  std::byte* const to3 = lanes.to[3];
  const std::byte* const from0 = lanes.from[0];
  const std::byte* const from1 = lanes.from[1];
  const std::byte* const from2 = lanes.from[2];
  const std::byte* const from3 = lanes.from[3];
  Sum sum0{}, sum1{}, sum2{}, sum3{};
  const std::size_t end = lines * kLineBytes;
  for (std::size_t i = 0; i < end; i += kLineBytes) {
    __builtin_prefetch(from0 + i + ahead_bytes);
    one_line<kStore, kSums>(to0, from0, i, sum0);
    PAWL_LINE_ENDS;
    __builtin_prefetch(from1 + i + ahead_bytes);
    one_line<kStore, kSums>(to1, from1, i, sum1);
    PAWL_LINE_ENDS;
    __builtin_prefetch(from2 + i + ahead_bytes);
    one_line<kStore, kSums>(to2, from2, i, sum2);
    PAWL_LINE_ENDS;
    __builtin_prefetch(from3 + i + ahead_bytes);
    one_line<kStore, kSums>(to3, from3, i, sum3);
    PAWL_LINE_ENDS;
  }
  if constexpr (!kSums) return 0;
  const std::uint32_t remainder0 = remainder(sum0), remainder1 = remainder(sum1);
  const std::uint32_t remainder2 = remainder(sum2), remainder3 = remainder(sum3);
  state = shift(state, lines) ^ remainder0;
  state = shift(state, lines) ^ remainder1;
  state = shift(state, lines) ^ remainder2;
  return shift(state, lines) ^ remainder3;
}

// One piece: its lanes are pages as long as there are four, then quarters of what is left.
template <Store kStore, bool kSums>
PAWL_KERNEL inline std::uint32_t run(std::byte* to, const std::byte* from, std::size_t size, std::uint32_t state) {
  constexpr bool kStores = kStore != Store::none;
  if constexpr (kStore == Store::stream) {
    const std::size_t head = smaller_of(bytes_to_next_line(to), size);
    state = add_bytes<kStores, kSums>(to, from, head, state);
    to += head;
    from += head;
    size -= head;
  }
  while (size >= kLanes * kLineBytes) {
    const std::size_t lines = smaller_of(size / (kLanes * kLineBytes), kLaneLines);
    const std::size_t lane = lines * kLineBytes;
    Lanes lanes{{}, {from, from + lane, from + 2 * lane, from + 3 * lane}};
    if constexpr (kStores) lanes.to = {to, to + lane, to + 2 * lane, to + 3 * lane};
    state = four_lanes<kStore, kSums>(lanes, lines, size >= 2 * kLanes * lane ? kLanes * lane : 0, state);
    if constexpr (kStores) to += kLanes * lane;
    from += kLanes * lane;
    size -= kLanes * lane;
  }
  for (; size >= kLineBytes; size -= kLineBytes) {
    Sum sum{};
    one_line<kStore, kSums>(to, from, 0, sum);
    if constexpr (kSums) state = shift(state, 1) ^ remainder(sum);
    if constexpr (kStores) to += kLineBytes;
    from += kLineBytes;
  }
  return add_bytes<kStores, kSums>(to, from, size, state);
}

PAWL_KERNEL_ENTRY std::uint32_t sum(const std::byte* from, std::size_t size, std::uint32_t state) {
  return run<Store::none, true>(nullptr, from, size, state);
}

PAWL_KERNEL_ENTRY std::uint32_t copy_and_sum(std::byte* to, const std::byte* from, std::size_t size,
                                             std::uint32_t state) {
  if (size < kStreamedBytesMin) return run<Store::plain, true>(to, from, size, state);
  return run<Store::stream, true>(to, from, size, state);
}

PAWL_KERNEL_ENTRY void copy_row(std::byte* to, const std::byte* from, std::size_t bytes) {
  run<Store::stream, false>(to, from, bytes, 0);
}

// Four rows in turn, where a row alone is too short for four lanes.
PAWL_KERNEL_ENTRY void copy_four_rows(const RowCopy& copy) {
  Lanes lanes{};
  std::array<std::size_t, kLanes> head{};
  std::size_t lines = copy.bytes / kLineBytes;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    std::byte* const to = copy.to + lane * copy.to_stride;
    const std::byte* const from = copy.from + lane * copy.from_stride;
    head[lane] = bytes_to_next_line(to);
    add_bytes<true, false>(to, from, head[lane], 0);
    lanes.to[lane] = to + head[lane];
    lanes.from[lane] = from + head[lane];
    lines = smaller_of(lines, (copy.bytes - head[lane]) / kLineBytes);
  }
  four_lanes<Store::stream, false>(lanes, lines, 0, 0);
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    const std::size_t done = lines * kLineBytes;
    add_bytes<true, false>(lanes.to[lane] + done, lanes.from[lane] + done, copy.bytes - head[lane] - done, 0);
  }
}

void copy_rows(const RowCopy& copy) {
  copy_all_rows(copy, &copy_row, &copy_four_rows);
}
