#include "checkpoint/containers/pickle.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <unordered_map>

#include "base/text.h"
#include "base/utf8.h"
#include "env/huge_pages.h"

namespace pawl::checkpoint {
namespace {

// Opcodes by the names that Python's own documentation gives them.
enum Opcode : unsigned char {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kFloat = 'F',
  kInt = 'I',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kLong = 'L',
  kBinInt2 = 'M',
  kNone = 'N',
  kPersId = 'P',
  kBinPersId = 'Q',
  kReduce = 'R',
  kString = 'S',
  kBinString = 'T',
  kShortBinString = 'U',
  kUnicode = 'V',
  kBinUnicode = 'X',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kDict = 'd',
  kEmptyDict = '}',
  kAppends = 'e',
  kGet = 'g',
  kBinGet = 'h',
  kInst = 'i',
  kLongBinGet = 'j',
  kList = 'l',
  kObj = 'o',
  kEmptyList = ']',
  kPut = 'p',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kEmptyTuple = ')',
  kSetItems = 'u',
  kBinFloat = 'G',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kProto = 0x80,
  kNewObj = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kNewObjEx = 0x92,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
  kByteArray8 = 0x96,
};

bool is_text(PickleKind kind) {
  return kind == PickleKind::string || kind == PickleKind::bytes || kind == PickleKind::long_integer;
}
bool has_items(PickleKind kind) {
  return kind == PickleKind::tuple || kind == PickleKind::list || kind == PickleKind::dict || kind == PickleKind::set ||
         kind == PickleKind::frozenset || kind == PickleKind::object;
}
bool can_be_key(PickleKind kind) {
  return kind != PickleKind::list && kind != PickleKind::dict && kind != PickleKind::set;
}

// Protocol 0's text: Latin-1 with \uXXXX and \UXXXXXXXX.
std::optional<std::string> from_raw_unicode_escape(std::string_view line) {
  std::string out;
  for (std::size_t i = 0; i < line.size();) {
    const std::size_t digits = line[i] != '\\' || i + 1 == line.size() ? 0
                               : line[i + 1] == 'u'                    ? 4
                               : line[i + 1] == 'U'                    ? 8
                                                                       : 0;
    if (digits == 0) {
      append_utf8(out, static_cast<unsigned char>(line[i++]));
      continue;
    }
    std::uint32_t code = 0;
    if (!parse_number(line.substr(i + 2, digits), code, 16) || line.size() - i - 2 < digits || code > 0x10ffff)
      return std::nullopt;
    append_utf8(out, code);
    i += 2 + digits;
  }
  return out;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// Python 2's repr() of a string, without its quotes: \n, \x1b, \033. What is no escape keeps its backslash.
std::optional<std::string> from_string_escape(std::string_view line) {
  constexpr std::string_view kLetters = "\\'\"abfnrtv";
  constexpr std::string_view kMeanings = "\\'\"\a\b\f\n\r\t\v";
  std::string out;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\') {
      out.push_back(line[i]);
      continue;
    }
    if (++i == line.size()) return std::nullopt;
    if (const std::size_t letter = kLetters.find(line[i]); letter != std::string_view::npos) {
      out.push_back(kMeanings[letter]);
    } else if (line[i] == 'x') {
      const int high = i + 2 < line.size() ? hex_digit(line[i + 1]) : -1;
      const int low = i + 2 < line.size() ? hex_digit(line[i + 2]) : -1;
      if (high < 0 || low < 0) return std::nullopt;
      out.push_back(static_cast<char>(high * 16 + low));
      i += 2;
    } else if (line[i] >= '0' && line[i] <= '7') {
      unsigned code = 0;
      std::size_t digits = 0;
      for (; digits < 3 && i + digits < line.size() && line[i + digits] >= '0' && line[i + digits] <= '7'; ++digits)
        code = code * 8 + static_cast<unsigned>(line[i + digits] - '0');
      out.push_back(static_cast<char>(code));
      i += digits - 1;
    } else {
      out.push_back('\\');
      out.push_back(line[i]);
    }
  }
  return out;
}

// A decimal as a LONG1 would have it: two's complement, little-endian, as short as its sign allows.
std::optional<std::string> long_of_decimal(std::string_view digits) {
  const bool negative = digits.starts_with('-');
  if (negative) digits.remove_prefix(1);
  if (digits.empty()) return std::nullopt;
  std::vector<std::uint32_t> limbs;
  for (const char digit : digits) {
    if (digit < '0' || digit > '9') return std::nullopt;
    std::uint64_t carry = static_cast<std::uint64_t>(digit - '0');
    for (std::uint32_t& limb : limbs) {
      carry += std::uint64_t{limb} * 10;
      limb = static_cast<std::uint32_t>(carry);
      carry >>= 32;
    }
    if (carry != 0) limbs.push_back(static_cast<std::uint32_t>(carry));
  }
  limbs.push_back(0);  // room for the sign
  std::uint64_t carry = 1;
  for (std::uint32_t& limb : limbs) {
    if (!negative) break;
    carry += static_cast<std::uint32_t>(~limb);
    limb = static_cast<std::uint32_t>(carry);
    carry >>= 32;
  }
  std::string out(reinterpret_cast<const char*>(limbs.data()), limbs.size() * 4);  // little-endian, as all machines
  const char sign = negative ? '\xff' : '\0';
  while (out.size() > 1 && out.back() == sign && ((out[out.size() - 2] ^ sign) & 0x80) == 0) out.pop_back();
  return out;
}

// Today's names of the modules that protocol 2 calls by their Python-2 names.
std::string_view module_today(std::string_view module) {
  if (module == "__builtin__") return "builtins";
  if (module == "copy_reg") return "copyreg";
  return module;
}

// The bytes of a pickle, opcode by opcode, and the first thing that is wrong with them. Every call returns true, or
// keeps the error and returns false.
class PickleInput {
 public:
  explicit PickleInput(std::string_view bytes) : bytes_(bytes) {}

