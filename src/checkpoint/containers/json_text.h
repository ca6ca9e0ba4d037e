// JSON as it is written: what a string of it looks like. (checkpoint/containers/json_scan.h reads.)
#pragma once

#include <string>
#include <string_view>

namespace pawl::checkpoint {

void append_json(std::string& out, std::string_view text);  // as a string of JSON; `text` is UTF-8

}  // namespace pawl::checkpoint
