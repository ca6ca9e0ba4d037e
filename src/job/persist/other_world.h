// OtherWorld: what a seat gets of a checkpoint that a job of more or fewer seats has written.
//
// Stable tensors have one value, whoever holds which part of them: each seat reads its own boxes by name and role, as ever
// (stored_checkpoint.cc). What is each seat's own (volatile tensors, blobs) comes from one seat of the other world, number s
// mod W for seat s, W its seats. A blob whose name ends with the seat's number is that of the other seat's number. Nothing is
// left out in silence: what only one of the two layouts has is named; but for a tensor that is cut among seats and that the
// script has no more, while it has others of that role: no seat knows what all others have. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/ids.h"
#include "base/result.h"
#include "job/layout/seat_layout.h"

namespace pawl::job {

// `seat_count` is at least 1.
[[nodiscard]] Seat seat_in_world(Seat seat, std::uint32_t seat_count);

// In which `seat`, which declares this, gets the state of the seat whose layout is `stored`: what it declares, with the larger
// room of both for each blob. Fails: `invalid`, naming what only one of them has, or what is another tensor.
[[nodiscard]] Result<SeatLayout> layout_from_other_world(const SeatLayout& declared, Seat seat,
                                                         const SeatLayout& stored);

// What is the seat's own, of a layout from there: all bytes of `to`, which are those of its payload from stable_bytes on.
// `from`: of the other's payload. Fails: `invalid` as above; `corrupt`: a blob says that it is longer than it can be.
[[nodiscard]] Status fill_own_state(const SeatLayout& layout, Seat seat, std::span<std::byte> to,
                                    const SeatLayout& stored, std::span<const std::byte> from);

}  // namespace pawl::job