  bool take_opcode(unsigned char& opcode) {
    opcode_at_ = at_;
    if (at_ == bytes_.size()) return fail_early();
    opcode = static_cast<unsigned char>(bytes_[at_++]);
    return true;
  }
  bool take(std::uint64_t count, std::string_view& out) {
    if (count > left()) return fail_early();
    out = bytes_.substr(at_, count);
    at_ += count;
    return true;
  }
  bool take_line(std::string_view& out) {
    const std::size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) return fail_early();
    out = bytes_.substr(at_, end - at_);
    at_ = end + 1;
    return true;
  }
  template <class Number>
  bool take_number(Number& out) {
    std::string_view bytes;
    if (!take(sizeof out, bytes)) return false;
    std::memcpy(&out, bytes.data(), sizeof out);  // little-endian, as all machines we build for
    return true;
  }
  template <class Length>
  bool take_counted(std::string_view& out) {
    Length length = 0;
    return take_number(length) && take(length, out);
  }
  bool expect(std::uint64_t count) { return count <= left() || fail_early(); }  // so many bytes follow

  bool fail(Code code, std::string why) {
    error_ = Error{code, text("offset ", opcode_at_, ": ", why)};
    return false;
  }
  bool fail_early() {
    ended_early_ = true;
    return fail(Code::corrupt, "the pickle ends in the middle");
  }

  [[nodiscard]] std::size_t size_bytes() const { return bytes_.size(); }
  [[nodiscard]] std::size_t taken_bytes() const { return at_; }
  [[nodiscard]] bool ended_early() const { return ended_early_; }
  [[nodiscard]] Error take_error() { return std::move(error_); }

 private:
  [[nodiscard]] std::size_t left() const { return bytes_.size() - at_; }

  std::string_view bytes_;
  std::size_t at_ = 0;
  std::size_t opcode_at_ = 0;
  bool ended_early_ = false;
  Error error_;
};

}  // namespace

class PickleMachine {
 public:
  PickleMachine(std::string_view bytes, const PickleLimits& limits) : in_(bytes), limits_(limits) {
    small_integers_.fill(kNothing);
    tuples_.fill(kNothing);
  }
  Result<Pickle> run();
  [[nodiscard]] bool ended_early() const { return in_.ended_early(); }

 private:
  using Value = Pickle::Value;
  using Node = Pickle::Node;
  static constexpr std::size_t kSharedItemsMax = 8;
  static constexpr std::size_t kNameBytesMax = 4096;  // of a global
  static constexpr std::size_t kDigitsMax = 1000;     // of a decimal: reading one takes the square of its length
  static constexpr std::uint64_t kCheckEvery = 1024;  // opcodes between looks at the memory in use

  // Every step returns true, or keeps the error in the input and returns false.
  bool step();
  bool step_number(unsigned char opcode);
  bool step_text(unsigned char opcode);
  bool step_container(unsigned char opcode);
  bool step_memo(unsigned char opcode);
  bool step_object(unsigned char opcode);

  bool fail(Code code, std::string why) { return in_.fail(code, std::move(why)); }
  bool fail(std::string why) { return fail(Code::corrupt, std::move(why)); }

  // --- The values.
  bool push(Node node);
  bool push_scalar(PickleKind kind, std::uint64_t word) {
    Node node;
    node.kind = kind;
    node.words[0] = static_cast<std::uint32_t>(word);
    node.words[1] = static_cast<std::uint32_t>(word >> 32);
    return push(node);
  }
  bool push_integer(std::int64_t value) { return push_scalar(PickleKind::integer, static_cast<std::uint64_t>(value)); }
  // Values that can't change, and that real pickles have by the million: one stands for all that are equal.
  bool push_shared(Value& shared, PickleKind kind, std::uint64_t word) {
    if (shared == kNothing) {
      if (!push_scalar(kind, word)) return false;
      shared = stack_.back();
    } else {
      stack_.push_back(shared);
    }
    return true;
  }
  bool push_text(PickleKind kind, std::string_view text);
  bool push_utf8(std::string_view text) {
    return is_utf8(text, Surrogates::allowed) ? push_text(PickleKind::string, text) : fail("a string is not UTF-8");
  }
  // Python 2's strings are text to Python 3 where they can be: names of parameters, mostly.
  bool push_old_string(std::string_view text) {
    return push_text(is_utf8(text, Surrogates::allowed) ? PickleKind::string : PickleKind::bytes, text);
  }
  bool push_long(std::string_view little_endian);
  bool push_decimal(std::string_view line);
  bool push_real(std::string_view line);
  bool push_global(std::string_view module, std::string_view name);
  bool push_items(PickleKind kind, std::size_t count);  // made of the topmost values, which it takes
  bool push_tuple(std::size_t count);                   // likewise
  bool push_call(Pickle::Call call, Value callable, Value arguments);
  bool push_instance(unsigned char opcode);  // of a class of Python 2's old kind
  bool push_persistent(Value id);
  bool take_pairs(Value dict, Value arguments);
  bool append(Value container, std::span<const Value> items);
  Pickle::Items& items_of_object(Node& object);
  bool add_items(std::size_t count, bool pairs);
  bool deepen(Node& node, std::uint32_t depth);

