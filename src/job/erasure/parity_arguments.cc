#include "job/erasure/parity_arguments.h"

#include <bitset>

#include "base/text.h"

namespace pawl::job {

Status check_sizes(std::string_view call, std::span<const FragmentBytes> sources, std::span<const FragmentRoom> rooms) {
  const auto differs = [&](std::string_view what, std::size_t index, std::size_t size) {
    return Error{Code::invalid, text(call, ": ", what, " ", index, " has ", size, " bytes, source 0 has ",
                                     sources[0].size(), ": all fragments must be equally long")};
  };
  for (std::size_t i = 0; i < sources.size(); ++i)
    if (sources[i].size() != sources[0].size()) return differs("source", i, sources[i].size());
  for (std::size_t i = 0; i < rooms.size(); ++i)
    if (rooms[i].size() != sources[0].size()) return differs("target", i, rooms[i].size());
  return {};
}

Status check_fragments(std::string_view call, const ErasureCode& code, std::span<const FragmentBytes> data,
                       std::span<const FragmentRoom> parities) {
  if (data.size() != code.data_count() || parities.size() != code.parity_count())
    return Error{Code::invalid, text(call, ": the code has ", code.data_count(), "+", code.parity_count(),
                                     " fragments, given are ", data.size(), "+", parities.size())};
  return check_sizes(call, data, parities);
}

Status ContributedRows::take(std::string_view call, const ErasureCode& code, std::uint32_t data_index, std::size_t size,
                             std::span<const ParityRoom> rooms) {
  if (data_index >= code.data_count())
    return Error{Code::invalid, text(call, ": there is no data fragment ", data_index, " in ", code.data_count(), "+",
                                     code.parity_count())};
  std::bitset<kFragmentsMax> seen;
  for (const ParityRoom& room : rooms) {
    if (room.parity >= code.parity_count())
      return Error{Code::invalid, text(call, ": there is no parity ", room.parity, " in ", code.data_count(), "+",
                                       code.parity_count())};
    if (seen[room.parity]) return Error{Code::invalid, text(call, ": parity ", room.parity, " is named twice")};
    seen[room.parity] = true;
    if (room.bytes.size() != size)
      return Error{Code::invalid, text(call, ": parity ", room.parity, " has ", room.bytes.size(),
                                       " bytes, the data have ", size, ": all fragments must be equally long")};
    rows_[count_] = room.bytes.data();
    coefficients_[count_++] = code.coefficients_of(room.parity)[data_index];
  }
  return {};
}

}  // namespace pawl::job
