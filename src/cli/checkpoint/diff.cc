// `pawl diff`: two checkpoints by value, whatever their formats and layouts.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>

#include "base/first_few.h"
#include "base/text.h"
#include "checkpoint/formats/read_proof.h"
#include "checkpoint/output/output_plan.h"
#include "cli/checkpoint/access.h"
#include "cli/checkpoint/commands.h"
#include "cli/checkpoint/numbers.h"
#include "cli/checkpoint/portions.h"
#include "cli/checkpoint/progress.h"
#include "cli/checkpoint/text.h"
#include "cli/exit_codes.h"
#include "cli/output.h"

namespace pawl::checkpoint {
namespace {

constexpr std::size_t kShownMax = 20;

// One tensor and role that both have, with equal shapes and types that compare.
struct Pair {
  std::uint32_t a = 0, b = 0;  // indices in the views
  NumberDifference difference;
};

struct Mismatch {
  std::string name, role, why;
};

struct Comparison {
  CheckpointView a, b;
  std::vector<std::string> not_compared;  // sentences: tensors that are not read
  std::vector<Pair> pairs;
  std::vector<std::pair<std::string, std::string>> only_in_a, only_in_b;  // name, role
  std::vector<Mismatch> mismatches;                                       // of shape, or types without a common value
};

using Key = std::pair<std::string_view, std::string_view>;
std::map<Key, std::uint32_t> by_name(const CheckpointView& view, const std::vector<std::string>& roles) {
  std::map<Key, std::uint32_t> out;
  for (std::uint32_t i = 0; i < view.tensors.size(); ++i)
    if (const StoredTensor& tensor = view.tensors[i];
        roles.empty() || std::ranges::find(roles, tensor.role) != roles.end())
      out.emplace(Key(tensor.name, tensor.role), i);
  return out;
}

void match(Comparison& comparison, const std::vector<std::string>& roles) {
  const std::map<Key, std::uint32_t> left = by_name(comparison.a, roles);
  std::map<Key, std::uint32_t> right = by_name(comparison.b, roles);
  for (const auto& [key, a] : left) {
    const auto found = right.find(key);
    if (found == right.end()) {
      comparison.only_in_a.emplace_back(key);
      continue;
    }
    const StoredTensor& one = comparison.a.tensors[a];
    const StoredTensor& other = comparison.b.tensors[found->second];
    if (one.shape != other.shape)
      comparison.mismatches.push_back(
          {one.name, one.role, text("shapes ", text_of(one.shape), " and ", text_of(other.shape))});
    else if (!can_compare(one.type, other.type))
      comparison.mismatches.push_back(
          {one.name, one.role,
           text("types ", name_of(one.type), " and ", name_of(other.type), ": no numbers to compare")});
    else
      comparison.pairs.push_back({a, found->second, {}});
    right.erase(found);
  }
  for (const auto& [key, b] : right) comparison.only_in_b.emplace_back(key);
  std::ranges::sort(comparison.pairs, {}, &Pair::a);  // as they lie in the files
}

// Elements of the portion, and their numbers in the tensor where that is cut across its rows.
void compare_portion(const Portion& portion, const std::vector<std::byte>& left, const std::vector<std::byte>& right,
                     double tolerance, const Comparison& comparison, Pair& pair) {
  const StoredTensor& one = comparison.a.tensors[pair.a];
  const StoredTensor& other = comparison.b.tensors[pair.b];
  const Box box = box_of(portion, one.shape);
  const std::uint64_t count = size_bits(one.type) % 8 == 0 ? volume(box) : left.size();
  NumberDifference here;
  compare(one.type, left, other.type, right, count, 0, tolerance, here);
  NumberDifference& all = pair.difference;
  const bool is_first = all.differing == 0 && all.largest == 0;
  if (here.largest > all.largest || (is_first && here.differing != 0)) {
    all.largest = here.largest;
    all.at = size_bits(one.type) % 8 == 0 ? element_of(box, one.shape, here.at) : here.at;
    all.a = here.a;
    all.b = here.b;
  }
  all.compared += here.compared;
  all.differing += here.differing;
  all.nan_on_one_side += here.nan_on_one_side;
  all.bits_only += here.bits_only;
  all.is_valued = here.is_valued;
}

// Damaged bytes are neither equal nor different.
Status check_proof(ReadProof& proof, const CheckpointView& view, const std::vector<std::uint32_t>& tensors,
                   const std::string& path) {
  PAWL_ASSIGN(const std::vector<std::string> damage, proof.damage(view, {tensors, {}}, &interrupted()));
  if (damage.empty()) return {};
  return damaged_source(damage).within(path);
}

Status read_and_compare(const DiffOptions& options, Comparison& comparison) {
  std::vector<PortionTensor> tensors;
  std::vector<std::uint32_t> left_index, right_index;
  std::uint64_t bytes_all = 0, bytes_done = 0;
  for (const Pair& pair : comparison.pairs) {
    const StoredTensor& one = comparison.a.tensors[pair.a];
    const StoredTensor& other = comparison.b.tensors[pair.b];
    tensors.push_back({size_bits(one.type) >= size_bits(other.type) ? one.type : other.type, one.shape});
    left_index.push_back(pair.a);
    right_index.push_back(pair.b);
    bytes_all += bytes_of(one) + bytes_of(other);
  }
  const PortionReader left(comparison.a), right(comparison.b);
  PAWL_ASSIGN(ReadProof left_proof, ReadProof::create(comparison.a));
  PAWL_ASSIGN(ReadProof right_proof, ReadProof::create(comparison.b));
  ExecuteOptions left_execution = execute_options(options.memory_bytes / 2), right_execution = left_execution;
  left_execution.observe_read = left_proof.observer();
  right_execution.observe_read = right_proof.observer();
  ProgressBar progress("diff", bytes_all);
  std::vector<std::vector<std::byte>> a, b;
  for (const Portion& portion : plan_portions(tensors, std::max<std::uint64_t>(options.memory_bytes / 4, 1 << 18))) {
    if (const Status read = left.read(portion, left_index, a, left_execution); !read)
      return Error(read.error()).within(options.a);
    if (const Status read = right.read(portion, right_index, b, right_execution); !read)
      return Error(read.error()).within(options.b);
    for (std::size_t i = 0; i < portion.tensors.size(); ++i) {
      compare_portion(portion, a[i], b[i], options.tolerance, comparison, comparison.pairs[portion.tensors[i]]);
      bytes_done += a[i].size() + b[i].size();
    }
    progress.at(bytes_done);
  }
  PAWL_TRY(check_proof(left_proof, comparison.a, left_index, options.a));
  return check_proof(right_proof, comparison.b, right_index, options.b);
}

// The most different first.
std::vector<const Pair*> differing(const Comparison& comparison) {
  std::vector<const Pair*> out;
  for (const Pair& pair : comparison.pairs)
    if (pair.difference.differing != 0) out.push_back(&pair);
  std::ranges::stable_sort(out, [](const Pair* x, const Pair* y) {
    const bool x_nan = x->difference.nan_on_one_side != 0, y_nan = y->difference.nan_on_one_side != 0;
    if (x_nan != y_nan) return x_nan;
    return x->difference.largest > y->difference.largest;
  });
  return out;
}

bool is_equal(const Comparison& comparison) {
  return differing(comparison).empty() && comparison.only_in_a.empty() && comparison.only_in_b.empty() &&
         comparison.mismatches.empty();
}

Shape index_of(std::uint64_t element, const Shape& shape) {
  Shape index(shape.size());
  for (std::size_t d = shape.size(); d-- > 0; element /= shape[d]) index[d] = element % shape[d];
  return index;
}

std::string number_text(double value) {
  char buffer[40];
  std::snprintf(buffer, sizeof buffer, "%.9g", value);
  return buffer;
}

struct RoleDifference {
  std::uint64_t tensors = 0, differing = 0, elements = 0, bits_only = 0;
  double largest = 0;
};
std::map<std::string, RoleDifference> by_role(const Comparison& comparison) {
  std::map<std::string, RoleDifference> out;
  for (const Pair& pair : comparison.pairs) {
    RoleDifference& role = out[comparison.a.tensors[pair.a].role];
    ++role.tensors;
    role.differing += pair.difference.differing != 0;
    role.elements += pair.difference.differing;
    role.bits_only += pair.difference.bits_only;
    role.largest = std::max(role.largest, pair.difference.largest);
  }
  return out;
}

std::string types_text(const StoredTensor& one, const StoredTensor& other) {
  return one.type == other.type ? std::string(name_of(one.type)) : text(name_of(one.type), "/", name_of(other.type));
}

std::string pairs_text(const Comparison& comparison, std::size_t shown_max) {
  const std::vector<const Pair*> pairs = differing(comparison);
  if (pairs.empty()) return {};
  std::vector<std::vector<std::string>> rows = {{"NAME", "ROLE", "TYPE", "LARGEST", "AT", "A", "B", "DIFFERING", "OF"}};
  for (std::size_t i = 0; i < pairs.size() && i < shown_max; ++i) {
    const StoredTensor& tensor = comparison.a.tensors[pairs[i]->a];
    const NumberDifference& found = pairs[i]->difference;
    const bool valued = found.is_valued;
    rows.push_back(
        {printable(tensor.name), printable(tensor.role), types_text(tensor, comparison.b.tensors[pairs[i]->b]),
         valued ? number_text(found.largest) : "-",
         size_bits(tensor.type) % 8 == 0 ? text_of(index_of(found.at, tensor.shape)) : text("byte ", found.at),
         valued ? number_text(found.a) : "-", valued ? number_text(found.b) : "-",
         text(found.differing, found.nan_on_one_side != 0 ? text(" (", found.nan_on_one_side, " NaN)") : ""),
         text(found.compared)});
  }
  std::string out = "\n" + table(rows);
  if (pairs.size() > shown_max) out += text("... and ", pairs.size() - shown_max, " more (--all)\n");
  return out;
}

void append_missing(std::string& out, const std::vector<std::pair<std::string, std::string>>& names, const char* where,
                    std::size_t shown_max) {
  for (std::size_t i = 0; i < names.size() && i < shown_max; ++i)
    out += text(where, printable(names[i].first), " (", printable(names[i].second), ")\n");
  if (names.size() > shown_max) out += text(where, names.size() - shown_max, " more (--all)\n");
}

std::string summary_of(const DiffOptions& options, const Comparison& comparison) {
  const std::size_t shown_max = options.all ? SIZE_MAX : kShownMax;
  std::string out = text("A  ", printable(options.a), "  (", printable(comparison.a.format), ")\nB  ",
                         printable(options.b), "  (", printable(comparison.b.format), ")\n");
  std::uint64_t bits_only = 0;
  std::vector<std::vector<std::string>> rows = {{"ROLE", "TENSORS", "DIFFER", "ELEMENTS", "LARGEST"}};
  for (const auto& [role, found] : by_role(comparison)) {
    rows.push_back({printable(role), text(found.tensors), text(found.differing), text(found.elements),
                    number_text(found.largest)});
    bits_only += found.bits_only;
  }
  if (rows.size() > 1) out += "\n" + table(rows);
  out += pairs_text(comparison, shown_max);
  std::string rest;
  append_missing(rest, comparison.only_in_a, "only in A: ", shown_max);
  append_missing(rest, comparison.only_in_b, "only in B: ", shown_max);
  for (std::size_t i = 0; i < comparison.mismatches.size() && i < shown_max; ++i)
    rest += text("differs: ", printable(comparison.mismatches[i].name), " (", printable(comparison.mismatches[i].role),
                 "): ", comparison.mismatches[i].why, "\n");
  if (comparison.mismatches.size() > shown_max)
    rest += text("differs: ", comparison.mismatches.size() - shown_max, " more (--all)\n");
  if (!rest.empty()) out += "\n" + rest;
  if (bits_only != 0)
    out += text("\nnote: ", bits_only,
                " elements are equal in value but not in bits (the sign of zero, a NaN's payload)\n");
  if (!comparison.not_compared.empty()) out += "\n";
  for (std::size_t i = 0; i < comparison.not_compared.size() && i < shown_max; ++i)
    out += text("not compared: ", printable(comparison.not_compared[i]), "\n");
  if (comparison.not_compared.size() > shown_max)
    out += text("not compared: ", comparison.not_compared.size() - shown_max, " more (--all)\n");
  if (!is_equal(comparison)) return out + "\ndifferent\n";
  return out + (comparison.not_compared.empty() ? "\nequal\n" : "\nequal as far as compared\n");
}

// JSON has no infinity and no NaN: such numbers are words.
json number_json(double value) {
  if (std::isfinite(value)) return value;
  return number_text(value);
}

json document_of(const DiffOptions& options, const Comparison& comparison) {
  json document = {{"a", options.a},
                   {"b", options.b},
                   {"equal", is_equal(comparison) && comparison.not_compared.empty()},
                   {"compared", comparison.pairs.size()},
                   {"roles", json::object()},
                   {"differing", json::array()},
                   {"only_in_a", json::array()},
                   {"only_in_b", json::array()},
                   {"mismatched", json::array()},
                   {"not_compared", comparison.not_compared}};
  for (const auto& [role, found] : by_role(comparison))
    document["roles"][role] = {{"tensors", found.tensors},
                               {"differing", found.differing},
                               {"elements", found.elements},
                               {"largest", number_json(found.largest)},
                               {"bits_only", found.bits_only}};
  for (const Pair* pair : differing(comparison)) {
    const StoredTensor& tensor = comparison.a.tensors[pair->a];
    const NumberDifference& found = pair->difference;
    document["differing"].push_back(
        {{"name", tensor.name},
         {"role", tensor.role},
         {"dtype_a", name_of(tensor.type)},
         {"dtype_b", name_of(comparison.b.tensors[pair->b].type)},
         {"largest", found.is_valued ? number_json(found.largest) : json()},
         {"at", size_bits(tensor.type) % 8 == 0 ? index_of(found.at, tensor.shape) : Shape{found.at}},
         {"a", found.is_valued ? number_json(found.a) : json()},
         {"b", found.is_valued ? number_json(found.b) : json()},
         {"elements", found.differing},
         {"nan_on_one_side", found.nan_on_one_side},
         {"of", found.compared}});
  }
  for (const auto& [name, role] : comparison.only_in_a)
    document["only_in_a"].push_back({{"name", name}, {"role", role}});
  for (const auto& [name, role] : comparison.only_in_b)
    document["only_in_b"].push_back({{"name", name}, {"role", role}});
  for (const Mismatch& found : comparison.mismatches)
    document["mismatched"].push_back({{"name", found.name}, {"role", found.role}, {"why", found.why}});
  return document;
}

Error not_comparable(const std::vector<std::string>& tensors) {
  return Error{Code::corrupt, text("these tensors cannot be compared: ", first_few(tensors),
                                   " (--skip-unsupported compares the others)")};
}

// The given names may be those of one side's optimizers, where the other side has names of its own.
void open_without_names(const std::string& path, ReadOptions read, Result<CheckpointView>& side) {
  read.parameter_names_file.clear();
  Result<CheckpointView> plain = open_proven(path, read);
  if (plain && plain->unnamed.empty()) side = std::move(plain);
}

Status open_both(const DiffOptions& options, Comparison& comparison) {
  Result<CheckpointView> a = open_proven(options.a, options.read);
  Result<CheckpointView> b = open_proven(options.b, options.read);
  if (a.has_value() != b.has_value() && !options.read.parameter_names_file.empty())
    open_without_names(a ? options.b : options.a, options.read, a ? b : a);
  PAWL_ASSIGN(comparison.a, std::move(a));
  PAWL_ASSIGN(comparison.b, std::move(b));
  for (const std::string& role : options.roles) {  // one side may lack it, not both
    const Result<std::vector<std::uint32_t>> in_a = with_roles(comparison.a, {role}),
                                             in_b = with_roles(comparison.b, {role});
    if (!in_a && !in_b) return in_a.error();
  }
  return {};
}

}  // namespace

int command_diff(const DiffOptions& options) {
  (void)interrupted();
  Comparison comparison;
  if (const Status opened = open_both(options, comparison); !opened)
    return report_checkpoint_error(opened.error(), options.json);
  for (const auto& [view, path] : {std::pair(&comparison.a, &options.a), std::pair(&comparison.b, &options.b)}) {
    if (view->problems.empty()) continue;
    const std::string more = view->problems.size() > 1 ? "; pawl inspect lists all problems" : "";
    (void)report_checkpoint_error(
        {Code::corrupt, text(*path, " is incomplete and was not compared: ", view->problems[0], more)}, options.json);
    return kExitDegraded;
  }
  for (const auto& [view, path] : {std::pair(&comparison.a, &options.a), std::pair(&comparison.b, &options.b)})
    for (const std::string& what : view->unsupported) comparison.not_compared.push_back(text(*path, ": ", what));
  if (!comparison.not_compared.empty() && !options.skip_unsupported)
    return report_checkpoint_error(not_comparable(comparison.not_compared), options.json);
  match(comparison, options.roles);
  if (const Status compared = read_and_compare(options, comparison); !compared)
    return report_checkpoint_error(compared.error(), options.json);
  if (options.json)
    print(json_text(document_of(options, comparison)) + "\n");
  else
    print(summary_of(options, comparison));
  if (!is_equal(comparison)) return kExitFailed;
  return comparison.not_compared.empty() ? kExitOk : kExitDegraded;
}

}  // namespace pawl::checkpoint
