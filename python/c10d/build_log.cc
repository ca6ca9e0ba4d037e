#include "build_log.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace pawl {
namespace {

constexpr std::uint64_t kKeptBytesMax = 64 << 10;      // of one result
constexpr std::uint64_t kKeptBytesTotalMax = 8 << 20;  // of a process
constexpr std::uint64_t kRecordsMax = 1 << 16;         // of a group
constexpr std::uint64_t kMultiplier = 0x9e3779b97f4a7c15u;

std::string bytes_of(const Tensors& tensors) {
  std::string all;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor here = tensor.detach().to(at::kCPU).contiguous();
    all.append(static_cast<const char*>(here.const_data_ptr()), here.nbytes());
  }
  return all;
}

std::uint64_t byte_count_of(const Tensors& tensors) {
  std::uint64_t count = 0;
  for (const at::Tensor& tensor : tensors) count += tensor.nbytes();
  return count;
}

// Eight bytes at a time. Finds accidents, not attackers.
std::uint64_t mixed(std::uint64_t digest, const char* data, std::size_t size) {
  for (std::size_t at = 0; at < size; at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, data + at, std::min<std::size_t>(8, size - at));
    digest = (digest ^ word) * kMultiplier;
    digest ^= digest >> 29;
  }
  return digest;
}

std::uint64_t digest_of(const Tensors& tensors) {
  std::uint64_t digest = tensors.size();
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor here = tensor.detach().to(at::kCPU).contiguous();
    digest = mixed(digest, static_cast<const char*>(here.const_data_ptr()), here.nbytes());
  }
  return digest;
}

void put(const std::string& bytes, const Tensors& tensors) {
  const at::AutoDispatchBelowADInplaceOrView unrecorded;
  const char* next = bytes.data();
  for (const at::Tensor& tensor : tensors) {
    const std::size_t size = tensor.nbytes();
    at::Tensor value = at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
    std::memcpy(value.mutable_data_ptr(), next, size);
    tensor.copy_(value);
    next += size;
  }
}

std::string text_of(const BuildLog::Place& place) {
  return "collective " + std::to_string(place.number + 1) + " of the group of ranks " +
         place.group.substr(0, place.group.find('/')) + " before the first step";
}

template <class Number>
void add(std::string& out, Number number) {
  out.append(reinterpret_cast<const char*>(&number), sizeof number);
}

// Takes values off the front of a text. After the end all are zero, and `whole` is false.
struct Reader {
  const std::string& text;
  std::size_t at = 0;
  bool whole = true;

  template <class Number>
  Number number() {
    Number value{};
    if (text.size() - at < sizeof value) {
      whole = false;
      return value;
    }
    std::memcpy(&value, text.data() + at, sizeof value);
    at += sizeof value;
    return value;
  }
  std::string bytes(std::uint64_t size) {
    if (text.size() - at < size) {
      whole = false;
      return {};
    }
    at += size;
    return text.substr(at - size, size);
  }
};

}  // namespace

BuildLog& BuildLog::only() {
  static auto* log = new BuildLog;  // never destroyed: a thread of the backend may still tell it something
  return *log;
}

void BuildLog::record() {
  std::lock_guard lock(mutex_);
  mode_ = Mode::recording;
}

void BuildLog::replay(Fetch fetch) {
  std::lock_guard lock(mutex_);
  fetch_ = std::move(fetch);
  mode_ = Mode::replaying;
}

void BuildLog::end() {
  std::lock_guard lock(mutex_);
  mode_ = Mode::off;
}

void BuildLog::settle() {
  std::unique_lock lock(mutex_);
  std::vector<std::string> missing;
  for (const auto& [name, group] : groups_) {
    if (!group.ready) missing.push_back(name);
  }
  for (const std::string& name : missing) fetched(name, lock);
  fetch_ = nullptr;
}

void BuildLog::set_quiet(bool quiet) {
  std::lock_guard lock(mutex_);
  quiet_ = quiet;
}

void BuildLog::set_compared(bool compared) {
  std::lock_guard lock(mutex_);
  compared_ = compared;
}

void BuildLog::set_paused(bool paused) {
  std::lock_guard lock(mutex_);
  paused_ = paused;
}

