// A pickle from anywhere, and a walk over what it describes. Seeds: any .metadata, any data.pkl.
#include <cstdlib>

#include "checkpoint/containers/pickle.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size);

int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace pawl;
  using namespace pawl::checkpoint;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  PickleLimits limits;
  limits.memory_bytes = 64 << 20;
  bool ended_early = false;
  const Result<Pickle> pickle = parse_pickle(bytes, limits, &ended_early);
  if (!pickle) {
    if (pickle.error().what.empty() || pickle.error().code == Code::broken) std::abort();
    return 0;
  }
  if (ended_early || pickle->source_bytes() > size || pickle->root() >= pickle->count()) std::abort();
  for (Pickle::Value value = 0; value < pickle->count(); ++value) {
    (void)pickle->describe(value);
    (void)pickle->text(value);
    for (const Pickle::Value item : pickle->items(value))
      if (item >= pickle->count()) std::abort();
    const Pickle::Object object = pickle->object(value);
    if (pickle->is(value, PickleKind::object) && (object.callable >= value || object.arguments >= value)) std::abort();
    (void)pickle->find(value, "state");
  }
  return 0;
}
