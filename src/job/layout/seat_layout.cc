#include "job/layout/seat_layout.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/text.h"

namespace pawl::job {
namespace {

constexpr std::string_view kFirstLine = "pawl-layout\t1\t";
constexpr std::string_view kFirstSharedLine = "pawl-shared-layout\t1\t";
constexpr std::uint64_t kPayloadBytesMax = std::uint64_t{1} << 46;
constexpr std::size_t kEntriesMax = 1 << 22;

std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + kEntryAlignment - 1) / kEntryAlignment * kEntryAlignment;
}

// "0,2,3,1"
std::string numbers_of(const std::vector<std::uint32_t>& numbers) {
  std::string out;
  for (const std::uint32_t number : numbers) out += text(out.empty() ? "" : ",", number);
  return out;
}

std::string label_of(const LayoutEntry& entry) {
  return text("tensor ", entry.name, " (", entry.role, ")");
}

Result<std::uint64_t> bytes_of(const LayoutEntry& entry) {
  PAWL_TRY(element_count(entry.shape));
  PAWL_TRY(check_inside(entry.box, entry.shape));
  const std::uint64_t element_bytes = size_bits(entry.dtype) / 8;
  if (volume(entry.box) > kPayloadBytesMax / element_bytes)
    return Error{Code::invalid, text("box ", text_of(shape_of(entry.box)), " is larger than 2^46 bytes")};
  return volume(entry.box) * element_bytes;
}

bool is_blob(const LayoutEntry& entry) {
  return entry.mesh == kNoMesh && entry.role == "blob";
}

bool is_permutation_of(const std::vector<std::uint32_t>& order, std::size_t dimensions) {
  std::uint64_t seen = 0;
  for (const std::uint32_t dimension : order) {
    if (dimension >= dimensions || (seen >> dimension & 1) != 0) return false;
    seen |= std::uint64_t{1} << dimension;
  }
  return order.size() == dimensions;
}

Status check_entry(const LayoutEntry& entry, const std::vector<Mesh>& meshes) {
  if (!is_captured(entry.dtype)) return Error{Code::invalid, text("elements of ", name_of(entry.dtype))};
  if (!is_blob(entry) && entry.mesh >= meshes.size()) return Error{Code::invalid, text("no mesh ", entry.mesh)};
  if (entry.placement == TensorPlacement::replicate && entry.box != whole_box(entry.shape)) {
    return Error{Code::invalid,
                 text("replicated, but its box ", text_of(entry.box), " is not all of ", text_of(entry.shape))};
  }
  if (!entry.order.empty() && !is_permutation_of(entry.order, entry.box.dimensions))
    return Error{Code::invalid, text("its order ", numbers_of(entry.order), " is no permutation of ",
                                     entry.box.dimensions, " dimensions")};
  if (entry.equal_axes == 0) return {};
  if (entry.lifetime != Lifetime::stable)
    return Error{Code::invalid, "equal along an axis, but not stable: only the seat itself can prove such state"};
  if (is_blob(entry) || entry.equal_axes >> meshes[entry.mesh].axes.size() != 0)
    return Error{Code::invalid, text("equal along axes ", entry.equal_axes, ", which its mesh has not got")};
  return {};
}

std::string offset_text(std::uint64_t offset) {
  return offset == kNotCaptured ? "-" : text(offset);
}

std::string mesh_text(std::uint32_t mesh) {
  return mesh == kNoMesh ? "-" : text(mesh);
}

// A column of its own, which entries that are declared equal along no axis have not got.
std::string equal_text(const LayoutEntry& entry) {
  return entry.equal_axes == 0 ? "" : text("\tequal ", entry.equal_axes);
}

// Likewise of those that are not row-major.
std::string order_text(const LayoutEntry& entry) {
  return entry.order.empty() ? "" : text("\torder ", numbers_of(entry.order));
}

void append_meshes(std::string& out, const SeatLayout& layout) {
  for (const Mesh& mesh : layout.meshes) {
    out += text("mesh\t", mesh.name);
    for (const Mesh::Axis& axis : mesh.axes) out += text('\t', axis.name, '\t', axis.size);
    out += '\n';
  }
}

