#include "job/rendezvous/rendezvous_store.h"

#include <charconv>
#include <utility>

#include "base/text.h"

namespace pawl::job {
namespace {

enum class Record : std::uint8_t { change = 1, value = 2, last = 3 };

RendezvousAnswer refused(std::string why) {
  return {false, {}, std::move(why)};
}

}  // namespace

bool RendezvousStore::is_new_change(const RendezvousRequest& request) const {
  if (!changes_something(request.op)) return false;
  const auto last = last_.find(request.client);
  return request.client == 0 || last == last_.end() || request.number > last->second.number;
}

std::optional<RendezvousAnswer> RendezvousStore::apply(const RendezvousRequest& request) {
  if (!changes_something(request.op)) return read(request);
  if (is_new_change(request)) {
    RendezvousAnswer answer = carry_out(request);
    if (request.client != 0) last_[request.client] = {request.number, answer};
    return answer;
  }
  const Last& last = last_.at(request.client);
  if (request.number == last.number) return last.answer;
  return std::nullopt;
}

std::optional<RendezvousAnswer> RendezvousStore::read(const RendezvousRequest& request) const {
  if (request.op == RendezvousOp::get_all) return read_all(request);
  const auto found = values_.find(request.key);
  if (found != values_.end()) return RendezvousAnswer{true, found->second, {}};
  if (request.op == RendezvousOp::try_get) return RendezvousAnswer{false, {}, {}};
  return std::nullopt;
}

std::optional<RendezvousAnswer> RendezvousStore::read_all(const RendezvousRequest& request) const {
  std::vector<std::string> keys;
  if (!unpack(request.value, keys)) return refused("keys that can't be read");
  std::vector<std::string> values;
  std::size_t bytes = 0;
  for (const std::string& key : keys) {
    const auto found = values_.find(key);
    if (found == values_.end()) return std::nullopt;
    bytes += found->second.size();
    if (values.empty() || bytes <= kValuesBytesMax) values.push_back(found->second);
  }
  return RendezvousAnswer{true, pack(values), {}};
}

RendezvousAnswer RendezvousStore::carry_out(const RendezvousRequest& request) {
  switch (request.op) {
    case RendezvousOp::set:
      values_[request.key] = request.value;
      return {};
    case RendezvousOp::add:
      return add(request);
    case RendezvousOp::compare_set:
      return compare_set(request);
    case RendezvousOp::erase:
      return {values_.erase(request.key) > 0, {}, {}};
    case RendezvousOp::get:
    case RendezvousOp::try_get:
    case RendezvousOp::get_all:
      break;
  }
  return refused("no such operation");
}

RendezvousAnswer RendezvousStore::add(const RendezvousRequest& request) {
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

RendezvousAnswer RendezvousStore::compare_set(const RendezvousRequest& request) {
  const auto found = values_.find(request.key);
  if (found == values_.end() && !request.expected.empty()) return {false, request.expected, {}};
  if (found == values_.end() || found->second == request.expected) values_[request.key] = request.value;
  return {true, values_[request.key], {}};
}

std::string RendezvousStore::record_of(const RendezvousRequest& request) {
  return Writer().u8(static_cast<std::uint8_t>(Record::change)).take() + encode(request);
}

std::vector<std::string> RendezvousStore::records() const {
  std::vector<std::string> records;
  for (const auto& [key, value] : values_)
    records.push_back(Writer().u8(static_cast<std::uint8_t>(Record::value)).str(key).str(value).take());
  for (const auto& [client, last] : last_)
    records.push_back(Writer().u8(static_cast<std::uint8_t>(Record::last)).u64(client).u64(last.number).take() +
                      encode(last.answer));
  return records;
}

bool RendezvousStore::replay(std::string_view record) {
  Reader in(record);
  const auto kind = static_cast<Record>(in.u8());
  if (kind == Record::change) {
    RendezvousRequest request;
    if (!decode(in.rest(), request)) return false;
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
  if (kind != Record::last || !decode(in.rest(), last.answer)) return false;
  last_[client] = std::move(last);
  return true;
}

}  // namespace pawl::job
