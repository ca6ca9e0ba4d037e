// Where gRPC's own log goes: into ours at debug when the environment says PAWL_LOG=debug, else nowhere.
#pragma once

namespace pawl::job {

void take_grpc_log();  // for the process; any number of times, from any thread

}  // namespace pawl::job
