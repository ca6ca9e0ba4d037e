#include "job/rendezvous/rendezvous_store.h"

#include <charconv>
#include <utility>

#include "base/text.h"

namespace pawl::job {
namespace {

enum class Record : std::uint8_t { change = 1, value = 2, last = 3 };

StoreAnswer refused(std::string why) {
  return {false, {}, std::move(why)};
}

}  // namespace

void write_store_request(Writer& out, const StoreRequest& request) {
  out.u8(static_cast<std::uint8_t>(request.op))
      .u64(request.client)
      .u64(request.number)
      .str(request.key)
      .str(request.value)
      .str(request.expected)
      .u64(static_cast<std::uint64_t>(request.amount))
      .u32(request.wait_ms);
}

void write_store_answer(Writer& out, const StoreAnswer& answer) {
  out.u8(answer.found ? 1 : 0).str(answer.value).str(answer.refused);
}

bool read_store_request(Reader& in, StoreRequest& request) {
  request.op = static_cast<StoreOp>(in.u8());
  request.client = in.u64();
  request.number = in.u64();
  request.key = in.str();
  request.value = in.str();
  request.expected = in.str();
  request.amount = static_cast<std::int64_t>(in.u64());
  request.wait_ms = in.u32();
  return in.done() && request.op >= StoreOp::set && request.op <= StoreOp::erase;
}

bool read_store_answer(Reader& in, StoreAnswer& answer) {
  answer.found = in.u8() == 1;
  answer.value = in.str();
  answer.refused = in.str();
  return in.done();
}

bool Store::is_new_change(const StoreRequest& request) const {
  if (!changes_something(request.op)) return false;
  const auto last = last_.find(request.client);
  return request.client == 0 || last == last_.end() || request.number > last->second.number;
}

std::optional<StoreAnswer> Store::apply(const StoreRequest& request) {
  if (!changes_something(request.op)) {
    const auto found = values_.find(request.key);
    if (found != values_.end()) return StoreAnswer{true, found->second, {}};
    if (request.op == StoreOp::try_get) return StoreAnswer{false, {}, {}};
    return std::nullopt;
  }
  if (is_new_change(request)) {
    StoreAnswer answer = carry_out(request);
    if (request.client != 0) last_[request.client] = {request.number, answer};
    return answer;
  }
  const Last& last = last_.at(request.client);
  if (request.number == last.number) return last.answer;
  return std::nullopt;
}

StoreAnswer Store::carry_out(const StoreRequest& request) {
  switch (request.op) {
    case StoreOp::set:
      values_[request.key] = request.value;
      return {};
    case StoreOp::add:
      return add(request);
    case StoreOp::compare_set:
      return compare_set(request);
    case StoreOp::erase:
      return {values_.erase(request.key) > 0, {}, {}};
    case StoreOp::get:
    case StoreOp::try_get:
      break;
  }
  return refused("no such operation");
}

StoreAnswer Store::add(const StoreRequest& request) {
  const auto found = values_.find(request.key);
  const std::string before = found == values_.end() ? "0" : found->second;
  std::int64_t sum = 0;
  const auto [end, error] = std::from_chars(before.data(), before.data() + before.size(), sum);
  const bool is_number = error == std::errc() && end == before.data() + before.size();
  if (!is_number) return refused(text("key ", request.key, " holds no number to add to: '", before.substr(0, 40), "'"));
  if (__builtin_add_overflow(sum, request.amount, &sum))
    return refused(text("key ", request.key, ": the sum is too large"));
  values_[request.key] = text(sum);
  return {true, values_[request.key], {}};
}

StoreAnswer Store::compare_set(const StoreRequest& request) {
  const auto found = values_.find(request.key);
  if (found == values_.end() && !request.expected.empty()) return {false, request.expected, {}};
  if (found == values_.end() || found->second == request.expected) values_[request.key] = request.value;
  return {true, values_[request.key], {}};
}

std::string Store::record_of(const StoreRequest& request) {
  Writer out;
  out.u8(static_cast<std::uint8_t>(Record::change));
  write_store_request(out, request);
  return out.take();
}

std::vector<std::string> Store::records() const {
  std::vector<std::string> records;
  for (const auto& [key, value] : values_)
    records.push_back(Writer().u8(static_cast<std::uint8_t>(Record::value)).str(key).str(value).take());
  for (const auto& [client, last] : last_) {
    Writer out;
    out.u8(static_cast<std::uint8_t>(Record::last)).u64(client).u64(last.number);
    write_store_answer(out, last.answer);
    records.push_back(out.take());
  }
  return records;
}

bool Store::replay(std::string_view record) {
  Reader in(record);
  const auto kind = static_cast<Record>(in.u8());
  if (kind == Record::change) {
    StoreRequest request;
    if (!read_store_request(in, request)) return false;
    (void)apply(request);
    return true;
  }
  if (kind == Record::value) {
    std::string key = in.str();
    std::string value = in.str();
    if (in.done()) values_[std::move(key)] = std::move(value);
    return in.done();
  }
  const std::uint64_t client = in.u64();
  Last last;
  last.number = in.u64();
  if (kind != Record::last || !read_store_answer(in, last.answer)) return false;
  last_[client] = std::move(last);
  return true;
}

}  // namespace pawl::job
