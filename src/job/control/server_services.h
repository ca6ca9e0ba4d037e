// The unary services and lease renewal of the embedded server: from the wire into the committer and back.
//
// Nothing blocks: an answer is finished by whoever finds it durable.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "job/control/server_commit.h"
#include "rpc.grpc.pb.h"

namespace pawl::job {

// UNAUTHENTICATED unless the call carries `token`; an empty token admits everybody.
[[nodiscard]] grpc::Status check_token(const grpc::CallbackServerContext& context, const std::string& token);
void fill_header(const Committer& committer, Revision revision, etcdserverpb::ResponseHeader* header);

// KV, Lease and Maintenance. Both pointers are borrowed for the services' life.
[[nodiscard]] std::vector<std::unique_ptr<grpc::Service>> make_services(Committer* committer, std::string token);

}  // namespace pawl::job
