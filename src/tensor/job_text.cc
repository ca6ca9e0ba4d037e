// The canonical text of a JobLayout. Lines end with a newline, columns are parted by tabs, lists are [1,2,3]:
//
//   pawl-job-layout  1  WORLD
//   mesh    NAME  AXIS SIZE  AXIS SIZE ...
//   tensor  NAME  ROLE  DTYPE  SHAPE  PADDED-SHAPE  MESH  PATTERNS      mesh: its index
//   flat    NAME  MESH  AXES  joined|each_member  ALIGN  PAD
//   member  TENSOR  GAP                                                 of the flat group above; tensor: its index
//
// PATTERNS: "replicate", or joined by ";", in the order in which they apply, AXIS:only[..], AXIS:averaged or
// AXIS:shard(DIMENSION,chunk|even|given,segments[..],sizes[..]), where segments and sizes may be absent.
#include <algorithm>
#include <array>

#include "base/digest.h"
#include "base/text.h"
#include "tensor/enumerate.h"

namespace pawl {
namespace {

using Numbers = AxisPattern::Numbers;
constexpr std::array<std::string_view, 3> kSplits = {"chunk", "even", "given"};  // as AxisPattern::Split
constexpr std::array<std::string_view, 2> kForms = {"joined", "each_member"};    // as FlatGroup::Form

std::string text_of(const AxisPattern& pattern) {
  const std::string axis = text(pattern.axis, ':');
  if (pattern.kind == AxisPattern::Kind::only) return axis + text("only", pawl::text_of(pattern.holders));
  if (pattern.kind == AxisPattern::Kind::averaged) return axis + "averaged";
  std::string out = axis + text("shard(", pattern.dimension, ',', kSplits[static_cast<std::size_t>(pattern.split)]);
  if (!pattern.segments.empty()) out += text(",segments", pawl::text_of(pattern.segments));
  if (!pattern.sizes.empty()) out += text(",sizes", pawl::text_of(pattern.sizes));
  return out + ')';
}

std::string text_of(const MeshPlacement& placement) {
  std::string out;
  for (const AxisPattern& pattern : placement.patterns) out += text(out.empty() ? "" : ";", text_of(pattern));
  return out.empty() ? "replicate" : out;
}

// Takes a text apart from the front. What is missing or too much shows at the end: the whole must write itself again.
class Cursor {
 public:
  explicit Cursor(std::string_view rest) : rest_(rest) {}
  [[nodiscard]] bool at_end() const { return rest_.empty(); }
  [[nodiscard]] bool take(std::string_view prefix) {
    if (!rest_.starts_with(prefix)) return false;
    rest_.remove_prefix(prefix.size());
    return true;
  }
  [[nodiscard]] std::string_view until(char end) {
    const std::string_view taken = rest_.substr(0, rest_.find(end));
    rest_.remove_prefix(std::min(rest_.size(), taken.size() + 1));
    return taken;
  }
  template <class Number>
  [[nodiscard]] bool number(Number& out) {
    return parse_number(rest_.substr(0, rest_.find_first_not_of("0123456789")), out) && skip_digits();
  }
  [[nodiscard]] bool list(Numbers& out) {
    if (!take("[")) return false;
    if (take("]")) return true;
    do {
      if (!number(out.emplace_back())) return false;
    } while (take(","));
    return take("]");
  }
  template <class Enum, std::size_t count>
  [[nodiscard]] bool one_of(const std::array<std::string_view, count>& names, Enum& out) {
    for (std::size_t i = 0; i < count; ++i) {
      out = static_cast<Enum>(i);
      if (take(names[i])) return true;
    }
    return false;
  }