  [[nodiscard]] std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  bool need(std::size_t count) { return stack_.size() - floor() >= count || fail("the stack is too short"); }
  Value pop() {
    const Value top = stack_.back();
    stack_.pop_back();
    return top;
  }
  bool pop_mark(std::size_t& count);  // how many values lie above it
  bool remember(std::uint64_t index);
  bool recall(std::uint64_t index);
  [[nodiscard]] std::uint64_t memory_bytes() const {
    return pickle_.nodes_.capacity() * sizeof(Node) + pickle_.text_.capacity() + symbol_bytes_ +
           pickle_.with_items_.capacity() * sizeof(Pickle::WithItems) +
           (pickle_.items_.capacity() + stack_.capacity() + memo_.capacity()) * sizeof(Value) +
           marks_.capacity() * sizeof(std::size_t);
  }

  PickleInput in_;
  PickleLimits limits_;
  std::uint64_t opcodes_ = 0;
  std::uint64_t memoized_ = 0;
  std::uint64_t symbol_bytes_ = 0;
  std::uint64_t pairs_taken_ = 0;  // by take_pairs
  bool stopped_ = false;
  Pickle pickle_;
  std::vector<Value> stack_;
  std::vector<std::size_t> marks_;
  std::vector<Value> memo_;
  std::array<Value, 256> small_integers_;
  std::array<Value, 256> tuples_;  // by hash: the last of the short ones
  Value none_ = kNothing;
  Value true_ = kNothing;
  Value false_ = kNothing;
  Value empty_tuple_ = kNothing;
  std::unordered_map<std::string, std::uint64_t> symbol_index_;  // by module \n name
};

// The steps are inline, since a hundred thousand tensors have ten million opcodes: run() becomes one loop.
inline bool PickleMachine::push(Node node) {
  if (pickle_.nodes_.size() >= kNothing) return fail(Code::full, "too many values");
  pickle_.nodes_.push_back(node);
  stack_.push_back(static_cast<Value>(pickle_.nodes_.size() - 1));
  return true;
}

inline bool PickleMachine::push_text(PickleKind kind, std::string_view text) {
  const std::size_t begin = pickle_.text_.size();
  if (text.size() > kNothing - begin) return fail(Code::full, "too much text");
  Node node;
  node.kind = kind;
  node.words[0] = static_cast<std::uint32_t>(begin);
  node.words[1] = static_cast<std::uint32_t>(text.size());
  node.words[2] = pickle_.texts_++;
  pickle_.text_.append(text);
  return push(node);
}

inline bool PickleMachine::push_long(std::string_view little_endian) {
  const bool negative = !little_endian.empty() && (little_endian.back() & 0x80) != 0;
  const char sign = negative ? '\xff' : '\0';
  std::size_t length = little_endian.size();
  while (length > 8 && little_endian[length - 1] == sign) --length;
  if (length > 8 || (length == 8 && little_endian.size() > 8 && ((little_endian[7] & 0x80) != 0) != negative))
    return push_text(PickleKind::long_integer, little_endian);
  std::uint64_t word = negative ? ~std::uint64_t{0} : 0;
  if (length > 0) std::memcpy(&word, little_endian.data(), length);
  return push_scalar(PickleKind::integer, word);
}

inline bool PickleMachine::push_decimal(std::string_view line) {
  if (line == "00" || line == "01") return push_scalar(PickleKind::boolean, line == "01");  // protocol 0's booleans
  if (!line.empty() && line.back() == 'L') line.remove_suffix(1);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
  if (!line.empty() && error == std::errc() && end == line.data() + line.size()) return push_integer(value);
  if (line.size() > kDigitsMax) return fail(Code::full, text("a decimal of ", line.size(), " digits"));
  const std::optional<std::string> little_endian = long_of_decimal(line);
  return little_endian ? push_long(*little_endian) : fail("a decimal that is not an integer");
}

inline bool PickleMachine::push_real(std::string_view line) {
  double value = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
  if (line.empty() || error != std::errc() || end != line.data() + line.size()) return fail("a bad decimal fraction");
  return push_scalar(PickleKind::real, std::bit_cast<std::uint64_t>(value));
}