std::optional<BuildLog::Place> BuildLog::next(const std::string& group, const char* collective, Results results) {
  if (mode_.load(std::memory_order_relaxed) == Mode::off || results == Results::none) return std::nullopt;
  std::lock_guard lock(mutex_);
  if (paused_) return std::nullopt;
  Group& known = groups_[group];
  known.ready = known.ready || mode_ == Mode::recording;
  const Place place{group, known.next++, collective};
  if (mode_ == Mode::recording) {
    TORCH_CHECK(known.records.size() < kRecordsMax, "pawl: more than ", kRecordsMax,
                " collectives before the first step: those of the training belong into its blocks");
    known.records.push_back({.kind = Kind::counted, .collective = collective, .value = {}});
    if (results == Results::own && !quiet_) own_.push_back(std::string(collective) + " (" + text_of(place) + ")");
  }
  return place;
}

void BuildLog::succeeded(const Place& place, const Tensors& outputs) {
  std::lock_guard lock(mutex_);
  if (mode_ != Mode::recording) return;
  Record& record = groups_[place.group].records.at(place.number);
  if (record.kind != Kind::counted) return;
  fill(record, outputs);
  if (record.kind == Kind::digested) {
    big_.push_back({record.collective + " of " + std::to_string(record.bytes) + " bytes (" + text_of(place) + ")",
                    reinterpret_cast<std::uintptr_t>(outputs.at(0).const_data_ptr())});
  }
}

void BuildLog::fill(Record& record, const Tensors& outputs) {
  if (quiet_) return;
  record.bytes = byte_count_of(outputs);
  if (record.bytes > kKeptBytesMax || kept_bytes_ + record.bytes > kKeptBytesTotalMax) {
    record.kind = Kind::digested;
    record.digest = digest_of(outputs);
  } else {
    record.kind = Kind::kept;
    record.value = bytes_of(outputs);
    kept_bytes_ += record.bytes;
  }
}

void BuildLog::know(const std::string& group) {
  if (mode_.load(std::memory_order_relaxed) != Mode::recording) return;
  std::lock_guard lock(mutex_);
  groups_[group].ready = true;
}

bool BuildLog::knows(const std::string& group) {
  if (mode_.load(std::memory_order_relaxed) != Mode::replaying) return false;
  std::unique_lock lock(mutex_);
  return fetched(group, lock).known;
}

// `lock` is held on entry and on return, and not while it fetches.
BuildLog::Group& BuildLog::fetched(const std::string& name, std::unique_lock<std::mutex>& lock) {
  if (Group& group = groups_[name]; group.ready) return group;
  const Fetch fetch = fetch_;
  lock.unlock();
  std::optional<std::string> text;
  if (fetch) {
    const py::gil_scoped_acquire locked;
    text = fetch(name);
  }
  std::vector<Record> records = decode(text.value_or(encode({})));
  lock.lock();
  Group& group = groups_[name];  // next() may have added others meanwhile
  group.ready = true;
  group.known = text.has_value();
  const std::vector<Record> unproven = std::exchange(group.unproven, {});
  if (group.known) prove(name, unproven, records);
  group.records = group.known ? std::move(records) : unproven;
  return group;
}

void BuildLog::prove(const std::string& group, const std::vector<Record>& unproven,
                     const std::vector<Record>& records) {
  for (const Record& mine : unproven) {
    const Place place{group, static_cast<std::size_t>(&mine - unproven.data()), mine.collective.c_str()};
    const Record& record = record_at(place, records);
    if (mine.kind == Kind::counted || mine.kind != record.kind) continue;  // not both have their result
    TORCH_CHECK(mine.bytes == record.bytes &&
                    (mine.kind == Kind::kept ? mine.value == record.value : mine.digest == record.digest),
                "pawl: the ", mine.collective, " (", text_of(place),
                ") gave this seat, which was built anew, something else than ",
                "when the job began: the model must be built alike each time that the script starts");
  }
}

// That place's, if the script does what it did when the job began.
const BuildLog::Record& BuildLog::record_at(const Place& place, const std::vector<Record>& records) {
  TORCH_CHECK(place.number < records.size(), "pawl: ", text_of(place), ": when the job began, the script did only ",
              records.size(), ". It must do the same each time that it is started, whatever it finds on the disk");
  const Record& record = records[place.number];
  TORCH_CHECK(record.collective == place.collective, "pawl: ", text_of(place), " is a ", place.collective,
              "; when the job began, it was: ", record.collective,
              ". The script must do the same each time that it is started, also while job.rehearsal is true");
  return record;
}

BuildLog::Record BuildLog::record_of(const Place& place, const Tensors& outputs) {
  Record record{.kind = Kind::counted, .collective = place.collective, .value = {}};
  fill(record, outputs);
  return record;
}

