// The watch of the etcd client: one task that reads one stream, and opens it again where it ended.
#pragma once

#include <memory>
#include <string>

#include "job/control/control.h"
#include "job/control/control_channel.h"

namespace pawl::job {

[[nodiscard]] std::unique_ptr<Watch> start_watch(std::shared_ptr<ControlChannel> channel, std::string prefix,
                                                 WatchOptions options, std::function<void(const WatchEvent&)> on_event);

}  // namespace pawl::job
