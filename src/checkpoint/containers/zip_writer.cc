#include "checkpoint/containers/zip_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "checkpoint/reshape/range_checksums.h"

namespace pawl::checkpoint {
namespace {

constexpr std::uint64_t kAlignment = 64;
constexpr std::uint64_t kNoMore = 0xffff'ffff;  // what four bytes hold, and what says "see zip64"
constexpr std::uint16_t kUtf8 = 0x0800;
constexpr std::uint16_t kHasDescriptor = 0x0008;
constexpr std::size_t kMembersMax = 0xffff;

template <class Number>
void append_number(std::string& out, Number value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);  // little-endian, as all machines we build for
  out.append(bytes, sizeof value);
}
void append16(std::string& out, std::uint64_t value) {
  append_number(out, static_cast<std::uint16_t>(value));
}
void append32(std::string& out, std::uint64_t value) {
  append_number(out, static_cast<std::uint32_t>(value));
}
void append64(std::string& out, std::uint64_t value) {
  append_number(out, value);
}

// Bytes between two members' data, and where the checksums of members go in them.
struct Stretch {
  std::uint64_t offset_bytes = 0;
  std::string text;
  std::vector<std::pair<std::size_t, std::uint32_t>> checksums;  // place in the text, index in Archive::checked
};

class Archive {
 public:
  Archive(std::string_view folder, const std::vector<ZipMember>& members) : folder_(folder), members_(members) {}

  Status lay_out() {
    begin(0);
    for (const ZipMember& member : members_) {
      if (folder_.size() + 1 + member.name.size() > 0xffff || member.size_bytes >> 61 != 0 || at_ >> 61 != 0)
        return Error{Code::full, text("member ", member.name, " of ", member.size_bytes, " bytes: too large")};
      append_member(member);
    }
    append_directory();
    return {};
  }

  std::vector<Stretch> stretches;
  std::vector<std::uint64_t> offset_bytes;
  std::vector<PlannedRange> checked;
  [[nodiscard]] std::uint64_t size_bytes() const { return at_; }

 private:
  struct Entry {
    std::string name;
    std::uint64_t header_at = 0;
    std::uint64_t size_bytes = 0;
    std::optional<std::uint32_t> checked;  // whose checksum comes later
    std::uint32_t crc = 0;                 // else
    std::uint16_t flags = kUtf8;
  };

  void begin(std::uint64_t offset_bytes) {
    at_ = offset_bytes;
    stretches.push_back({offset_bytes, {}, {}});
  }
  std::string& out() { return stretches.back().text; }
  [[nodiscard]] std::uint64_t here() const { return stretches.back().offset_bytes + stretches.back().text.size(); }
  void append_checksum(const Entry& entry) {
    if (entry.checked) stretches.back().checksums.emplace_back(out().size(), *entry.checked);
    append32(out(), entry.crc);
  }

  void append_member(const ZipMember& member) {
    Entry entry{text(folder_, '/', member.name), here(), member.size_bytes, {}, 0, kUtf8};
    if (member.content)
      entry.crc = checksum(ChecksumKind::crc32, std::as_bytes(std::span(*member.content)));
    else if (member.size_bytes != 0)
      entry.checked = static_cast<std::uint32_t>(checked.size());
    if (entry.checked) entry.flags |= kHasDescriptor;
    append_header(entry);
    offset_bytes.push_back(here());
    if (member.content) {
      out() += *member.content;
    } else if (member.size_bytes != 0) {
      checked.push_back({here(), member.size_bytes});
      begin(here() + member.size_bytes);
      append_descriptor(entry);
    }
    at_ = here();
    entries_.push_back(std::move(entry));
  }

  void append_header(const Entry& entry) {
    const bool is_later = entry.checked.has_value();
    const bool is_large = entry.size_bytes >= kNoMore;
    std::string extra;
    if (is_large) {
      append16(extra, 1);
      append16(extra, 16);
      append64(extra, entry.size_bytes);
      append64(extra, entry.size_bytes);
    }
    const std::uint64_t data = entry.header_at + 30 + entry.name.size() + extra.size() + 4;
    const std::uint64_t padding = (kAlignment - data % kAlignment) % kAlignment;
    extra += "FB";
    append16(extra, padding);
    extra.append(padding, 'Z');
    out() += "PK\3\4";
    append16(out(), 0);
    append16(out(), entry.flags);
    append16(out(), 0);  // stored
    append32(out(), 0);  // no time
    append32(out(), is_later ? 0 : entry.crc);
    for (int i = 0; i < 2; ++i) append32(out(), is_large ? kNoMore : is_later ? 0 : entry.size_bytes);
    append16(out(), entry.name.size());
    append16(out(), extra.size());
    out() += entry.name;
    out() += extra;
  }

