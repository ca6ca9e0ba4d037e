#include "checkpoint/containers/dict_keys.h"

#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "base/text.h"

namespace pawl::checkpoint {
namespace {

using Value = Pickle::Value;

constexpr std::size_t kTextBytesMax =
    256;  // of a key that is no string: what is longer is cut, and numbered if need be
constexpr std::uint32_t kDepthMax = 6;

// A bytes literal of Python.
std::string literal_of(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out = "b'";
  for (const char c : bytes.substr(0, kTextBytesMax)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= ' ' && byte < 0x7f && c != '\'' && c != '\\')
      out.push_back(c);
    else
      append_text(out, text("\\x", kDigits[byte >> 4], kDigits[byte & 15]));
  }
  return out + "'";
}

// Protocol 2 has no bytes: it has _codecs.encode('text', 'latin1'). Nothing where the text is something else. Of more
// than are shown only the first.
std::optional<std::string> latin1_of(std::string_view utf8) {
  std::string out;
  for (std::size_t i = 0; i < utf8.size() && out.size() <= kTextBytesMax; ++i) {
    const auto byte = static_cast<unsigned char>(utf8[i]);
    if (byte < 0x80) {
      out.push_back(utf8[i]);
    } else if ((byte == 0xc2 || byte == 0xc3) && i + 1 < utf8.size()) {
      out.push_back(static_cast<char>((byte & 3) << 6 | (static_cast<unsigned char>(utf8[++i]) & 0x3f)));
    } else {
      return std::nullopt;
    }
  }
  return out;
}

template <typename Number>
std::optional<std::string> number_of(std::string_view bytes) {
  Number number{};
  if (bytes.size() != sizeof number) return std::nullopt;
  std::memcpy(&number, bytes.data(), sizeof number);
  return text(+number);
}

// A real number as Python shows it: never without a point.
std::string real_text(double number) {
  std::string out = text(number);
  if (out.find_first_not_of("-0123456789") == std::string::npos) out += ".0";
  return out;
}

class KeyText {
 public:
  explicit KeyText(const Pickle& pickle) : pickle_(pickle) {}

  std::string of(Value key) {
    add(key, 0);
    if (out_.size() > kTextBytesMax) out_.replace(kTextBytesMax, std::string::npos, "...");
    return std::move(out_);
  }

 private:
  [[nodiscard]] bool is_full(std::uint32_t depth) const { return depth > kDepthMax || out_.size() > kTextBytesMax; }

  void add(Value value, std::uint32_t depth) {
    if (is_full(depth)) {
      out_ += "...";
      return;
    }
    switch (pickle_.kind(value)) {
      case PickleKind::none:
        out_ += "None";
        return;
      case PickleKind::boolean:
        out_ += pickle_.boolean(value) ? "True" : "False";
        return;
      case PickleKind::integer:
        append_text(out_, text(*pickle_.integer(value)));
        return;
      case PickleKind::string:
        append_text(out_, text('\'', pickle_.text(value).substr(0, kTextBytesMax), '\''));
        return;
      case PickleKind::real:
        out_ += real_text(pickle_.real(value));
        return;
      case PickleKind::bytes:
        out_ += literal_of(pickle_.text(value));
        return;
      case PickleKind::long_integer:
        append_text(out_, text("int(", literal_of(pickle_.text(value)), ')'));
        return;
      case PickleKind::tuple:
        return add_items("(", value, pickle_.items(value).size() == 1 ? ",)" : ")", depth);
      case PickleKind::list:
        return add_items("[", value, "]", depth);
      case PickleKind::set:
      case PickleKind::frozenset:
        return add_items("frozenset({", value, "})", depth);
      case PickleKind::global:
        append_text(out_, text(pickle_.symbol(value).module, '.', pickle_.symbol(value).name));
        return;
      case PickleKind::object:
        return add_object(value, depth);
      default:
        append_text(out_, text('<', pickle_.describe(value), '>'));
    }
  }

  void add_items(std::string_view open, Value value, std::string_view close, std::uint32_t depth) {
    out_ += open;
    const std::span<const Value> items = pickle_.items(value);
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (is_full(depth)) break;
      if (i != 0) out_ += ", ";
      add(items[i], depth + 1);
    }
    out_ += close;
  }

  void add_object(Value value, std::uint32_t depth) {
    const Pickle::Object object = pickle_.object(value);
    const PickleSymbol& what = pickle_.class_of(value);
    const std::span<const Value> arguments = pickle_.items(object.arguments);
    if (what.module == "torch._utils" || what.module == "torch._tensor") {  // its bytes are no text
      out_ += "<tensor>";
      return;
    }
    if (const std::optional<std::string> bytes = bytes_of(value)) {
      out_ += literal_of(*bytes);
      return;
    }
    if (const std::optional<std::string> number = numpy_number(what, arguments)) {
      out_ += *number;
      return;
    }
    if (what.is("copyreg", "_reconstructor") && !arguments.empty()) {
      add(arguments[0], depth + 1);
      out_ += "(";
    } else {
      add(object.callable, depth + 1);
      add_items("(", object.arguments, "", depth);
    }
    if (object.state != kNothing && !pickle_.is(object.state, PickleKind::none)) add_state(object.state, depth);
    out_ += ")";
  }