// The text, cut at newlines and tabs.
class Lines {
 public:
  explicit Lines(std::string_view rest) : rest_(rest) {}
  // The columns of the next line; empty at the end. A last line without newline is none.
  [[nodiscard]] bool next() {
    const std::size_t end = rest_.find('\n');
    if (end == std::string_view::npos) return false;
    line_ = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    ++number_;
    columns_.clear();
    for (std::string_view cut = line_;;) {
      const std::size_t tab = cut.find('\t');
      columns_.push_back(cut.substr(0, tab));
      if (tab == std::string_view::npos) return true;
      cut.remove_prefix(tab + 1);
    }
  }
  [[nodiscard]] bool at_end() const { return rest_.empty(); }
  [[nodiscard]] const std::vector<std::string_view>& columns() const { return columns_; }
  [[nodiscard]] std::string_view line() const { return line_; }
  [[nodiscard]] Error wrong(const std::string& why) const {
    return Error{Code::corrupt, text("layout, line ", number_, ": ", why)};
  }

 private:
  std::string_view rest_;
  std::string_view line_;
  std::vector<std::string_view> columns_;
  std::size_t number_ = 0;
};

Result<Mesh> parse_mesh(const Lines& lines) {
  const auto& columns = lines.columns();
  if (columns.size() < 4 || columns.size() % 2 != 0) return lines.wrong("a mesh's columns");
  Mesh mesh{std::string(columns[1]), {}};
  for (std::size_t i = 2; i < columns.size(); i += 2) {
    Mesh::Axis axis{std::string(columns[i]), 0};
    if (mesh.axes.size() == kAxesMax || !parse_number(columns[i + 1], axis.size)) return lines.wrong("an axis");
    mesh.axes.push_back(std::move(axis));
  }
  return mesh;
}

template <class Enum>
std::optional<Enum> one_named(std::string_view name, std::initializer_list<Enum> all) {
  for (const Enum value : all) {
    if (name_of(value) == name) return value;
  }
  return std::nullopt;
}

bool parse_order(std::string_view rest, std::vector<std::uint32_t>& order) {
  while (order.size() < kDimensionsMax) {
    const std::size_t comma = rest.find(',');
    if (!parse_number(rest.substr(0, comma), order.emplace_back())) return false;
    if (comma == std::string_view::npos) return true;
    rest.remove_prefix(comma + 1);
  }
  return false;
}

bool parse_option(std::string_view column, LayoutEntry& entry) {
  constexpr std::string_view kEqual = "equal ";
  constexpr std::string_view kOrder = "order ";
  if (column.starts_with(kEqual)) return parse_number(column.substr(kEqual.size()), entry.equal_axes);
  return column.starts_with(kOrder) && entry.order.empty() && parse_order(column.substr(kOrder.size()), entry.order);
}

Result<LayoutEntry> parse_entry(const Lines& lines) {
  const auto& columns = lines.columns();
  if (columns.size() < 12 || columns.size() > 14) return lines.wrong(text(columns.size(), " columns, not 12 to 14"));
  LayoutEntry entry;
  entry.name = columns[1];
  entry.role = columns[2];
  const auto dtype = captured_type_named(columns[3]);
  const auto placement = one_named(columns[8], {TensorPlacement::replicate, TensorPlacement::unique});
  const auto lifetime = one_named(columns[9], {Lifetime::stable, Lifetime::volatile_, Lifetime::derived});
  if (!dtype || !placement || !lifetime) return lines.wrong("an unknown dtype, placement or lifetime");
  entry.dtype = *dtype;
  entry.placement = *placement;
  entry.lifetime = *lifetime;
  PAWL_ASSIGN(entry.shape, parse_shape(columns[4]));
  PAWL_ASSIGN(const Shape begin, parse_shape(columns[5]));
  PAWL_ASSIGN(const Shape size, parse_shape(columns[6]));
  Result<Box> box = box_inside(begin, size, entry.shape);
  if (!box) return lines.wrong(text(label_of(entry), ": ", box.error().what));
  entry.box = *box;
  if (columns[7] != "-" && !parse_number(columns[7], entry.mesh)) return lines.wrong("a mesh's index");
  for (std::size_t i = 12; i < columns.size(); ++i) {
    if (!parse_option(columns[i], entry)) return lines.wrong("neither the axes along which it is equal nor its order");
  }
  return entry;  // columns 10 and 11 follow from the rest; parse_layout compares the whole text
}

}  // namespace

std::string_view name_of(TensorPlacement placement) {
  return placement == TensorPlacement::replicate ? "replicate" : "unique";
}

