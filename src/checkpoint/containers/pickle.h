// Pickle: the tree of values that a pickle describes, read without executing anything.
//
// Protocols 0 to 5, as Python 3 and Python 2 write them. A global is a name and stays one; a call (REDUCE, NEWOBJ, INST)
// is an object that remembers whom it would have called with what, and the state it would have been given. What a name
// means is for the layer above (torch_file.h, dcp.h). Of Python 2: module names (__builtin__, copy_reg) are given in
// today's form; its strings are strings where they are UTF-8, else bytes, as Python 3 reads them; an OrderedDict holds
// the pairs that it was given.
//
// What always holds: nothing is called, imported or opened; time and memory are linear in the input, whoever wrote it;
// nothing here recurses. The values are a graph: a memo makes two parents share a child, and a list may hold itself, so
// a walk needs a limit of its own. Opcodes that name a table of the program's own (EXT) are errors.
// Pure. A Pickle owns all it shows; views last until it moves or goes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace pawl::checkpoint {

enum class PickleKind : std::uint8_t {
  none,
  boolean,
  integer,
  long_integer,  // beyond 64 bits: text() is its two's complement, little-endian
  real,
  string,
  bytes,
  tuple,
  list,
  dict,  // items() are key, value, key, value, ...
  set,
  frozenset,
  global,      // symbol()
  object,      // object(); items() are what was appended or set on it
  persistent,  // object().arguments is the id: protocol 0 has its text
};
[[nodiscard]] std::string_view name_of(PickleKind kind);

struct PickleLimits {
  std::uint64_t source_bytes = std::uint64_t{1} << 30;
  std::uint64_t memory_bytes = std::uint64_t{4} << 30;
  std::uint32_t depth = 1000;  // of values inside values
};

struct PickleSymbol {
  std::string module;
  std::string name;
  [[nodiscard]] bool is(std::string_view a_module, std::string_view a_name) const {
    return module == a_module && name == a_name;
  }
};

class Pickle {
 public:
  using Value = std::uint32_t;
  static constexpr Value kNothing = ~Value{0};
  enum class Call : std::uint8_t { reduce, newobj, newobj_ex };  // newobj_ex: arguments is a tuple (args, kwargs)
  struct Object {
    Call call;
    Value callable;    // a global, an object or a persistent id
    Value arguments;   // a tuple
    Value state;       // kNothing without BUILD
    bool holds_pairs;  // its items() came by SETITEM(S)
  };

  [[nodiscard]] Value root() const { return root_; }
  // Values are numbered 0.. in order of their first opcode: what a tuple or a call holds has lower numbers than it.
  [[nodiscard]] Value count() const { return static_cast<Value>(nodes_.size()); }
  [[nodiscard]] PickleKind kind(Value value) const { return nodes_[value].kind; }
  [[nodiscard]] bool is(Value value, PickleKind kind) const { return value < count() && nodes_[value].kind == kind; }

  // Each is for the kinds named above, and harmless on others: nothing, zero, empty.
  [[nodiscard]] bool boolean(Value value) const;
  [[nodiscard]] std::optional<std::int64_t> integer(Value value) const;     // booleans too: 0 and 1
  [[nodiscard]] std::optional<std::uint64_t> unsigned_(Value value) const;  // of integers that are not negative
  [[nodiscard]] double real(Value value) const;
  [[nodiscard]] std::string_view text(Value value) const;  // of string, bytes, long_integer
  // Those are numbered 0.. in their order: a table of what a reader knows of each string is small. Of others: 0.
  [[nodiscard]] std::uint32_t text_number(Value value) const;
  [[nodiscard]] std::uint32_t text_count() const { return texts_; }
  [[nodiscard]] std::span<const Value> items(Value value) const;
  [[nodiscard]] const PickleSymbol& symbol(Value value) const;
  [[nodiscard]] Object object(Value value) const;
  // The symbol of what an object's call names; an empty one if that is no global.
  [[nodiscard]] const PickleSymbol& class_of(Value value) const { return symbol(object(value).callable); }
  // What a dict, or an object's pairs, hold under that string: the last one, as Python has it. Linear: for dicts that
  // are looked into once.
  [[nodiscard]] Value find(Value dict, std::string_view key) const;
  // The same of a dict that a program writes as a record, and of which there may be many: a file can name one large
  // dict a million times, so what has more items than a record has is none.
  static constexpr std::size_t kRecordItemsMax = 512;
  [[nodiscard]] Value find_field(Value record, std::string_view key) const;
  [[nodiscard]] bool holds_pairs(Value value) const;  // a dict, or an object that is one, too
  // For people: "a list of 3", "a call of torch._utils._rebuild_tensor_v2".
  [[nodiscard]] std::string describe(Value value) const;

  [[nodiscard]] std::uint64_t source_bytes() const { return source_bytes_; }  // up to and with STOP

 private:
  friend class PickleMachine;
  // Sixteen bytes, since metadata have millions. What the words are:
  //   scalars     low half, high half
  //   text        offset in text_, how many bytes, how many texts came before
  //   containers  as Items
  //   object      callable, arguments, state; with items: callable, which of with_items_, state
  //   global      which of symbols_
  struct Node {
    PickleKind kind = PickleKind::none;
    Call call : 4 = Call::reduce;
    bool holds_pairs : 1 = false;
    bool has_items : 1 = false;  // of objects
    std::uint16_t depth = 1;
    std::uint32_t words[3] = {0, 0, 0};
  };
  static_assert(sizeof(Node) == 16);
  struct Items {
    std::uint32_t first = 0;  // in items_
    std::uint32_t size = 0;
    std::uint32_t room = 0;  // how many fit where they are
  };
  struct WithItems {  // an object
    Value arguments;
    Items items;
  };
  [[nodiscard]] std::uint64_t word(Value value) const {
    return std::uint64_t{nodes_[value].words[1]} << 32 | nodes_[value].words[0];
  }
  [[nodiscard]] Items items_of(const Node& node) const;

  std::vector<Node> nodes_;
  std::vector<WithItems> with_items_;
  std::vector<Value> items_;
  std::string text_;
  std::uint32_t texts_ = 0;
  std::vector<PickleSymbol> symbols_;
  Value root_ = kNothing;
  std::uint64_t source_bytes_ = 0;
};

// One pickle at the start of `bytes`; what follows STOP is not looked at (see source_bytes). `bytes` is used during the
// call only. Fails: `corrupt` with offset and reason; `full` past a limit. `*ended_early`, if given, says whether it
// failed for lack of bytes.
[[nodiscard]] Result<Pickle> parse_pickle(std::string_view bytes, const PickleLimits& limits = {},
                                          bool* ended_early = nullptr);

inline constexpr Pickle::Value kNothing = Pickle::kNothing;  // as readers write it

}  // namespace pawl::checkpoint
