#include "checkpoint/containers/pickle_writer.h"

#include <bit>
#include <cstring>
#include <limits>

namespace pawl::checkpoint {
namespace {

// What protocol 2 calls the modules that Python 3 renamed.
std::string_view module_of_old(std::string_view module) {
  if (module == "builtins") return "__builtin__";
  if (module == "copyreg") return "copy_reg";
  return module;
}

}  // namespace

PickleWriter::PickleWriter(std::uint8_t protocol) : protocol_(protocol) {
  opcode('\x80');
  out_.push_back(static_cast<char>(protocol));
}

template <class Number>
void PickleWriter::little_endian(Number value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);  // little-endian, as all machines we build for
  out_.append(bytes, sizeof value);
}

void PickleWriter::integer(std::int64_t value) {
  if (value >= 0 && value < 256) {
    opcode('K');
    little_endian(static_cast<std::uint8_t>(value));
  } else if (value >= 0 && value < 65536) {
    opcode('M');
    little_endian(static_cast<std::uint16_t>(value));
  } else if (value >= std::numeric_limits<std::int32_t>::min() && value <= std::numeric_limits<std::int32_t>::max()) {
    opcode('J');
    little_endian(static_cast<std::int32_t>(value));
  } else {
    opcode('\x8a');
    std::uint8_t length = 8;
    const auto word = static_cast<std::uint64_t>(value);
    // As short as its sign allows, as Python has it.
    while (length > 5 && (word >> (8 * length - 9) == 0 || ~word >> (8 * length - 9) == 0)) --length;
    little_endian(length);
    for (std::uint8_t i = 0; i < length; ++i) out_.push_back(static_cast<char>(word >> (8 * i) & 0xff));
  }
}

void PickleWriter::unsigned_(std::uint64_t value) {
  if (value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    return integer(static_cast<std::int64_t>(value));
  opcode('\x8a');
  little_endian(std::uint8_t{9});
  little_endian(value);
  out_.push_back('\0');
}

void PickleWriter::long_integer(std::string_view little) {
  if (little.size() < 256) {
    opcode('\x8a');
    little_endian(static_cast<std::uint8_t>(little.size()));
  } else {
    opcode('\x8b');
    little_endian(static_cast<std::uint32_t>(little.size()));
  }
  out_.append(little);
}

void PickleWriter::real(double value) {
  opcode('G');
  const auto word = std::bit_cast<std::uint64_t>(value);
  for (int shift = 56; shift >= 0; shift -= 8) out_.push_back(static_cast<char>(word >> shift & 0xff));
}

void PickleWriter::string(std::string_view utf8) {
  if (protocol_ >= 4 && utf8.size() < 256) {
    opcode('\x8c');
    little_endian(static_cast<std::uint8_t>(utf8.size()));
  } else {
    opcode('X');
    little_endian(static_cast<std::uint32_t>(utf8.size()));
  }
  out_.append(utf8);
}

void PickleWriter::bytes(std::string_view bytes) {
  if (protocol_ >= 3) {
    opcode(bytes.size() < 256 ? 'C' : 'B');
    if (bytes.size() < 256)
      little_endian(static_cast<std::uint8_t>(bytes.size()));
    else
      little_endian(static_cast<std::uint32_t>(bytes.size()));
    out_.append(bytes);
  } else if (bytes.empty()) {
    global("builtins", "bytes");
    empty_tuple();
    reduce();
  } else {
    std::string utf8;
    for (const char byte : bytes) {
      const auto code = static_cast<unsigned char>(byte);
      if (code >= 0x80) utf8.push_back(static_cast<char>(0xc0 | code >> 6));
      utf8.push_back(static_cast<char>(code < 0x80 ? code : 0x80 | (code & 0x3f)));
    }
    global("_codecs", "encode");
    string(utf8);
    string("latin1");
    tuple(2);
    reduce();
  }
}

void PickleWriter::tuple(std::uint32_t count) {
  static constexpr char kOpcodes[] = {')', '\x85', '\x86', '\x87'};
  opcode(kOpcodes[count & 3]);
}

void PickleWriter::global(std::string_view module, std::string_view name) {
  auto [at, is_new] = globals_.try_emplace({std::string(module), std::string(name)}, 0);
  if (!is_new) return recall(at->second);
  opcode('c');
  out_.append(protocol_ < 3 ? module_of_old(module) : module);
  out_.push_back('\n');
  out_.append(name);
  out_.push_back('\n');
  at->second = memoize();
}

std::uint32_t PickleWriter::memoize() {
  const std::uint32_t memo = memoized_++;
  if (memo < 256) {
    opcode('q');
    little_endian(static_cast<std::uint8_t>(memo));
  } else {
    opcode('r');
    little_endian(memo);
  }
  return memo;
}

void PickleWriter::recall(std::uint32_t memo) {
  if (memo < 256) {
    opcode('h');
    little_endian(static_cast<std::uint8_t>(memo));
  } else {
    opcode('j');
    little_endian(memo);
  }
}

std::string PickleWriter::finish() {
  opcode('.');
  return std::move(out_);
}

}  // namespace pawl::checkpoint