std::string_view name_of(Lifetime lifetime) {
  switch (lifetime) {
    case Lifetime::stable:
      return "stable";
    case Lifetime::volatile_:
      return "volatile";
    case Lifetime::derived:
      return "derived";
  }
  return "derived";
}

std::vector<std::uint32_t> canonical_order(const std::vector<std::uint32_t>& order, const Box& box) {
  std::vector<std::uint32_t> long_ones;
  for (const std::uint32_t dimension : order)
    if (box.size[dimension] != 1) long_ones.push_back(dimension);
  if (std::ranges::is_sorted(long_ones) || volume(box) == 0) return {};
  std::vector<std::uint32_t> canonical;
  for (std::uint32_t dimension = 0; dimension < box.dimensions; ++dimension)
    if (box.size[dimension] == 1) canonical.push_back(dimension);
  canonical.insert(canonical.end(), long_ones.begin(), long_ones.end());
  return canonical;
}

Result<std::uint32_t> LayoutBuilder::add_mesh(Mesh mesh) {
  PAWL_TRY(check_mesh(mesh, layout_.world));
  for (const Mesh& other : layout_.meshes) {
    if (other.name == mesh.name) return Error{Code::invalid, text("two meshes are named ", mesh.name)};
  }
  layout_.meshes.push_back(std::move(mesh));
  return static_cast<std::uint32_t>(layout_.meshes.size() - 1);
}

Result<std::uint32_t> LayoutBuilder::add(LayoutEntry entry) {
  if (!is_name(entry.name) || !is_name(entry.role)) {
    return Error{Code::invalid, "a tensor's name or role is empty, longer than 512 bytes or not printable"};
  }
  if (layout_.entries.size() == kEntriesMax) return Error{Code::invalid, "more than 4194304 tensors"};
  if (Status status = check_entry(entry, layout_.meshes); !status) {
    return std::move(status).error().within(label_of(entry));
  }
  Result<std::uint64_t> bytes = bytes_of(entry);
  if (!bytes) return std::move(bytes).error().within(label_of(entry));
  if (!names_.insert(text(entry.name, '\n', entry.role)).second) {
    return Error{Code::invalid, label_of(entry) + " is declared twice"};
  }
  entry.bytes = *bytes;
  entry.order = canonical_order(entry.order, entry.box);
  entry.payload_offset = kNotCaptured;
  layout_.entries.push_back(std::move(entry));
  return static_cast<std::uint32_t>(layout_.entries.size() - 1);
}

Result<std::uint32_t> LayoutBuilder::add_blob(std::string name, std::uint64_t capacity) {
  if (capacity > kPayloadBytesMax) return Error{Code::invalid, text("blob ", name, " of ", capacity, " bytes")};
  LayoutEntry entry;
  entry.name = std::move(name);
  entry.role = "blob";
  entry.dtype = ElementType::uint8;
  entry.shape = {capacity + kBlobHeaderBytes};
  entry.box = whole_box(entry.shape);
  entry.placement = TensorPlacement::unique;
  entry.lifetime = Lifetime::volatile_;
  return add(std::move(entry));
}

Result<SeatLayout> LayoutBuilder::build() const {
  SeatLayout layout = layout_;
  std::uint64_t end = 0;
  for (const Lifetime lifetime : {Lifetime::stable, Lifetime::volatile_}) {
    for (LayoutEntry& entry : layout.entries) {
      if (entry.lifetime != lifetime) continue;
      entry.payload_offset = end;
      end += aligned(entry.bytes);  // each is at most 2^46: no overflow before the check
      if (end > kPayloadBytesMax) return Error{Code::invalid, "the state is larger than 2^46 bytes"};
    }
    if (lifetime == Lifetime::stable) layout.stable_bytes = end;
  }
  if (end == 0) return Error{Code::invalid, "no stable or volatile state is declared"};
  layout.payload_bytes = end;
  return layout;
}

std::string text_of(const SeatLayout& layout) {
  std::string out = text(kFirstLine, layout.world, '\n');
  append_meshes(out, layout);
  for (const LayoutEntry& e : layout.entries) {
    out += text("tensor\t", e.name, '\t', e.role, '\t', name_of(e.dtype), '\t', text_of(e.shape), '\t',
                text_of(begin_of(e.box)), '\t', text_of(shape_of(e.box)), '\t', mesh_text(e.mesh), '\t',
                name_of(e.placement), '\t', name_of(e.lifetime), '\t', offset_text(e.payload_offset), '\t', e.bytes,
                equal_text(e), order_text(e), '\n');
  }
  return out;
}