inline bool PickleMachine::push_global(std::string_view module, std::string_view name) {
  if (module.empty() || name.empty()) return fail("a global without a name");
  if (module.size() > kNameBytesMax || name.size() > kNameBytesMax)  // one long string may be many globals' names
    return fail(text("a global's name of ", std::max(module.size(), name.size()), " bytes"));
  if (!is_utf8(module, Surrogates::allowed) || !is_utf8(name, Surrogates::allowed))
    return fail("a global's name is not UTF-8");
  module = module_today(module);
  const auto [found, is_new] = symbol_index_.try_emplace(text(module, '\n', name), pickle_.symbols_.size());
  if (is_new) {
    pickle_.symbols_.push_back({std::string(module), std::string(name)});
    symbol_bytes_ += 2 * (module.size() + name.size()) + 256;
  }
  return push_scalar(PickleKind::global, found->second);
}

inline bool PickleMachine::deepen(Node& node, std::uint32_t depth) {
  if (depth > limits_.depth) return fail(Code::full, text("values lie more than ", limits_.depth, " deep"));
  node.depth = std::max(node.depth, static_cast<std::uint16_t>(std::min<std::uint32_t>(depth, 0xffff)));
  return true;
}

// Of an object, whose node has no room for them: from now on with_items_ has them.
Pickle::Items& PickleMachine::items_of_object(Node& object) {
  if (!object.has_items) {
    object.has_items = true;
    pickle_.with_items_.push_back({object.words[1], {}});
    object.words[1] = static_cast<std::uint32_t>(pickle_.with_items_.size() - 1);  // fewer than nodes
  }
  return pickle_.with_items_[object.words[1]].items;
}

inline bool PickleMachine::append(Value container, std::span<const Value> items) {
  Node& node = pickle_.nodes_[container];
  Pickle::Items range = pickle_.items_of(node);
  std::vector<Value>& pool = pickle_.items_;
  if (items.size() > kNothing - range.size) return fail(Code::full, "too many items");
  const auto wanted = static_cast<std::uint32_t>(range.size + items.size());
  if (wanted > range.room) {
    const bool is_last = std::size_t{range.first} + range.room == pool.size();  // it grows where it is
    const std::uint64_t first = is_last ? range.first : pool.size();
    const std::uint64_t room = is_last || range.room == 0 ? wanted : 2 * std::uint64_t{wanted};
    if (first + room > kNothing) return fail(Code::full, "too many items");
    pool.resize(first + room, kNothing);
    if (!is_last) std::copy_n(pool.data() + range.first, range.size, pool.data() + first);
    range.first = static_cast<std::uint32_t>(first);
    range.room = static_cast<std::uint32_t>(room);
  }
  std::uint32_t depth = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    pool[range.first + range.size + i] = items[i];
    depth = std::max<std::uint32_t>(depth, pickle_.nodes_[items[i]].depth);
  }
  range.size = wanted;
  if (node.kind == PickleKind::object)
    items_of_object(node) = range;
  else
    std::ranges::copy(std::array{range.first, range.size, range.room}, node.words);
  return deepen(node, depth + 1);
}

inline bool PickleMachine::push_items(PickleKind kind, std::size_t count) {
  std::vector<Value>& pool = pickle_.items_;
  if (count > kNothing - std::min<std::size_t>(pool.size(), kNothing)) return fail(Code::full, "too many items");
  const std::span<const Value> items = std::span(stack_).last(count);
  Node node;
  node.kind = kind;
  node.words[0] = static_cast<std::uint32_t>(pool.size());
  node.words[1] = node.words[2] = static_cast<std::uint32_t>(count);
  pool.insert(pool.end(), items.begin(), items.end());
  std::uint32_t depth = 0;
  for (const Value item : items) depth = std::max<std::uint32_t>(depth, pickle_.nodes_[item].depth);
  if (!deepen(node, depth + 1)) return false;
  stack_.resize(stack_.size() - count);
  return push(node);
}

// Shapes and offsets, mostly: a few stand for hundreds of thousands.
inline bool PickleMachine::push_tuple(std::size_t count) {
  const std::span<const Value> items = std::span(stack_).last(count);
  if (count > kSharedItemsMax) return push_items(PickleKind::tuple, count);
  std::uint64_t hash = count;
  for (const Value item : items) hash = (hash ^ item) * 0x9e3779b97f4a7c15u;
  Value& shared = tuples_[hash >> 56];
  if (shared == kNothing || !std::ranges::equal(pickle_.items(shared), items)) {
    if (!push_items(PickleKind::tuple, count)) return false;
    shared = stack_.back();
    return true;
  }
  stack_.resize(stack_.size() - count);
  stack_.push_back(shared);
  return true;
}

inline bool PickleMachine::push_call(Pickle::Call call, Value callable, Value arguments) {
  const PickleKind what = pickle_.kind(callable);
  // A persistent id stands for a class where torch kept a module's source beside it.
  if (what != PickleKind::global && what != PickleKind::object && what != PickleKind::persistent)
    return fail(text("a call of ", pickle_.describe(callable)));
  if (pickle_.kind(arguments) != PickleKind::tuple)
    return fail(text("a call with ", pickle_.describe(arguments), " for its arguments"));
  Node node;
  node.kind = PickleKind::object;
  node.call = call;
  std::ranges::copy(std::array{callable, arguments, kNothing}, node.words);
  const std::uint32_t depth = std::max(pickle_.nodes_[callable].depth, pickle_.nodes_[arguments].depth);
  if (!deepen(node, depth + 1) || !push(node)) return false;
  return !pickle_.class_of(stack_.back()).is("collections", "OrderedDict") || take_pairs(stack_.back(), arguments);
}

