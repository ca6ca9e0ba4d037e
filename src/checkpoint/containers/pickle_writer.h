// PickleWriter: a pickle, opcode by opcode, as torch.save and DCP write them. The other half of
// checkpoint/containers/pickle.h.
//
// A value is written where it belongs: each call pushes one, or takes what the calls before it pushed. So
//   w.empty_dict(); w.mark(); w.string("a"); w.integer(1); w.set_items();
// is {"a": 1}; and a call f(1, 2) is w.global("m", "f"); w.integer(1); w.integer(2); w.tuple(2); w.reduce().
// What always holds: what is written is what Python's unpickler of any version 3, torch's restricted one and our own
// reader take for those values; equal calls give equal bytes; a global is written once and recalled from then on.
// Names of modules are today's (builtins, copyreg): protocol 2 gets its older ones here.
// It does not check that the calls are balanced: reading back what was written does (pickle.h), and tests do that.
// Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace pawl::checkpoint {

class PickleWriter {
 public:
  // 2: what torch.save writes. 3 to 5: bytes are bytes, and not a call that makes them. 4, 5: short strings are
  // shorter.
  explicit PickleWriter(std::uint8_t protocol = 2);

  // --- Each pushes one value.
  void none() { opcode('N'); }
  void boolean(bool value) { opcode(value ? '\x88' : '\x89'); }
  void integer(std::int64_t value);
  void unsigned_(std::uint64_t value);
  void long_integer(std::string_view little_endian);  // two's complement, up to 4 GiB, as Pickle::text() has it
  void real(double value);
  void string(std::string_view utf8);  // up to 4 GiB
  void bytes(std::string_view bytes);  // protocol 2: a call of _codecs.encode, as Python has it
  void empty_dict() { opcode('}'); }
  void empty_list() { opcode(']'); }
  void empty_tuple() { opcode(')'); }
  void global(std::string_view module, std::string_view name);
  void recall(std::uint32_t memo);

  // --- Each takes what was pushed since mark() and, of the middle two, adds it to the container below.
  void mark() { opcode('('); }
  void set_items() { opcode('u'); }     // key, value, key, value, ... into a dict, or an object
  void append_items() { opcode('e'); }  // into a list
  void tuple() { opcode('t'); }         // makes one of it

  // --- Each takes so many values from the top, and pushes its own.
  void tuple(std::uint32_t count);        // the topmost 0 to 3
  void set_item() { opcode('s'); }        // dict, key, value: the dict stays
  void append_item() { opcode('a'); }     // list, value: the list stays
  void reduce() { opcode('R'); }          // callable, tuple of its arguments: the call
  void newobj() { opcode('\x81'); }       // class, tuple of its arguments: the object
  void build() { opcode('b'); }           // object, state: the object stays
  void persistent_id() { opcode('Q'); }   // id: what it stands for
  void pop() { opcode('0'); }             // the topmost goes
  [[nodiscard]] std::uint32_t memoize();  // remembers the topmost, which stays: recall() pushes it once more

  // The whole pickle, with STOP. The writer is used up.
  [[nodiscard]] std::string finish();
  [[nodiscard]] std::uint64_t size_bytes() const { return out_.size(); }  // so far

 private:
  void opcode(char code) { out_.push_back(code); }
  template <class Number>
  void little_endian(Number value);

  std::uint8_t protocol_;
  std::uint32_t memoized_ = 0;
  std::string out_;
  std::map<std::pair<std::string, std::string>, std::uint32_t, std::less<>> globals_;
};

}  // namespace pawl::checkpoint
