// charlm_plain: the same training without libpawl, not even linked: the reference that pawl is measured against.
#include "plain_trainer.h"
#include "training.h"

int main(int count, char** arguments) {
  return charlm::run_training<charlm::PlainTrainer>(count, arguments);
}