// Python 2 gives an OrderedDict its items as one list of pairs. Each list is written once, so an honest pickle has
// fewer pairs than bytes.
bool PickleMachine::take_pairs(Value dict, Value arguments) {
  const std::span<const Value> given = pickle_.items(arguments);
  if (given.size() != 1 || !pickle_.is(given[0], PickleKind::list)) return true;
  std::vector<Value> items;
  for (const Value pair : pickle_.items(given[0])) {
    const std::span<const Value> both = pickle_.items(pair);
    const bool is_pair = pickle_.is(pair, PickleKind::list) || pickle_.is(pair, PickleKind::tuple);
    if (!is_pair || both.size() != 2) return fail(text("an OrderedDict's item is ", pickle_.describe(pair)));
    items.insert(items.end(), both.begin(), both.end());
  }
  pairs_taken_ += items.size() / 2;
  if (pairs_taken_ > in_.size_bytes()) return fail(Code::full, "one list of pairs is given to too many dicts");
  stack_.insert(stack_.end(), items.begin(), items.end());
  return stack_[stack_.size() - items.size() - 1] == dict && add_items(items.size(), true);
}

bool PickleMachine::push_instance(unsigned char opcode) {
  std::size_t count = 0;
  if (opcode == kInst) {  // mark, arguments; the class is named in place
    std::string_view module, name;
    if (!in_.take_line(module) || !in_.take_line(name) || !pop_mark(count) || !push_tuple(count) ||
        !push_global(module, name))
      return false;
    const Value callable = pop();
    return push_call(Pickle::Call::reduce, callable, pop());
  }
  if (!pop_mark(count)) return false;  // mark, class, arguments
  if (count == 0) return fail("an instance without its class");
  if (!push_tuple(count - 1)) return false;
  const Value arguments = pop();
  return push_call(Pickle::Call::reduce, pop(), arguments);
}

bool PickleMachine::push_persistent(Value id) {
  Node node;
  node.kind = PickleKind::persistent;
  std::ranges::copy(std::array{kNothing, id, kNothing}, node.words);
  return deepen(node, pickle_.nodes_[id].depth + 1u) && push(node);
}

inline bool PickleMachine::pop_mark(std::size_t& count) {
  if (marks_.empty()) return fail("there is no mark");
  count = stack_.size() - marks_.back();
  marks_.pop_back();
  return true;
}

// The topmost `count` values go into the container below them.
inline bool PickleMachine::add_items(std::size_t count, bool pairs) {
  if (pairs && count % 2 != 0) return fail("a key without a value");
  if (!need(count + 1)) return false;
  const std::span<const Value> items = std::span(stack_).last(count);
  const Value container = stack_[stack_.size() - count - 1];
  Node& node = pickle_.nodes_[container];
  const bool takes = node.kind == PickleKind::object ? pickle_.items_of(node).size == 0 || node.holds_pairs == pairs
                     : pairs                         ? node.kind == PickleKind::dict
                                                     : node.kind == PickleKind::list || node.kind == PickleKind::set;
  if (!takes) return fail(text(pickle_.describe(container), " takes no ", pairs ? "keys" : "items"));
  for (std::size_t i = 0; i < items.size() && (pairs || node.kind == PickleKind::set); i += pairs ? 2 : 1)
    if (!can_be_key(pickle_.kind(items[i]))) return fail(text(pickle_.describe(items[i]), " can't be a key"));
  node.holds_pairs = pairs;
  if (!append(container, items)) return false;
  stack_.resize(stack_.size() - count);
  return true;
}

inline bool PickleMachine::remember(std::uint64_t index) {
  if (!need(1)) return false;
  // Each PUT takes two bytes at least, so an honest index stays below the length of its pickle.
  if (index > in_.size_bytes())
    return fail(Code::full, text("memo index ", index, " in a pickle of ", in_.size_bytes(), " bytes"));
  if (index == memo_.size()) {
    memo_.push_back(stack_.back());
  } else {
    if (index > memo_.size()) memo_.resize(index + 1, kNothing);
    memo_[index] = stack_.back();
  }
  ++memoized_;
  return true;
}

inline bool PickleMachine::recall(std::uint64_t index) {
  if (index >= memo_.size() || memo_[index] == kNothing) return fail(text("memo index ", index, " was never written"));
  stack_.push_back(memo_[index]);
  return true;
}

