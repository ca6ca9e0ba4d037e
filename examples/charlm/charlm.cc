// charlm: the training with libpawl. Start it with `pawl run`; with PAWL=off it is a plain training.
#include "training.h"

int main(int count, char** arguments) {
  return charlm::run_training<pawl::Trainer>(count, arguments);
}
