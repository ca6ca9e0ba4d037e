// Reading foreign JSON without exceptions: the value if it is there and of that kind, else nothing of its kind.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace pawl {

using nlohmann::json;

[[nodiscard]] inline const json& member_of(const json& object, const char* key) {
  static const json nothing;
  if (!object.is_object()) return nothing;
  const auto found = object.find(key);
  return found == object.end() ? nothing : *found;
}
[[nodiscard]] inline std::string string_in(const json& object, const char* key) {
  const json& found = member_of(object, key);
  return found.is_string() ? found.get<std::string>() : std::string();
}
[[nodiscard]] inline std::uint64_t number_in(const json& object, const char* key) {
  const json& found = member_of(object, key);
  return found.is_number_unsigned() ? found.get<std::uint64_t>() : 0;
}
[[nodiscard]] inline double real_in(const json& object, const char* key) {
  const json& found = member_of(object, key);
  return found.is_number() ? found.get<double>() : 0;
}
[[nodiscard]] inline bool flag_in(const json& object, const char* key) {
  const json& found = member_of(object, key);
  return found.is_boolean() && found.get<bool>();
}
// To loop over: an empty array where there is none.
[[nodiscard]] inline const json& array_in(const json& object, const char* key) {
  static const json empty = json::array();
  const json& found = member_of(object, key);
  return found.is_array() ? found : empty;
}

}  // namespace pawl
