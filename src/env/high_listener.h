// A listener whose accepted sockets get high numbers.
//
// When a process dies, Linux closes its descriptors from the highest on. So who is at the other end learns of the death
// before memory of gigabytes is given back, whose descriptors are lower (1 GiB: 0.08 s, on busy cores far more).
#pragma once

#include <memory>

#include "env/network.h"

namespace pawl {

// As real_listener. Where no high number is free, a socket keeps the one that it has.
[[nodiscard]] std::unique_ptr<Listener> real_high_listener(Fd socket);

}  // namespace pawl