Result<SeatLayout> parse_layout(std::string_view all) {
  Lines lines(all);
  std::uint32_t world = 0;
  if (!lines.next() || !lines.line().starts_with(kFirstLine) ||
      !parse_number(lines.line().substr(kFirstLine.size()), world)) {
    return Error{Code::corrupt, "layout: the first line is not that of a version 1 layout"};
  }
  LayoutBuilder builder(world);
  while (lines.next()) {
    Status added;
    if (lines.columns()[0] == "mesh") {
      PAWL_ASSIGN(Mesh mesh, parse_mesh(lines));
      if (auto index = builder.add_mesh(std::move(mesh)); !index) added = std::move(index).error();
    } else if (lines.columns()[0] == "tensor") {
      PAWL_ASSIGN(LayoutEntry entry, parse_entry(lines));
      if (auto index = builder.add(std::move(entry)); !index) added = std::move(index).error();
    } else {
      return lines.wrong("neither mesh nor tensor");
    }
    if (!added) return lines.wrong(added.error().what);
  }
  Result<SeatLayout> layout = builder.build();
  if (!layout) return Error{Code::corrupt, text("layout: ", layout.error().what)};
  // Leading zeros, offsets of one's own, meshes after tensors, a missing newline: one comparison finds them all.
  if (text_of(*layout) != all) return Error{Code::corrupt, "layout: not in canonical form"};
  return layout;
}

bool have_same_state(const SeatLayout& one, const SeatLayout& other) {
  if (one.world != other.world || one.meshes != other.meshes) return false;
  return std::ranges::equal(one.entries, other.entries, [](const LayoutEntry& a, LayoutEntry b) {
    b.payload_offset = a.payload_offset;
    b.equal_axes = a.equal_axes;
    if (is_blob(a) && is_blob(b)) {
      b.shape = a.shape;
      b.box = a.box;
      b.bytes = a.bytes;
    }
    return a == b;
  });
}

std::string shared_text(const SeatLayout& layout) {
  std::string out = text(kFirstSharedLine, layout.world, '\n');
  append_meshes(out, layout);
  for (const LayoutEntry& e : layout.entries) {
    if (e.placement != TensorPlacement::replicate) continue;
    out += text("tensor\t", e.name, '\t', e.role, '\t', text_of(e.shape), '\t', name_of(e.dtype), '\t',
                name_of(e.lifetime), "\tmesh ", mesh_text(e.mesh), order_text(e), '\n');
  }
  return out;
}

namespace {

struct SharedLine {
  std::string label;  // "tensor wte (weight)"
  std::string value;  // "[50304,768] float32 stable mesh 0"
};

// From a line of a shared text. Whatever stands there becomes some label and some value.
SharedLine shared_line(const Lines& lines) {
  const auto& columns = lines.columns();
  const std::size_t label_columns = columns[0] == "tensor" ? 3 : columns[0] == "mesh" ? 2 : 1;
  SharedLine line;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    std::string& to = i < label_columns ? line.label : line.value;
    if (!to.empty()) to += ' ';
    to += i == 2 && label_columns == 3 ? text('(', columns[i], ')') : std::string(columns[i]);
  }
  return line;
}

}  // namespace

std::vector<std::string> first_differences(std::string_view here, std::string_view there, std::size_t limit) {
  std::vector<std::string> differences;
  std::map<std::string, std::string> theirs;
  for (Lines lines(there); lines.next();) {
    SharedLine line = shared_line(lines);
    theirs.emplace(std::move(line.label), std::move(line.value));
  }
  for (Lines lines(here); lines.next() && differences.size() < limit;) {
    SharedLine line = shared_line(lines);
    const auto found = theirs.find(line.label);
    const bool missing = found == theirs.end();
    if (missing || found->second != line.value) {
      differences.push_back(
          text(line.label, ": ", line.value, " here, ", missing ? "missing" : found->second, " there"));
    }
    if (!missing) theirs.erase(found);
  }
  for (const auto& [label, value] : theirs) {
    if (differences.size() >= limit) break;
    differences.push_back(text(label, ": missing here, ", value, " there"));
  }
  if (differences.empty() && here != there && limit > 0) differences.emplace_back("the order of declaration differs");
  return differences;
}

}  // namespace pawl::job