  void add_state(Value state, std::uint32_t depth) {
    if (out_.back() != '(') out_ += ", ";
    if (!pickle_.is(state, PickleKind::dict)) return add(state, depth + 1);
    const std::span<const Value> items = pickle_.items(state);
    for (std::size_t i = 0; i + 1 < items.size() && !is_full(depth); i += 2) {
      append_text(out_, text(i == 0 ? "" : ", ", pickle_.text(items[i]).substr(0, kTextBytesMax), '='));
      add(items[i + 1], depth + 1);
    }
  }

  [[nodiscard]] std::optional<std::string> bytes_of(Value value) const {
    if (pickle_.is(value, PickleKind::bytes)) return std::string(pickle_.text(value).substr(0, kTextBytesMax + 1));
    if (!pickle_.is(value, PickleKind::object)) return std::nullopt;
    const std::span<const Value> arguments = pickle_.items(pickle_.object(value).arguments);
    if (!pickle_.class_of(value).is("_codecs", "encode") || arguments.size() != 2 ||
        pickle_.text(arguments[1]) != "latin1")
      return std::nullopt;
    return latin1_of(pickle_.text(arguments[0]));
  }

  // numpy.core.multiarray.scalar(numpy.dtype('i8', ...), b'...')
  [[nodiscard]] std::optional<std::string> numpy_number(const PickleSymbol& what,
                                                        std::span<const Value> arguments) const {
    const bool is_scalar = what.name == "scalar" && what.module.starts_with("numpy.") && arguments.size() == 2;
    if (!is_scalar || !pickle_.is(arguments[0], PickleKind::object)) return std::nullopt;
    const Pickle::Object dtype = pickle_.object(arguments[0]);
    const std::span<const Value> words = pickle_.items(dtype.arguments), state = pickle_.items(dtype.state);
    const std::optional<std::string> bytes = bytes_of(arguments[1]);
    if (words.empty() || !bytes || (state.size() > 1 && pickle_.text(state[1]) == ">")) return std::nullopt;
    const std::string_view code = pickle_.text(words[0]);
    std::optional<std::string> number;
    std::string_view name;
    if (code == "b1") {
      name = "bool";
      if (bytes->size() == 1) number = (*bytes)[0] != 0 ? "True" : "False";
    }
    const auto take = [&]<typename Number>(std::string_view a_code, std::string_view a_name, Number) {
      if (code != a_code) return;
      name = a_name;
      number = number_of<Number>(*bytes);
    };
    take("i1", "int8", std::int8_t{});
    take("i2", "int16", std::int16_t{});
    take("i4", "int32", std::int32_t{});
    take("i8", "int64", std::int64_t{});
    take("u1", "uint8", std::uint8_t{});
    take("u2", "uint16", std::uint16_t{});
    take("u4", "uint32", std::uint32_t{});
    take("u8", "uint64", std::uint64_t{});
    take("f4", "float32", float{});
    take("f8", "float64", double{});
    if (!number) return std::nullopt;
    return text("numpy.", name, '(', *number, ')');
  }

  const Pickle& pickle_;
  std::string out_;
};

// What Python calls the type of a key whose text may be a string's, too.
std::string_view type_of(const Pickle& pickle, Value key) {
  switch (pickle.kind(key)) {
    case PickleKind::none:
      return "NoneType";
    case PickleKind::boolean:
      return "bool";
    case PickleKind::integer:
      return "int";
    case PickleKind::real:
      return "float";
    default:
      return "object";
  }
}

// Whether keys of this kind with one text are one key.
bool is_plain(const Pickle& pickle, Value key) {
  const PickleKind kind = pickle.kind(key);
  return kind == PickleKind::none || kind == PickleKind::boolean || kind == PickleKind::integer ||
         kind == PickleKind::string;
}

}  // namespace

PathStep step_of_key(const Pickle& pickle, Value key, std::size_t bytes_max) {
  if (pickle.is(key, PickleKind::string))
    return {PathStep::Kind::key, std::string(pickle.text(key).substr(0, bytes_max))};
  return {PathStep::Kind::index, KeyText(pickle).of(key)};
}

Result<KeySteps> steps_of_keys(const Pickle& pickle, std::span<const Value> items, CopyBudget& copies) {
  KeySteps steps;
  std::unordered_set<std::string_view> strings;
  bool has_others = false;
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    PAWL_TRY(copies.take(pickle.text(items[i]).size()));
    steps.emplace_back(step_of_key(pickle, items[i]));
    if (pickle.is(items[i], PickleKind::string)) {
      strings.insert(pickle.text(items[i]));
      continue;
    }
    PAWL_TRY(copies.take(steps.back()->text.size()));
    has_others = true;
  }
  std::unordered_map<std::string, std::size_t> taken;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Value key = items[2 * i];
    std::string& words = steps[i]->text;
    const bool is_string = pickle.is(key, PickleKind::string);
    if (has_others && !is_string && strings.contains(words)) words = text(type_of(pickle, key), '(', words, ')');
    const auto before = taken.find(words);
    if (before != taken.end() && is_plain(pickle, key) && pickle.kind(items[2 * before->second]) == pickle.kind(key)) {
      steps[before->second].reset();
      before->second = i;
      continue;
    }
    while (taken.contains(words) || (!is_string && strings.contains(words))) append_text(words, text(" #", i));
    taken.emplace(words, i);
  }
  return steps;
}

}  // namespace pawl::checkpoint
