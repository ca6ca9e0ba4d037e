#include "tensor/rules.h"

#include <re2/re2.h>

#include <algorithm>
#include <map>
#include <memory>

#include "base/text.h"

namespace pawl {
namespace {

constexpr std::size_t kNamedMax = 5;

std::string listed(const std::vector<std::string>& labels) {
  std::string out;
  for (std::size_t i = 0; i < std::min(kNamedMax, labels.size()); ++i) out += text(i == 0 ? "" : ", ", labels[i]);
  return labels.size() <= kNamedMax ? out : text(out, " and ", labels.size() - kNamedMax, " more");
}

class Matcher {
 public:
  explicit Matcher(const LayoutRule& rule) : rule_(rule) {
    if (rule.names.kind == NamePattern::Kind::glob) return;
    RE2::Options options;
    options.set_log_errors(false);
    regex_ = std::make_unique<RE2>(rule.names.text, options);
  }
  [[nodiscard]] Status check() const {
    if (regex_ == nullptr || regex_->ok()) return {};
    return Error{Code::invalid, text("rule ", rule_.names.text, ": not a regular expression: ", regex_->error())};
  }
  [[nodiscard]] bool matches(const NamedTensor& tensor) const {
    if (!rule_.roles.empty() && std::ranges::find(rule_.roles, tensor.role) == rule_.roles.end()) return false;
    if (regex_ == nullptr) return matches_glob(rule_.names.text, tensor.name);
    return RE2::FullMatch(tensor.name, *regex_);
  }

 private:
  const LayoutRule& rule_;
  std::unique_ptr<RE2> regex_;
};

// Fails only for a rule that asks for what there is not.
Result<JobTensor> placed(const NamedTensor& tensor, const LayoutRule& rule) {
  JobTensor out{tensor.name, tensor.role, tensor.dtype, tensor.shape, {}, rule.placement};
  if (rule.padded_multiple == 1) return out;
  const std::string label = label_of(tensor.name, tensor.role);
  if (rule.padded_multiple == 0 || rule.padded_dimension >= tensor.shape.size()) {
    return Error{Code::invalid, text(label, ": ", text_of(tensor.shape), ": dimension ", rule.padded_dimension,
                                     " cannot be padded to a multiple of ", rule.padded_multiple)};
  }
  out.padded = tensor.shape;
  std::uint64_t& extent = out.padded[rule.padded_dimension];
  const std::uint64_t over = extent % rule.padded_multiple;
  if (over != 0 && __builtin_add_overflow(extent, rule.padded_multiple - over, &extent)) {
    return Error{Code::invalid, text(label, ": its padding overflows")};
  }
  if (out.padded == out.shape) out.padded.clear();
  return out;
}

}  // namespace

bool matches_glob(std::string_view glob, std::string_view name) {
  // On a mismatch the last star takes one more character.
  std::size_t g = 0;
  std::size_t n = 0;
  std::size_t after_star = std::string_view::npos;
  std::size_t taken = 0;
  while (n < name.size()) {
    if (g < glob.size() && glob[g] == '*') {
      after_star = ++g;
      taken = n;
    } else if (g < glob.size() && (glob[g] == '?' || glob[g] == name[n])) {
      ++g;
      ++n;
    } else if (after_star != std::string_view::npos) {
      g = after_star;
      n = ++taken;
    } else {
      return false;
    }
  }
  while (g < glob.size() && glob[g] == '*') ++g;
  return g == glob.size();
}

std::uint64_t padded_vocabulary(std::uint64_t size, std::uint64_t divisible_by, std::uint64_t tensor_parallel) {
  const std::uint64_t multiple = divisible_by * tensor_parallel;
  return multiple == 0 ? size : (size + multiple - 1) / multiple * multiple;
}

Result<JobLayout> layout_from_rules(const LayoutRules& rules, const std::vector<NamedTensor>& tensors) {
  std::vector<Matcher> matchers;
  matchers.reserve(rules.rules.size());
  for (const LayoutRule& rule : rules.rules) {
    PAWL_TRY(matchers.emplace_back(rule).check());
    if (rule.flat != LayoutRule::kNotFlat && rule.flat >= rules.flat_forms.size()) {
      return Error{Code::invalid, text("rule ", rule.names.text, ": there is no flat form ", rule.flat)};
    }
  }
  JobLayout layout{rules.world, rules.meshes, {}, {}};
  std::vector<bool> is_used(rules.rules.size());
  std::vector<std::string> without;
  std::map<std::string, std::uint32_t> group_named;
  for (const NamedTensor& tensor : tensors) {
    const auto found = std::ranges::find_if(matchers, [&](const Matcher& matcher) { return matcher.matches(tensor); });
    if (found == matchers.end()) {
      without.push_back(label_of(tensor.name, tensor.role));
      continue;
    }
    const auto number = static_cast<std::size_t>(found - matchers.begin());
    const LayoutRule& rule = rules.rules[number];
    is_used[number] = true;
    if (rule.flat != LayoutRule::kNotFlat) {
      const FlatGroup& form = rules.flat_forms[rule.flat];
      std::string name = text(form.name, '.', tensor.role, '.', name_of(tensor.dtype));
      const auto [group, is_new] = group_named.emplace(name, static_cast<std::uint32_t>(layout.groups.size()));
      if (is_new) {
        layout.groups.push_back(form);
        layout.groups.back().name = std::move(name);
      }
      layout.groups[group->second].members.push_back({static_cast<std::uint32_t>(layout.tensors.size()), 0});
    }
    PAWL_ASSIGN(JobTensor own, placed(tensor, rule));
    layout.tensors.push_back(std::move(own));
  }
  if (!without.empty()) return Error{Code::invalid, text("no rule matches ", listed(without))};
  std::vector<std::string> unused;
  for (std::size_t i = 0; i < is_used.size(); ++i) {
    if (!is_used[i]) unused.push_back(rules.rules[i].names.text);
  }
  if (!unused.empty()) return Error{Code::invalid, text("no tensor has these rules: ", listed(unused))};
  PAWL_TRY(check_layout(layout));
  return layout;
}

}  // namespace pawl