  void append_descriptor(const Entry& entry) {
    out() += "PK\7\b";
    append_checksum(entry);
    for (int i = 0; i < 2; ++i)
      if (entry.size_bytes >= kNoMore)
        append64(out(), entry.size_bytes);
      else
        append32(out(), entry.size_bytes);
  }

  void append_entry(const Entry& entry) {
    std::string large;
    for (int i = 0; i < 2; ++i)
      if (entry.size_bytes >= kNoMore) append64(large, entry.size_bytes);
    if (entry.header_at >= kNoMore) append64(large, entry.header_at);
    out() += "PK\1\2";
    append16(out(), 0);
    append16(out(), 0);
    append16(out(), entry.flags);
    append16(out(), 0);
    append32(out(), 0);
    append_checksum(entry);
    for (int i = 0; i < 2; ++i) append32(out(), std::min(entry.size_bytes, kNoMore));
    append16(out(), entry.name.size());
    append16(out(), large.empty() ? 0 : large.size() + 4);
    append16(out(), 0);  // comment
    append16(out(), 0);  // disk
    append16(out(), 0);  // attributes
    append32(out(), 0);
    append32(out(), std::min(entry.header_at, kNoMore));
    out() += entry.name;
    if (large.empty()) return;
    append16(out(), 1);
    append16(out(), large.size());
    out() += large;
  }

  void append_directory() {
    const std::uint64_t directory = here();
    for (const Entry& entry : entries_) append_entry(entry);
    const std::uint64_t end = here(), size = end - directory;
    out() += "PK\6\6";
    append64(out(), 44);
    append16(out(), 798);  // made by: as torch says
    append16(out(), 45);
    append64(out(), 0);
    append64(out(), entries_.size());
    append64(out(), entries_.size());
    append64(out(), size);
    append64(out(), directory);
    out() += "PK\6\7";
    append32(out(), 0);
    append64(out(), end);
    append32(out(), 1);
    out() += "PK\5\6";
    append32(out(), 0);
    append16(out(), entries_.size());
    append16(out(), entries_.size());
    append32(out(), std::min(size, kNoMore));
    append32(out(), std::min(directory, kNoMore));
    append16(out(), 0);
    at_ = here();
  }

  std::string folder_;
  const std::vector<ZipMember>& members_;
  std::vector<Entry> entries_;
  std::uint64_t at_ = 0;
};

// The stretches with the checksums of what was written between them.
std::vector<PlannedText> with_checksums(const std::vector<Stretch>& stretches, const std::vector<PlannedRange>& checked,
                                        std::uint32_t index, const RangeChecksums& checksums) {
  std::vector<PlannedText> out;
  for (const Stretch& stretch : stretches) {
    PlannedText& planned = out.emplace_back(PlannedText{stretch.offset_bytes, stretch.text});
    for (const auto& [place, member] : stretch.checksums) {
      const PlannedRange& range = checked[member];
      const Result<std::uint32_t> crc =
          checksums.value_of({index, range.offset_bytes, range.offset_bytes + range.size_bytes});
      const std::uint32_t value = crc ? *crc : 0;  // 0: a reader knows that nobody summed
      std::memcpy(planned.text.data() + place, &value, sizeof value);
    }
  }
  return out;
}

}  // namespace

Result<ZipLayout> lay_out_zip(std::string_view archive, const std::vector<ZipMember>& members, std::uint32_t index,
                              std::uint64_t at) {
  if (members.size() > kMembersMax)
    return Error{Code::invalid, text("a zip archive of ", members.size(), " members: at most ", kMembersMax)};
  Archive laid(archive, members);
  PAWL_TRY(laid.lay_out());
  for (std::uint64_t& offset : laid.offset_bytes) offset += at;
  for (PlannedRange& range : laid.checked) range.offset_bytes += at;
  for (Stretch& stretch : laid.stretches) stretch.offset_bytes += at;
  ZipLayout out;
  out.offset_bytes = std::move(laid.offset_bytes);
  out.file.size_bytes = laid.size_bytes();
  out.file.checked = laid.checked;
  std::vector<Stretch> later;
  for (Stretch& stretch : laid.stretches)
    if (stretch.checksums.empty())
      out.file.texts.push_back({stretch.offset_bytes, std::move(stretch.text)});
    else
      later.push_back(std::move(stretch));
  if (!later.empty())
    out.file.finish = [later = std::move(later), checked = std::move(laid.checked), index](const RangeChecksums& sums) {
      return with_checksums(later, checked, index, sums);
    };
  return out;
}

}  // namespace pawl::checkpoint