inline bool PickleMachine::step_number(unsigned char opcode) {
  std::string_view bytes;
  std::int32_t wide = 0;
  switch (opcode) {
    case kNone:
      return push_shared(none_, PickleKind::none, 0);
    case kNewTrue:
      return push_shared(true_, PickleKind::boolean, 1);
    case kNewFalse:
      return push_shared(false_, PickleKind::boolean, 0);
    case kBinInt:
      return in_.take_number(wide) && push_integer(wide);
    case kBinInt1:
      if (!in_.take(1, bytes)) return false;
      return push_shared(small_integers_[static_cast<unsigned char>(bytes[0])], PickleKind::integer,
                         static_cast<unsigned char>(bytes[0]));
    case kBinInt2: {
      std::uint16_t value = 0;
      return in_.take_number(value) && push_integer(value);
    }
    case kLong1:
      return in_.take_counted<std::uint8_t>(bytes) && push_long(bytes);
    case kLong4:
      if (!in_.take_number(wide)) return false;
      if (wide < 0) return fail("an integer of negative length");
      return in_.take(static_cast<std::uint64_t>(wide), bytes) && push_long(bytes);
    case kBinFloat: {
      std::uint64_t word = 0;
      return in_.take_number(word) && push_scalar(PickleKind::real, __builtin_bswap64(word));
    }
    case kInt:
    case kLong:
      return in_.take_line(bytes) && push_decimal(bytes);
    default:
      return in_.take_line(bytes) && push_real(bytes);  // kFloat
  }
}

inline bool PickleMachine::step_text(unsigned char opcode) {
  std::string_view bytes;
  switch (opcode) {
    case kBinUnicode:
      return in_.take_counted<std::uint32_t>(bytes) && push_utf8(bytes);
    case kShortBinUnicode:
      return in_.take_counted<std::uint8_t>(bytes) && push_utf8(bytes);
    case kBinUnicode8:
      return in_.take_counted<std::uint64_t>(bytes) && push_utf8(bytes);
    case kBinString:
      return in_.take_counted<std::uint32_t>(bytes) && push_old_string(bytes);
    case kShortBinString:
      return in_.take_counted<std::uint8_t>(bytes) && push_old_string(bytes);
    case kShortBinBytes:
      return in_.take_counted<std::uint8_t>(bytes) && push_text(PickleKind::bytes, bytes);
    case kBinBytes:
      return in_.take_counted<std::uint32_t>(bytes) && push_text(PickleKind::bytes, bytes);
    case kBinBytes8:
    case kByteArray8:
      return in_.take_counted<std::uint64_t>(bytes) && push_text(PickleKind::bytes, bytes);
    case kUnicode: {
      if (!in_.take_line(bytes)) return false;
      const std::optional<std::string> decoded = from_raw_unicode_escape(bytes);
      return decoded ? push_text(PickleKind::string, *decoded) : fail("a bad \\u in a string");
    }
    default: {  // kString: Python 2 wrote it, quoted
      if (!in_.take_line(bytes)) return false;
      if (bytes.size() < 2 || bytes.front() != bytes.back() || (bytes.front() != '\'' && bytes.front() != '"'))
        return fail("a string without its quotes");
      const std::optional<std::string> decoded = from_string_escape(bytes.substr(1, bytes.size() - 2));
      return decoded ? push_old_string(*decoded) : fail("a bad \\ in a string");
    }
  }
}

