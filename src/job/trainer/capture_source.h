// CaptureSource: what the capture needs of the trainer. All of it must outlive the Capture.
#pragma once

#include <functional>

#include "job/snapshot/trainer_page.h"
#include "job/trainer/copy_plan.h"
#include "job/trainer/gpu.h"

namespace pawl::job {

struct CaptureSource {
  const CopyPlan* plan = nullptr;
  EntryBases bases;                    // stable entries: live; volatile ones: staged
  Gpu* gpu = nullptr;                  // where some of the stable entries lie; nullptr: all are in host memory
  std::function<TrainerPage&()> page;  // any thread
  std::function<void()> notify;        // tells pawld that there is something new in the arena; any thread
  std::function<bool()> interrupted;   // a recovery or a stop is pending; any thread, cheap
};

}  // namespace pawl::job
