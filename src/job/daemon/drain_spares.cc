#include "job/daemon/drain_spares.h"

#include <utility>

#include "job/recovery/spares.h"

namespace pawl::job {

void DrainSpares::forget() {
  if (hooks_.forget_probes) hooks_.forget_probes();
}

void DrainSpares::look(DrainView& view) {
  if (const auto leaving = who_leaves(view); std::exchange(asked_for_, leaving) != leaving) forget();
  answers_ = {};
  if (hooks_.probe && view.knows_nodes && must_ask_spares(view, context_.self))
    answers_ = hooks_.probe(spares_of(view.state, view.nodes, view.cordoned));
  view.silent = answers_.silent;
  view.unprobed = answers_.pending;
  if (!lacks_spare(view, context_.self))
    spareless_since_.reset();
  else if (!spareless_since_)
    spareless_since_ = view.now;
  view.spareless = spareless_since_ ? view.now - *spareless_since_ : Duration::zero();
}

}  // namespace pawl::job
