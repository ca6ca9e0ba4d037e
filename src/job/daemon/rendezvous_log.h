// RendezvousLog: which changes the root of the rendezvous has carried out, in memory that outlives this pawld.
//
// A segment named "store" at the keeper: a pawld that returns replays it and goes on answering as the last one would
// have. Of one generation; it dies with the node, and so does the generation. What was appended is whole or not there,
// at whatever instant pawld is killed. When it is full it is written anew, shorter by what has been overwritten.
// On the loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "env/fd.h"
#include "env/shared_memory.h"

namespace pawl::job {

class RendezvousLog {
 public:
  using Hold = std::function<void(const std::string& name, int fd)>;  // tells the keeper
  RendezvousLog(SharedMemory& shared, std::string job, Hold hold)
      : shared_(shared), job_(std::move(job)), hold_(std::move(hold)) {}

  static constexpr const char* kName = "store";
  // What the pawld before us left. Fails: `corrupt`.
  [[nodiscard]] Status adopt(Fd fd);
  // Its records, if they are of this generation; else none.
  [[nodiscard]] std::vector<std::string> records(Generation generation) const;

  // Makes `record` last. If there is no room: `all` (which must account for everything but `record`) and then it, in
  // new memory. Fails: `full`; nothing has changed then.
  [[nodiscard]] Status append(Generation generation, const std::string& record,
                              const std::function<std::vector<std::string>()>& all);

 private:
  [[nodiscard]] Status begin_anew(Generation generation, std::span<const std::string> records, std::size_t room_bytes);
  [[nodiscard]] bool try_append(const std::string& record);

  SharedMemory& shared_;
  const std::string job_;
  const Hold hold_;
  Fd fd_;
  Mapping memory_;
  std::size_t used_bytes_ = 0;
};

}  // namespace pawl::job
