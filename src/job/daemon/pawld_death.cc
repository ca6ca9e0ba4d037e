#include "job/daemon/pawld_death.h"

#include <atomic>
#include <utility>

#include "base/log.h"
#include "env/robust_mutex.h"

namespace pawl::job {
namespace {

pthread_mutex_t* mutex_in(const Mapping& page) {
  return reinterpret_cast<pthread_mutex_t*>(page.data());
}

}  // namespace

struct PawldDeath::Shared {
  Mapping page;
  std::unique_ptr<SharedEvent> told;
  std::atomic<bool> ended{false};  // nobody waits for it any more
};

Result<PawldDeath> PawldDeath::make(const Environment& environment) {
  PAWL_ASSIGN(Fd page, environment.memory.create("pawld-death", sizeof(pthread_mutex_t)));
  PAWL_ASSIGN(Mapping mapping, environment.memory.map(page.get(), sizeof(pthread_mutex_t), {}));
  PAWL_TRY(make_robust_mutex(mutex_in(mapping)));
  PAWL_ASSIGN(auto told, environment.network.make_event());
  std::shared_ptr<Shared> shared(new Shared{std::move(mapping), std::move(told)});
  return PawldDeath(environment, std::move(page), std::move(shared));
}

PawldDeath::PawldDeath(const Environment& environment, Fd page, std::shared_ptr<Shared> shared)
    : environment_(&environment), page_(std::move(page)), shared_(std::move(shared)) {}

PawldDeath::~PawldDeath() {
  if (shared_ != nullptr) shared_->ended = true;
}

void PawldDeath::watch() {
  if (std::exchange(watched_, true)) return;
  (void)environment_->tasks.start("pawld-death", [&processes = environment_->processes, shared = shared_] {
    if (processes.wait_for_owner_death(mutex_in(shared->page), shared->ended)) shared->told->raise();
  });
}

int PawldDeath::fd() const {
  return shared_->told->handle();
}

bool PawldDeath::has_died() const {
  return shared_->told->lower();
}

Status show_death(const Environment& environment, Fd page) {
  PAWL_ASSIGN(Mapping mapping, environment.memory.map(page.get(), sizeof(pthread_mutex_t), {.populate = true}));
  static Mapping* const kept = new Mapping(std::move(mapping));  // the kernel looks there when the process dies
  if (hold_robust_mutex(mutex_in(*kept))) return {};
  return Error{Code::timeout, "the mutex that shows pawld's death: another holds it"};
}

}  // namespace pawl::job