void BuildLog::replay(const Place& place, const Tensors& outputs, const std::function<void()>& local) {
  std::unique_lock lock(mutex_);
  const bool waits = groups_[place.group].ready || !(quiet_ || compared_);
  if (!waits || !fetched(place.group, lock).known) {
    lock.unlock();
    local();
    lock.lock();
    Group& group = groups_[place.group];
    (waits ? group.records : group.unproven).push_back(record_of(place, outputs));
    return;
  }
  const Record record = record_at(place, groups_[place.group].records);
  lock.unlock();
  if (record.kind == Kind::kept && record.bytes == byte_count_of(outputs)) return put(record.value, outputs);
  local();
  if (record.kind == Kind::counted) return;
  TORCH_CHECK(record.bytes == byte_count_of(outputs), "pawl: ", text_of(place), " has ", byte_count_of(outputs),
              " bytes; when the job began, it was a ", record.collective, " of ", record.bytes,
              ". The script must do the same each time that it is started, whatever it finds on the disk");
  if (digest_of(outputs) == record.digest) return;
  lock.lock();
  differing_.push_back({record.collective + " of " + std::to_string(record.bytes) + " bytes (" + text_of(place) + ")",
                        reinterpret_cast<std::uintptr_t>(outputs.at(0).const_data_ptr())});
}

std::map<std::string, std::string> BuildLog::encoded() const {
  std::lock_guard lock(mutex_);
  std::map<std::string, std::string> texts;
  for (const auto& [name, group] : groups_) {
    if (group.ready && group.known) texts[name] = encode(group.records);
  }
  return texts;
}

std::map<std::string, std::vector<BuildLog::Digest>> BuildLog::digests() const {
  std::lock_guard lock(mutex_);
  std::map<std::string, std::vector<Digest>> all;
  for (const auto& [name, group] : groups_) {
    std::vector<Digest>& digests = all[name];
    for (const Record& record : group.records) {
      const std::uint64_t digest =
          record.kind == Kind::kept ? mixed(record.bytes, record.value.data(), record.value.size()) : record.digest;
      digests.push_back({record.collective + " (" + text_of({name, digests.size(), ""}) + ")", digest});
    }
  }
  return all;
}

void BuildLog::trust() {
  std::lock_guard lock(mutex_);
  for (auto& [name, group] : groups_) group.known = true;
}

std::vector<std::string> BuildLog::own() const {
  std::lock_guard lock(mutex_);
  return own_;
}

std::vector<BuildLog::Differing> BuildLog::differing() const {
  std::lock_guard lock(mutex_);
  return differing_;
}

std::vector<BuildLog::Differing> BuildLog::big() const {
  std::lock_guard lock(mutex_);
  return big_;
}

std::vector<std::string> BuildLog::left_out() const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> found;
  for (const auto& [name, group] : groups_) {
    if (group.next < group.records.size()) {
      found.push_back(std::to_string(group.next) + " of " + std::to_string(group.records.size()) +
                      " collectives of the group of ranks " + name.substr(0, name.find('/')));
    }
  }
  return found;
}

std::vector<std::string> BuildLog::unknown() const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, group] : groups_) {
    if (group.ready && !group.known) names.push_back(name);
  }
  return names;
}

// u32 how many; of each: u8 kind, u8 length and name of the collective, u64 bytes, u64 digest, the value if it is kept.
// In this machine's byte order: all nodes of a job have the same.
std::string BuildLog::encode(const std::vector<Record>& records) {
  std::string out;
  add(out, static_cast<std::uint32_t>(records.size()));
  for (const Record& record : records) {
    add(out, record.kind);
    add(out, static_cast<std::uint8_t>(record.collective.size()));
    out += record.collective;
    add(out, record.bytes);
    add(out, record.digest);
    if (record.kind == Kind::kept) out += record.value;
  }
  return out;
}

std::vector<BuildLog::Record> BuildLog::decode(const std::string& text) {
  Reader reader{text};
  std::vector<Record> records;
  const auto count = reader.number<std::uint32_t>();
  for (std::uint32_t i = 0; i < count && reader.whole; ++i) {
    Record record;
    record.kind = reader.number<Kind>();
    record.collective = reader.bytes(reader.number<std::uint8_t>());
    record.bytes = reader.number<std::uint64_t>();
    record.digest = reader.number<std::uint64_t>();
    if (record.kind == Kind::kept) record.value = reader.bytes(record.bytes);
    if (record.kind > Kind::kept) reader.whole = false;
    records.push_back(std::move(record));
  }
  TORCH_CHECK(reader.whole && reader.at == text.size(),
              "pawl: the log of the collectives before the first step is damaged");
  return records;
}

}  // namespace pawl