 private:
  bool skip_digits() {
    rest_.remove_prefix(std::min(rest_.size(), rest_.find_first_not_of("0123456789")));
    return true;
  }
  std::string_view rest_;
};

bool parse_pattern(Cursor& from, AxisPattern& pattern) {
  if (!from.number(pattern.axis) || !from.take(":")) return false;
  if (from.take("averaged")) {
    pattern.kind = AxisPattern::Kind::averaged;
    return true;
  }
  if (from.take("only")) {
    pattern.kind = AxisPattern::Kind::only;
    return from.list(pattern.holders);
  }
  if (!from.take("shard(") || !from.number(pattern.dimension) || !from.take(",")) return false;
  if (!from.one_of(kSplits, pattern.split)) return false;
  if (from.take(",segments") && !from.list(pattern.segments)) return false;
  if (from.take(",sizes") && !from.list(pattern.sizes)) return false;
  return from.take(")");
}

bool parse_mesh(Cursor& from, Mesh& mesh) {
  mesh.name = from.until('\t');
  while (!from.at_end()) {
    Mesh::Axis& axis = mesh.axes.emplace_back();
    axis.name = from.until('\t');
    if (!from.number(axis.size)) return false;
    if (!from.at_end() && !from.take("\t")) return false;
  }
  return true;
}

bool parse_tensor(Cursor& from, JobTensor& tensor) {
  tensor.name = from.until('\t');
  tensor.role = from.until('\t');
  const auto dtype = element_type_named(from.until('\t'));
  if (!dtype || !from.list(tensor.shape) || !from.take("\t") || !from.list(tensor.padded)) return false;
  tensor.dtype = *dtype;
  if (tensor.padded == tensor.shape) tensor.padded.clear();
  if (!from.take("\t") || !from.number(tensor.placement.mesh) || !from.take("\t")) return false;
  if (from.take("replicate")) return from.at_end();
  do {
    if (!parse_pattern(from, tensor.placement.patterns.emplace_back())) return false;
  } while (from.take(";"));
  return from.at_end();
}

bool parse_group(Cursor& from, FlatGroup& group) {
  Numbers axes;
  group.name = from.until('\t');
  if (!from.number(group.mesh) || !from.take("\t") || !from.list(axes) || !from.take("\t")) return false;
  for (const std::uint64_t axis : axes) {
    if (axis >= kAxesMax) return false;
    group.axes.push_back(static_cast<std::uint32_t>(axis));
  }
  return from.one_of(kForms, group.form) && from.take("\t") && from.number(group.align) && from.take("\t") &&
         from.number(group.pad) && from.at_end();
}

bool parse_member(Cursor& from, FlatGroup::Member& member) {
  return from.number(member.tensor) && from.take("\t") && from.number(member.gap) && from.at_end();
}

bool parse_line(Cursor from, JobLayout& layout) {
  if (from.take("mesh\t")) return parse_mesh(from, layout.meshes.emplace_back());
  if (from.take("tensor\t")) return parse_tensor(from, layout.tensors.emplace_back());
  if (from.take("flat\t")) return parse_group(from, layout.groups.emplace_back());
  return from.take("member\t") && !layout.groups.empty() &&
         parse_member(from, layout.groups.back().members.emplace_back());
}

}  // namespace

std::string text_of(const JobLayout& layout) {
  std::string out = text("pawl-job-layout\t1\t", layout.world, '\n');
  for (const Mesh& mesh : layout.meshes) {
    out += text("mesh\t", mesh.name);
    for (const Mesh::Axis& axis : mesh.axes) out += text('\t', axis.name, '\t', axis.size);
    out += '\n';
  }
  for (const JobTensor& t : layout.tensors) {
    out += text("tensor\t", t.name, '\t', t.role, '\t', name_of(t.dtype), '\t', text_of(t.shape), '\t',
                text_of(t.placed_shape()), '\t', t.placement.mesh, '\t', text_of(t.placement), '\n');
  }
  for (const FlatGroup& g : layout.groups) {
    out += text("flat\t", g.name, '\t', g.mesh, '\t', text_of(Shape(g.axes.begin(), g.axes.end())), '\t',
                kForms[static_cast<std::size_t>(g.form)], '\t', g.align, '\t', g.pad, '\n');
    for (const FlatGroup::Member& member : g.members) out += text("member\t", member.tensor, '\t', member.gap, '\n');
  }
  return out;
}

Result<JobLayout> parse_job_layout(std::string_view all) {
  JobLayout layout;
  Cursor lines(all);
  if (!lines.take("pawl-job-layout\t1\t") || !lines.number(layout.world) || !lines.take("\n")) {
    return Error{Code::corrupt, "job layout: the first line is not that of a version 1 layout"};
  }
  for (std::size_t number = 2; !lines.at_end(); ++number) {
    if (!parse_line(Cursor(lines.until('\n')), layout)) {
      return Error{Code::corrupt, text("job layout, line ", number, ": not understood")};
    }
  }
  if (Status checked = check_layout(layout); !checked) {
    return Error{Code::corrupt, text("job layout: ", checked.error().what)};
  }
  // Leading zeros, another order, a missing newline: one comparison finds them all.
  if (text_of(layout) != all) return Error{Code::corrupt, "job layout: not in canonical form"};
  return layout;
}

std::uint64_t digest_of(const JobLayout& layout) {
  return digest_of(text_of(layout));
}

}  // namespace pawl
