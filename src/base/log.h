// The one logger: one line, one event, stable name first.
//
//   log_info("generation_opened", "generation", g, "cause", "node_lost", "waited_ms", 340);
//   -> 2026-11-21T09:41:42.123456Z info node=2 generation_opened generation=7 cause=node_lost waited_ms=340
//
// error: state may be lost; warn: redundancy is below plan; info: a state changed; debug: the rest.
// Log changes, not polls. Values with blanks are quoted. Thread-safe; a line is one write(2) to the log's fd.
// libpawl prints nothing and never calls this.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "base/text.h"

namespace pawl {

enum class LogLevel : unsigned char { debug, info, warn, error };

// For the process. `who` leads each line ("node=2"). Defaults: info, stderr, nobody.
void log_to(int fd, LogLevel least, std::string who);
// Lines go to `sink` instead, without a time and a name: a simulation has its own of both. nullptr: no longer.
void log_through(void (*sink)(LogLevel level, std::string_view line), LogLevel least);

// `fields`: key, value, key, value.
void log_fields(LogLevel level, std::string_view event, std::initializer_list<TextPart> fields);

template <class... Fields>
void log_event(LogLevel level, std::string_view event, const Fields&... fields) {
  static_assert(sizeof...(Fields) % 2 == 0, "key, value, key, value");
  log_fields(level, event, {TextPart(fields)...});
}

template <class... Fields>
void log_debug(std::string_view event, const Fields&... fields) {
  log_event(LogLevel::debug, event, fields...);
}
template <class... Fields>
void log_info(std::string_view event, const Fields&... fields) {
  log_event(LogLevel::info, event, fields...);
}
template <class... Fields>
void log_warn(std::string_view event, const Fields&... fields) {
  log_event(LogLevel::warn, event, fields...);
}
template <class... Fields>
void log_error(std::string_view event, const Fields&... fields) {
  log_event(LogLevel::error, event, fields...);
}

}  // namespace pawl
