// CaptureWindow: how far the capture of one step is, what its threads may do next, and how it ended.
//
// Its stages come in this order, and some are left out: idle, choosing (a slot), awaiting (a GPU), copying (helpers may begin), finishing
// (none begins any more), resolved, idle again. It is resolved once: sealed, or void with a reason.
// A value: it has no lock and waits for nothing. Who locks and who waits is job/trainer/capture.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/ids.h"
#include "env/clock.h"

namespace pawl::job {

struct WindowResult {
  Step step;
  bool captured = false;
  std::uint64_t captured_bytes = 0;
  std::string why_void;
  std::optional<std::uint32_t> written;  // an entry that was written while the window was open (window_check.h)
};

struct CaptureWindow {
  enum class Stage { idle, choosing, awaiting, copying, finishing, resolved };

  Stage stage = Stage::idle;
  std::uint64_t number = 0;     // of the window: a helper helps each one once
  std::uint32_t helpers = 0;    // how many may
  std::uint32_t helping = 0;    // helpers that copy now
  Duration copying_since{};     // of what is stable; if it is copied at all
  Duration copied{};            // how long that took; zero: it isn't done
  bool last_chance = false;     // the fence waits: no slot now is no slot
  bool needed = false;          // the last step, or all seats wait: it is captured whether it is its turn or not
  bool volatile_ready = false;  // volatile state is staged
  bool compared = false;        // before it is sealed, its copy is compared with the memory that it was made from
  bool settled = false;         // nothing is written at present, or any more: it may be compared
  std::string why_cancelled;
  WindowResult result;

  // The next window is open.
  void begin(Step step, bool shall_be_compared = false, std::uint32_t helper_count = UINT32_MAX) {
    result = WindowResult{step, false, 0, {}, {}};
    last_chance = needed = volatile_ready = settled = false;
    compared = shall_be_compared;
    helpers = helper_count;
    copying_since = copied = Duration::zero();
    why_cancelled.clear();
    ++number;
    stage = Stage::choosing;
  }
  // False: there is no window, or it is resolved already.
  [[nodiscard]] bool can_be_cancelled() const { return stage != Stage::idle && stage != Stage::resolved; }
  // The helper `index` (from 0), whose last window was number `helped`, shall copy.
  [[nodiscard]] bool wants_helper(std::uint32_t index, std::uint64_t helped) const {
    return stage == Stage::copying && index < helpers && helped != number;
  }
  // The leading thread has copied all that is stable: whether it may go on with the rest.
  [[nodiscard]] bool may_finish(bool cancelled) const { return (volatile_ready || cancelled) && helping == 0; }
  // All is copied: whether it may be sealed, or compared first.
  [[nodiscard]] bool may_end(bool cancelled) const { return !compared || settled || cancelled; }
  void seal(std::uint64_t bytes) {
    result.captured = true;
    result.captured_bytes = bytes;
    stage = Stage::resolved;
  }
  void make_void(std::string why) {
    result.why_void = std::move(why);
    stage = Stage::resolved;
  }
};

}  // namespace pawl::job