inline bool PickleMachine::step_container(unsigned char opcode) {
  std::size_t count = 0;
  switch (opcode) {
    case kMark:
      marks_.push_back(stack_.size());
      return true;
    case kPop:
      if (stack_.size() == floor() && !marks_.empty()) {
        marks_.pop_back();
        return true;
      }
      if (!need(1)) return false;
      stack_.pop_back();
      return true;
    case kPopMark:
      if (!pop_mark(count)) return false;
      stack_.resize(stack_.size() - count);
      return true;
    case kDup:
      if (!need(1)) return false;
      stack_.push_back(stack_.back());
      return true;
    case kEmptyTuple:
      return push_shared(empty_tuple_, PickleKind::tuple, 0);
    case kEmptyList:
      return push_items(PickleKind::list, 0);
    case kEmptyDict:
      return push_items(PickleKind::dict, 0);
    case kEmptySet:
      return push_items(PickleKind::set, 0);
    case kTuple1:
    case kTuple2:
    case kTuple3:
      count = opcode - kTuple1 + 1u;
      return need(count) && push_tuple(count);
    case kTuple:
      return pop_mark(count) && push_tuple(count);
    case kList:
      return pop_mark(count) && push_items(PickleKind::list, count);
    case kFrozenSet:
      return pop_mark(count) && push_items(PickleKind::frozenset, count);
    case kDict: {
      if (!pop_mark(count)) return false;
      const std::vector<Value> items(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
      stack_.resize(stack_.size() - count);
      if (!push_items(PickleKind::dict, 0)) return false;
      stack_.insert(stack_.end(), items.begin(), items.end());
      return add_items(count, true);
    }
    case kAppend:
      return need(2) && add_items(1, false);
    case kSetItem:
      return need(3) && add_items(2, true);
    case kSetItems:
      return pop_mark(count) && add_items(count, true);
    default:
      return pop_mark(count) && add_items(count, false);  // kAppends, kAddItems
  }
}

inline bool PickleMachine::step_memo(unsigned char opcode) {
  std::uint32_t wide = 0;
  std::uint8_t narrow = 0;
  std::uint64_t index = 0;
  std::string_view line;
  switch (opcode) {
    case kMemoize:
      return remember(memoized_);
    case kBinPut:
      return in_.take_number(narrow) && remember(narrow);
    case kLongBinPut:
      return in_.take_number(wide) && remember(wide);
    case kBinGet:
      return in_.take_number(narrow) && recall(narrow);
    case kLongBinGet:
      return in_.take_number(wide) && recall(wide);
    default:  // kPut, kGet
      if (!in_.take_line(line)) return false;
      if (!parse_number(line, index)) return fail("a memo index that is not a number");
      return opcode == kPut ? remember(index) : recall(index);
  }
}

inline bool PickleMachine::step_object(unsigned char opcode) {
  switch (opcode) {
    case kGlobal: {
      std::string_view module, name;
      return in_.take_line(module) && in_.take_line(name) && push_global(module, name);
    }
    case kStackGlobal: {
      if (!need(2)) return false;
      const Value name = pop();
      const Value module = pop();
      if (pickle_.kind(module) != PickleKind::string || pickle_.kind(name) != PickleKind::string)
        return fail("a global whose name is not a string");
      return push_global(pickle_.text(module), pickle_.text(name));
    }
    case kReduce:
    case kNewObj: {
      if (!need(2)) return false;
      const Value arguments = pop();
      const Value callable = pop();
      return push_call(opcode == kReduce ? Pickle::Call::reduce : Pickle::Call::newobj, callable, arguments);
    }
    case kNewObjEx: {
      if (!need(3)) return false;
      if (!push_items(PickleKind::tuple, 2)) return false;
      const Value arguments = pop();
      const Value callable = pop();
      return push_call(Pickle::Call::newobj_ex, callable, arguments);
    }
    case kBuild: {
      if (!need(2)) return false;
      const Value state = pop();
      Node& node = pickle_.nodes_[stack_.back()];
      if (node.kind != PickleKind::object) return fail(text("a state for ", pickle_.describe(stack_.back())));
      if (node.words[2] != kNothing) return fail("a second state for one object");
      node.words[2] = state;
      return deepen(node, pickle_.nodes_[state].depth + 1u);
    }
    case kInst:
    case kObj:
      return push_instance(opcode);
    case kPersId: {
      std::string_view id;
      return in_.take_line(id) && push_utf8(id) && push_persistent(pop());
    }
    default:  // kBinPersId
      return need(1) && push_persistent(pop());
  }
}

inline bool PickleMachine::step() {
  unsigned char opcode = 0;
  if (!in_.take_opcode(opcode)) return false;
  switch (opcode) {
    case kProto: {
      std::uint8_t protocol = 0;
      if (!in_.take_number(protocol)) return false;
      return protocol <= 5 || fail(text("protocol ", protocol, " is not known"));
    }
    case kFrame: {
      std::uint64_t length = 0;
      if (!in_.take_number(length)) return false;
      return in_.expect(length);
    }
    case kStop:
      if (!marks_.empty() || stack_.size() != 1)
        return fail(text("the end, with ", stack_.size(), " values and ", marks_.size(), " marks left"));
      pickle_.root_ = stack_.back();
      stopped_ = true;
      return true;
    case kNone:
    case kNewTrue:
    case kNewFalse:
    case kBinInt:
    case kBinInt1:
    case kBinInt2:
    case kLong1:
    case kLong4:
    case kBinFloat:
    case kInt:
    case kLong:
    case kFloat:
      return step_number(opcode);
    case kBinUnicode:
    case kShortBinUnicode:
    case kBinUnicode8:
    case kBinString:
    case kShortBinString:
    case kBinBytes:
    case kShortBinBytes:
    case kBinBytes8:
    case kByteArray8:
    case kUnicode:
    case kString:
      return step_text(opcode);
    case kMark:
    case kPop:
    case kPopMark:
    case kDup:
    case kEmptyTuple:
    case kEmptyList:
    case kEmptyDict:
    case kEmptySet:
    case kTuple1:
    case kTuple2:
    case kTuple3:
    case kTuple:
    case kList:
    case kFrozenSet:
    case kDict:
    case kAppend:
    case kSetItem:
    case kSetItems:
    case kAppends:
    case kAddItems:
      return step_container(opcode);
    case kMemoize:
    case kBinPut:
    case kLongBinPut:
    case kBinGet:
    case kLongBinGet:
    case kPut:
    case kGet:
      return step_memo(opcode);
    case kGlobal:
    case kStackGlobal:
    case kReduce:
    case kNewObj:
    case kNewObjEx:
    case kBuild:
    case kInst:
    case kObj:
    case kPersId:
    case kBinPersId:
      return step_object(opcode);
    default:
      return fail(text("opcode ", static_cast<unsigned>(opcode), " is none that checkpoints use"));
  }
}

Result<Pickle> PickleMachine::run() {
  if (in_.size_bytes() > limits_.source_bytes || in_.size_bytes() >= 0xffff'ffffu)
    return Error{Code::full, text("a pickle of ", in_.size_bytes(), " bytes")};
  // As many as metadata have: growing by doubling would touch twice the memory. Untouched, it costs nothing.
  pickle_.nodes_.reserve(std::min<std::size_t>(in_.size_bytes() / 8, limits_.memory_bytes / 4 / sizeof(Node)));
  pickle_.items_.reserve(std::min<std::size_t>(in_.size_bytes() / 4, limits_.memory_bytes / 16 / sizeof(Value)));
  memo_.reserve(std::min<std::size_t>(in_.size_bytes() / 8, limits_.memory_bytes / 16 / sizeof(Value)));
  pickle_.text_.reserve(std::min<std::size_t>(in_.size_bytes() / 4, limits_.memory_bytes / 16));
  prefer_huge_pages(pickle_.nodes_);
  prefer_huge_pages(pickle_.items_);
  prefer_huge_pages(memo_);
  prefer_huge_pages(pickle_.text_.data(), pickle_.text_.capacity());
  while (!stopped_) {
    if (!step()) return in_.take_error();
    if (++opcodes_ % kCheckEvery == 0 && memory_bytes() > limits_.memory_bytes) {
      (void)fail(Code::full, text("values take more than ", limits_.memory_bytes, " bytes"));
      return in_.take_error();
    }
  }
  pickle_.source_bytes_ = in_.taken_bytes();
  return std::move(pickle_);
}

Result<Pickle> parse_pickle(std::string_view bytes, const PickleLimits& limits, bool* ended_early) {
  PickleMachine machine(bytes, limits);
  Result<Pickle> result = machine.run();
  if (ended_early != nullptr) *ended_early = machine.ended_early();
  return result;
}

std::string_view name_of(PickleKind kind) {
  static constexpr std::string_view kNames[] = {
      "None",   "a bool", "an integer", "a long integer", "a float",  "a string",  "bytes",          "a tuple",
      "a list", "a dict", "a set",      "a frozenset",    "a global", "an object", "a persistent id"};
  return kNames[static_cast<std::size_t>(kind)];
}

bool Pickle::boolean(Value value) const {
  return is(value, PickleKind::boolean) && word(value) != 0;
}

std::optional<std::int64_t> Pickle::integer(Value value) const {
  if (!is(value, PickleKind::integer) && !is(value, PickleKind::boolean)) return std::nullopt;
  return static_cast<std::int64_t>(word(value));
}

std::optional<std::uint64_t> Pickle::unsigned_(Value value) const {
  const std::optional<std::int64_t> number = integer(value);
  if (!number || *number < 0) return std::nullopt;
  return static_cast<std::uint64_t>(*number);
}

double Pickle::real(Value value) const {
  return is(value, PickleKind::real) ? std::bit_cast<double>(word(value)) : 0;
}

std::string_view Pickle::text(Value value) const {
  if (value >= count() || !is_text(nodes_[value].kind)) return {};
  return std::string_view(text_).substr(nodes_[value].words[0], nodes_[value].words[1]);
}

std::uint32_t Pickle::text_number(Value value) const {
  return value < count() && is_text(nodes_[value].kind) ? nodes_[value].words[2] : 0;
}

Pickle::Items Pickle::items_of(const Node& node) const {
  if (node.kind != PickleKind::object) return {node.words[0], node.words[1], node.words[2]};
  return node.has_items ? with_items_[node.words[1]].items : Items{};
}

std::span<const Pickle::Value> Pickle::items(Value value) const {
  if (value >= count() || !has_items(nodes_[value].kind)) return {};
  const Items range = items_of(nodes_[value]);
  return std::span(items_).subspan(range.first, range.size);
}

const PickleSymbol& Pickle::symbol(Value value) const {
  static const PickleSymbol nothing;
  return is(value, PickleKind::global) ? symbols_[nodes_[value].words[0]] : nothing;
}

Pickle::Object Pickle::object(Value value) const {
  if (!is(value, PickleKind::object) && !is(value, PickleKind::persistent))
    return {Call::reduce, kNothing, kNothing, kNothing, false};
  const Node& node = nodes_[value];
  const Value arguments = node.has_items ? with_items_[node.words[1]].arguments : node.words[1];
  return {node.call, node.words[0], arguments, node.words[2], node.holds_pairs};
}

Pickle::Value Pickle::find_field(Value record, std::string_view key) const {
  return items(record).size() <= kRecordItemsMax ? find(record, key) : kNothing;
}

bool Pickle::holds_pairs(Value value) const {
  return is(value, PickleKind::dict) || (is(value, PickleKind::object) && object(value).holds_pairs);
}

Pickle::Value Pickle::find(Value dict, std::string_view key) const {
  if (!holds_pairs(dict)) return kNothing;
  const std::span<const Value> pairs = items(dict);
  for (std::size_t i = pairs.size(); i >= 2; i -= 2)
    if (is(pairs[i - 2], PickleKind::string) && text(pairs[i - 2]) == key) return pairs[i - 1];
  return kNothing;
}

std::string Pickle::describe(Value value) const {
  if (value >= count()) return "nothing";
  const PickleKind what = kind(value);
  if (what == PickleKind::global) return pawl::text("the global ", symbol(value).module, '.', symbol(value).name);
  if (what == PickleKind::object && is(object(value).callable, PickleKind::global))
    return pawl::text("a call of ", class_of(value).module, '.', class_of(value).name);
  if (what == PickleKind::integer) return pawl::text("the integer ", *integer(value));
  if (what == PickleKind::string) return pawl::text("the string \"", text(value).substr(0, 80), '"');
  if (has_items(what)) return pawl::text(name_of(what), " of ", items(value).size());
  return std::string(name_of(what));
}

}  // namespace pawl::checkpoint
