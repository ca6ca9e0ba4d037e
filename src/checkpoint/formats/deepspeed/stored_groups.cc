#include "checkpoint/formats/deepspeed/stored_groups.h"

#include <charconv>
#include <cstdint>
#include <cstdlib>

#include "checkpoint/containers/json_scan.h"

namespace pawl::checkpoint::deepspeed {
namespace {

// The text of the value that begins here, which is skipped.
std::string value_text(JsonScan& scan, std::string_view json) {
  (void)scan.peek();  // white space is behind it
  const std::size_t begin = scan.offset();
  return scan.skip() ? std::string(json.substr(begin, scan.offset() - begin)) : std::string();
}

StoredGroup read_group(JsonScan& scan, std::string_view json) {
  StoredGroup group;
  std::string key;
  scan.begin_object();
  while (scan.next_key(key)) {
    std::string value = value_text(scan, json);
    if (key != "params" && key != "param_names") group[key] = std::move(value);
  }
  return group;
}

void write_number(const std::string& text, PickleWriter& to) {
  std::int64_t whole = 0;
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, whole);
  if (read.ec == std::errc() && read.ptr == end)
    to.integer(whole);
  else
    to.real(std::strtod(text.c_str(), nullptr));
}

void write_value(JsonScan& scan, std::string_view json, PickleWriter& to) {
  std::string text;
  switch (scan.peek()) {
    case '[':
      scan.begin_array();
      to.mark();
      while (scan.next_item()) write_value(scan, json, to);
      return to.tuple();
    case '{':
      scan.begin_object();
      to.empty_dict();
      while (scan.next_key(text)) {
        to.string(text);
        write_value(scan, json, to);
        to.set_item();
      }
      return;
    case '"':
      scan.string(text);
      return to.string(text);
    default:
      text = value_text(scan, json);
      if (text == "true" || text == "false") return to.boolean(text == "true");
      return text.empty() || text == "null" ? to.none() : write_number(text, to);
  }
}

}  // namespace

std::vector<StoredGroup> read_stored_groups(std::string_view values) {
  std::vector<StoredGroup> groups;
  JsonScan scan(values);
  std::string key;
  if (scan.peek() != '{' || !scan.begin_object()) return {};
  while (scan.next_key(key)) {
    if (key != "param_groups" || scan.peek() != '[') {
      scan.skip();
      continue;
    }
    scan.begin_array();
    while (scan.next_item()) groups.push_back(read_group(scan, values));
  }
  return scan.failed() ? std::vector<StoredGroup>() : groups;
}

StoredGroup common_to(const std::vector<StoredGroup>& groups) {
  StoredGroup common = groups.empty() ? StoredGroup() : groups[0];
  for (const StoredGroup& group : groups)
    std::erase_if(common, [&](const auto& item) {
      const auto found = group.find(item.first);
      return found == group.end() || found->second != item.second;
    });
  return common;
}

void write_stored_group(const StoredGroup& group, PickleWriter& to) {
  to.empty_dict();
  for (const auto& [key, json] : group) {
    to.string(key);
    JsonScan scan(json);
    write_value(scan, json, to);
    to.set_item();
  }
}

}  // namespace pawl::checkpoint::deepspeed
