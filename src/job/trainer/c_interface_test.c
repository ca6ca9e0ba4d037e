/* pawl.h from C, against the shared library as installed: with PAWL=off a training loop runs, and nothing else is
 * needed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pawl/pawl.h"

#define EXPECT(condition)                                                     \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      return 1;                                                               \
    }                                                                         \
  } while (0)

int main(void) {
  pawl_trainer* t = NULL;
  pawl_attach_options options = PAWL_ATTACH_OPTIONS_INIT;
  pawl_seat seat = PAWL_SEAT_INIT, unset;
  pawl_tensor tensor = PAWL_TENSOR_INIT;
  pawl_fence_report report = PAWL_FENCE_REPORT_INIT;
  pawl_event event = PAWL_EVENT_INIT;
  const char* axis = "dp";
  uint64_t size = 1;
  uint64_t step;
  uint32_t mesh = 7;
  float weight = 1.0f;

  unsetenv("PAWL");
  unsetenv("PAWL_SOCKET");
  EXPECT(pawl_attach(NULL, &t) == PAWL_UNREACHABLE);
  EXPECT(t == NULL && strlen(pawl_error(NULL)) > 0);
  EXPECT(pawl_attach(&options, &t) == PAWL_UNREACHABLE);
  options.struct_size = 0; /* as of one that was never initialised */
  EXPECT(pawl_attach(&options, &t) == PAWL_INVALID && t == NULL);
  EXPECT(strstr(pawl_error(NULL), "PAWL_ATTACH_OPTIONS_INIT") != NULL);
  pawl_detach(NULL);

  setenv("PAWL", "off", 1);
  EXPECT(pawl_attach(NULL, &t) == PAWL_OK);
  EXPECT(pawl_recover_join(t, &seat) == PAWL_OK);
  EXPECT(seat.struct_size == sizeof seat && seat.world == 1);
  memset(&unset, 0, sizeof unset);
  EXPECT(pawl_identity(t, &unset) == PAWL_INVALID && strstr(pawl_error(t), "PAWL_SEAT_INIT") != NULL);
  EXPECT(unset.world == 0);
  EXPECT(pawl_identity(t, &seat) == PAWL_OK);
  EXPECT(pawl_event_next(t, &event) == PAWL_TIMEOUT);
  EXPECT(pawl_mesh_add(t, "data", &axis, &size, 1, &mesh) == PAWL_OK && mesh == 0);
  tensor.name = "w";
  tensor.role = "weight";
  tensor.data = &weight;
  EXPECT(pawl_tensor_add(t, &tensor, NULL) == PAWL_OK);
  EXPECT(pawl_layout_seal(t) == PAWL_OK);
  EXPECT(pawl_recover_done(t) == PAWL_OK);
  for (step = seat.resume_step + 1; step <= 3; ++step) {
    EXPECT(pawl_step_begin(t, step) == PAWL_OK);
    EXPECT(pawl_fence(t, NULL) == PAWL_OK);
    EXPECT(pawl_fence(t, &report) == PAWL_OK && report.step == 0);
    EXPECT(pawl_window_open(t, step, step) == PAWL_OK);
  }
  EXPECT(pawl_finish(t) == PAWL_OK);
  pawl_detach(t);
  return 0;
}
