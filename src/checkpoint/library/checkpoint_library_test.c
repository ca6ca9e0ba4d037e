/* checkpoint.h from C, against the shared library as installed: a DCP checkpoint of three ranks and the golden file of
 * the same state are read through the same calls, whole, in boxes, transposed in memory and cast, and compared; every
 * call that is refused leaves the memory as it was. */
#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pawl/checkpoint.h"

#define EXPECT(condition)                                                                                   \
  do {                                                                                                      \
    if (!(condition)) {                                                                                     \
      fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #condition, pawl_checkpoint_error()); \
      return 1;                                                                                             \
    }                                                                                                       \
  } while (0)

enum { ROWS = 47, COLUMNS = 24, COUNT = ROWS * COLUMNS };
static const char* const kName = "tok_embeddings.weight";
static const char* const kCheckpoint = PAWL_FIXTURES "/torch/G1b_fsdp2_tied_w3/ckpt";
static const char* const kGolden = PAWL_FIXTURES "/torch/G1b_fsdp2_tied_w3/golden.safetensors";
static const char* const kReplicas = PAWL_FIXTURES "/deepspeed/pp2_tp2_dp2_bf16/ckpt";

static uint32_t index_of(const pawl_checkpoint* checkpoint, const char* name, const char* role) {
  const char* json = pawl_checkpoint_json(checkpoint);
  const char* found;
  uint32_t index = 0;
  char key[256];
  snprintf(key, sizeof key, "{\"name\":\"%s\",\"role\":\"%s\",", name, role);
  found = strstr(json, key);
  if (found == NULL) return ~0u;
  for (; (json = strstr(json, "{\"name\":")) != NULL && json < found; ++json) ++index;
  return index;
}

static int whole(pawl_checkpoint* checkpoint, const char* role, float* out) {
  pawl_checkpoint_request request = PAWL_CHECKPOINT_REQUEST_INIT;
  request.tensor = index_of(checkpoint, kName, role);
  request.memory = out;
  request.memory_bytes = COUNT * sizeof *out;
  EXPECT(pawl_checkpoint_read(checkpoint, &request, 1, NULL, NULL) == PAWL_OK);
  return 0;
}

static int removed(const char* path, const struct stat* about, int kind, struct FTW* place) {
  (void)about, (void)kind, (void)place;
  return remove(path);
}

/* Several requests in one call: a box transposed in memory, another role cast, and an overlapping box of the first. */
static int parts(pawl_checkpoint* checkpoint, const float* weight, const float* average) {
  static const uint64_t begin[2] = {5, 3}, size[2] = {29, 11}, stride_bytes[2] = {4, 160}, later[2] = {40, 0};
  static float box[11 * 40], rest[(ROWS - 40) * COLUMNS];
  static uint16_t narrow[COUNT];
  pawl_checkpoint_request requests[3] = {PAWL_CHECKPOINT_REQUEST_INIT, PAWL_CHECKPOINT_REQUEST_INIT,
                                         PAWL_CHECKPOINT_REQUEST_INIT};
  pawl_checkpoint_access_options options = PAWL_CHECKPOINT_ACCESS_OPTIONS_INIT;
  pawl_checkpoint_report report = PAWL_CHECKPOINT_REPORT_INIT;
  int i, j;
  for (i = 0; i < 11 * 40; ++i) box[i] = -7.0f;
  requests[0].tensor = index_of(checkpoint, kName, "weight");
  requests[0].dimension_count = 2;
  requests[0].begin = begin;
  requests[0].size = size;
  requests[0].stride_bytes = stride_bytes;
  requests[0].memory = box;
  requests[0].memory_bytes = (10 * 40 + 29) * sizeof *box;
  requests[1].tensor = index_of(checkpoint, kName, "exp_avg");
  requests[1].dtype = "bfloat16";
  requests[1].memory = narrow;
  requests[1].memory_bytes = sizeof narrow;
  requests[2].tensor = requests[0].tensor;
  requests[2].dimension_count = 2;
  requests[2].begin = later;
  requests[2].memory = rest;
  requests[2].memory_bytes = sizeof rest;
  EXPECT(pawl_checkpoint_check(checkpoint, requests, 3, NULL) == PAWL_OK);
  EXPECT(box[0] == -7.0f);
  options.threads = 1;
  options.without_io_uring = 1;
  EXPECT(pawl_checkpoint_read(checkpoint, requests, 3, &options, &report) == PAWL_OK);
  for (i = 0; i < 29; ++i)
    for (j = 0; j < 11; ++j) EXPECT(memcmp(&box[j * 40 + i], &weight[(5 + i) * COLUMNS + 3 + j], 4) == 0);
  for (j = 0; j < 11; ++j)
    for (i = 29; i < 40; ++i) EXPECT(box[j * 40 + i] == -7.0f); /* between what was asked for */
  for (i = 0; i < COUNT; ++i) {
    const uint32_t bits = (uint32_t)narrow[i] << 16;
    float value;
    memcpy(&value, &bits, 4);
    EXPECT(fabsf(value - average[i]) <= fabsf(average[i]) / 256);
  }
  EXPECT(memcmp(rest, weight + 40 * COLUMNS, sizeof rest) == 0);
  EXPECT(report.bytes_moved == 29 * 11 * 4 + sizeof narrow + sizeof rest && report.overflowed == 0);
  EXPECT(report.bytes_read >= 2 * COUNT && report.bytes_read < 1 << 20);
  return 0;
}

static int refusals(pawl_checkpoint* checkpoint) {
  static const uint64_t far[2] = {40, 0}, eight[2] = {8, COLUMNS}, twice[2] = {4, 4}, odd[2] = {96, 6};
  static float memory[COUNT];
  pawl_checkpoint_request request[2] = {PAWL_CHECKPOINT_REQUEST_INIT};
  pawl_checkpoint_access_options options = PAWL_CHECKPOINT_ACCESS_OPTIONS_INIT;
  pawl_checkpoint_report report;
  request[0].tensor = index_of(checkpoint, kName, "weight");
  request[0].memory = memory;
  request[0].memory_bytes = sizeof memory;
  request[1] = request[0]; /* the first is sound, and is not read either */
#define REFUSED(word)                                                                                      \
  EXPECT(pawl_checkpoint_read(checkpoint, request, 2, NULL, NULL) == PAWL_INVALID);                        \
  EXPECT(strstr(pawl_checkpoint_error(), word) != NULL && strstr(pawl_checkpoint_error(), kName) != NULL); \
  EXPECT(pawl_checkpoint_check(checkpoint, request, 2, NULL) == PAWL_INVALID && memory[0] == 0)
  request[1].dimension_count = 2;
  request[1].begin = far;
  request[1].size = eight;
  REFUSED("[47,24]");
  request[1].begin = NULL;
  request[1].size = NULL;
  request[1].memory_bytes = sizeof memory - 1;
  REFUSED("reaches");
  request[1].memory_bytes = sizeof memory;
  request[1].stride_bytes = twice;
  REFUSED("one place");
  request[1].stride_bytes = odd;
  REFUSED("multiple of an element");
  request[1].stride_bytes = NULL;
  request[1].memory = NULL;
  REFUSED("no memory");
  request[1].memory = memory;
  request[1].dtype = "int32";
  REFUSED("no such cast");
  request[1].dtype = "float12";
  REFUSED("float12");
  request[1].dtype = NULL;
  request[1].dimension_count = 3;
  REFUSED("3 dimensions");
  request[1].dimension_count = 0;
  request[1].tensor = 100000;
  EXPECT(pawl_checkpoint_read(checkpoint, request, 2, NULL, NULL) == PAWL_INVALID && memory[0] == 0);
  options.threads = 1025;
  EXPECT(pawl_checkpoint_read(checkpoint, request, 1, &options, NULL) == PAWL_INVALID && memory[0] == 0);
  EXPECT(strstr(pawl_checkpoint_error(), "threads") != NULL);
  memset(&report, 0, sizeof report); /* never initialised, as far as the library can see */
  EXPECT(pawl_checkpoint_read(checkpoint, request, 1, NULL, &report) == PAWL_INVALID && memory[0] == 0);
  EXPECT(strstr(pawl_checkpoint_error(), "PAWL_CHECKPOINT_REPORT_INIT") != NULL);
  request[1].struct_size = 0;
  EXPECT(pawl_checkpoint_read(checkpoint, request, 2, NULL, NULL) == PAWL_INVALID && memory[0] == 0);
  request[0].struct_size = 0;
  EXPECT(pawl_checkpoint_read(checkpoint, request, 1, NULL, NULL) == PAWL_INVALID && memory[0] == 0);
  EXPECT(strstr(pawl_checkpoint_error(), "PAWL_CHECKPOINT_REQUEST_INIT") != NULL);
  request[0].struct_size = sizeof request[0];
  EXPECT(pawl_checkpoint_read(checkpoint, NULL, 1, NULL, NULL) == PAWL_INVALID);
  EXPECT(pawl_checkpoint_read(NULL, request, 1, NULL, NULL) == PAWL_INVALID);
  EXPECT(pawl_checkpoint_read(checkpoint, NULL, 0, NULL, NULL) == PAWL_OK);
  return 0;
}

/* A program that was built with a later checkpoint.h: its requests and options are longer. What it adds must be 0. */
static int later_versions(pawl_checkpoint* checkpoint, const float* expected) {
  static float memory[2][COUNT];
  struct {
    pawl_checkpoint_request request;
    uint64_t added;
  } later[2];
  struct {
    pawl_checkpoint_access_options options;
    uint64_t added;
  } options;
  struct {
    pawl_checkpoint_report report;
    uint64_t added;
  } report;
  int i;
  memset(later, 0, sizeof later);
  memset(&options, 0, sizeof options);
  options.options.struct_size = sizeof options;
  report.report.struct_size = sizeof report;
  report.added = 7;
  for (i = 0; i < 2; ++i) {
    later[i].request.struct_size = sizeof later[i];
    later[i].request.tensor = index_of(checkpoint, kName, "weight");
    later[i].request.memory = memory[i];
    later[i].request.memory_bytes = sizeof memory[i];
  }
  EXPECT(pawl_checkpoint_read(checkpoint, &later[0].request, 2, &options.options, &report.report) == PAWL_OK);
  EXPECT(memcmp(memory[0], expected, sizeof memory[0]) == 0 && memcmp(memory[1], expected, sizeof memory[1]) == 0);
  EXPECT(report.report.bytes_moved == sizeof memory && report.report.struct_size == sizeof report);
  EXPECT(report.added == 0);
  memset(memory, 0, sizeof memory);
  later[1].added = 1;
  EXPECT(pawl_checkpoint_read(checkpoint, &later[0].request, 2, NULL, NULL) == PAWL_INVALID && memory[0][0] == 0);
  EXPECT(strstr(pawl_checkpoint_error(), "newer pawl") != NULL);
  later[1].added = 0;
  options.added = 1;
  EXPECT(pawl_checkpoint_read(checkpoint, &later[0].request, 2, &options.options, NULL) == PAWL_INVALID);
  EXPECT(strstr(pawl_checkpoint_error(), "pawl_checkpoint_access_options") != NULL && memory[0][0] == 0);
  return 0;
}

/* Nothing is cancelled that a watch is not used for; what is, ends, and nothing is written. */
static int watched(pawl_checkpoint* checkpoint, float* memory) {
  pawl_checkpoint_request request = PAWL_CHECKPOINT_REQUEST_INIT;
  pawl_checkpoint_access_options options = PAWL_CHECKPOINT_ACCESS_OPTIONS_INIT;
  pawl_checkpoint_watch* watch = NULL;
  uint64_t done = 1, all = 1;
  uint32_t tensor;
  request.tensor = tensor = index_of(checkpoint, kName, "weight");
  request.memory = memory;
  request.memory_bytes = COUNT * sizeof *memory;
  EXPECT(pawl_checkpoint_watch_create(NULL) == PAWL_INVALID);
  EXPECT(pawl_checkpoint_watch_create(&watch) == PAWL_OK);
  pawl_checkpoint_watch_look(watch, &done, &all);
  EXPECT(done == 0 && all == 0);
  options.watch = watch;
  EXPECT(pawl_checkpoint_read(checkpoint, &request, 1, &options, NULL) == PAWL_OK);
  pawl_checkpoint_watch_look(watch, &done, &all);
  EXPECT(done == COUNT * sizeof *memory && all == done);
  memset(memory, 0, COUNT * sizeof *memory);
  pawl_checkpoint_watch_cancel(watch);
  EXPECT(pawl_checkpoint_read(checkpoint, &request, 1, &options, NULL) == PAWL_STOP && memory[0] == 0);
  EXPECT(strstr(pawl_checkpoint_error(), "cancelled") != NULL);
  EXPECT(pawl_checkpoint_check(checkpoint, &request, 1, &options) == PAWL_OK);
  EXPECT(pawl_checkpoint_prove(checkpoint, &tensor, 1, 0, 1, NULL) == PAWL_OK);
  EXPECT(pawl_checkpoint_read(checkpoint, &request, 1, NULL, NULL) == PAWL_OK && memory[0] != 0);
  pawl_checkpoint_watch_free(watch);
  pawl_checkpoint_watch_look(NULL, &done, &all);
  pawl_checkpoint_watch_cancel(NULL);
  pawl_checkpoint_watch_free(NULL);
  return 0;
}

/* The only peer is this process: what is wanted there arrives, and nothing when it has left. */
static int peers(pawl_checkpoint* checkpoint, float* memory, const float* expected) {
  pawl_checkpoint_peers *alone = NULL, *other = NULL;
  pawl_checkpoint_request request[2] = {PAWL_CHECKPOINT_REQUEST_INIT};
  const char* tickets[2];
  float back = 0;
  pawl_status joined;
  request[0].tensor = index_of(checkpoint, kName, "weight");
  request[0].memory = memory;
  request[0].memory_bytes = COUNT * sizeof *memory;
  EXPECT(pawl_checkpoint_peers_open(NULL) == PAWL_INVALID);
  EXPECT(pawl_checkpoint_peers_open(&alone) == PAWL_OK && pawl_checkpoint_peers_open(&other) == PAWL_OK);
  tickets[0] = pawl_checkpoint_peers_ticket(alone);
  tickets[1] = NULL;
  EXPECT(strcmp(tickets[0], pawl_checkpoint_peers_ticket(other)) != 0);
  EXPECT(pawl_checkpoint_peers_join(NULL, tickets, 1, 0) == PAWL_INVALID);
  EXPECT(pawl_checkpoint_peers_join(alone, NULL, 1, 0) == PAWL_INVALID);
  EXPECT(pawl_checkpoint_peers_join(alone, tickets, 2, 0) == PAWL_INVALID);
  EXPECT(pawl_checkpoint_peers_join(alone, tickets, 1, 1) == PAWL_INVALID);
  joined = pawl_checkpoint_peers_join(alone, tickets, 1, 0);
  if (joined == PAWL_IO) {
    printf("privilege: process_vm_writev is refused here: peers not tried\n");
  } else {
    EXPECT(joined == PAWL_OK);
    memset(memory, 0, COUNT * sizeof *memory);
    request[0].peers = alone;
    EXPECT(pawl_checkpoint_read(checkpoint, request, 1, NULL, NULL) == PAWL_OK);
    EXPECT(memcmp(memory, expected, COUNT * sizeof *memory) == 0);
    EXPECT(pawl_checkpoint_peers_read(alone, 0, (uint64_t)(uintptr_t)(memory + 1), &back, sizeof back) == PAWL_OK);
    EXPECT(back == memory[1]);
    EXPECT(pawl_checkpoint_peers_read(alone, 1, 0, &back, sizeof back) == PAWL_INVALID);
    EXPECT(pawl_checkpoint_peers_read(alone, 0, 0, NULL, 1) == PAWL_INVALID);
    request[0].peer = 1;
    EXPECT(pawl_checkpoint_read(checkpoint, request, 1, NULL, NULL) == PAWL_INVALID);
    request[0].peer = 0;
    request[1] = request[0];
    request[1].peers = other;
    EXPECT(pawl_checkpoint_read(checkpoint, request, 2, NULL, NULL) == PAWL_INVALID);
    EXPECT(pawl_checkpoint_peers_leave(alone, 0) == PAWL_OK && pawl_checkpoint_peers_leave(alone, 0) == PAWL_OK);
    memset(memory, 0, COUNT * sizeof *memory);
    EXPECT(pawl_checkpoint_read(checkpoint, request, 1, NULL, NULL) == PAWL_UNREACHABLE && memory[0] == 0);
    EXPECT(strstr(pawl_checkpoint_error(), "left") != NULL);
  }
  EXPECT(pawl_checkpoint_peers_leave(NULL, 0) == PAWL_INVALID);
  EXPECT(strcmp(pawl_checkpoint_peers_ticket(NULL), "") == 0);
  pawl_checkpoint_peers_free(alone);
  pawl_checkpoint_peers_free(other);
  pawl_checkpoint_peers_free(NULL);
  return 0;
}

static int opening(void) {
  pawl_checkpoint* checkpoint = (pawl_checkpoint*)&kName;
  pawl_checkpoint_open_options options = PAWL_CHECKPOINT_OPEN_OPTIONS_INIT;
  EXPECT(pawl_checkpoint_open(PAWL_FIXTURES "/nothing", NULL, &checkpoint) == PAWL_INVALID && checkpoint == NULL);
  EXPECT(strstr(pawl_checkpoint_error(), "nothing") != NULL);
  EXPECT(pawl_checkpoint_open(NULL, NULL, &checkpoint) == PAWL_INVALID);
  EXPECT(pawl_checkpoint_open(kCheckpoint, NULL, NULL) == PAWL_INVALID);
  options.names = (pawl_checkpoint_names)3;
  EXPECT(pawl_checkpoint_open(kCheckpoint, &options, &checkpoint) == PAWL_INVALID);
  EXPECT(strstr(pawl_checkpoint_error(), "names") != NULL);
  options.names = PAWL_CHECKPOINT_NAMES_STORED;
  options.family = "mine";
  EXPECT(pawl_checkpoint_open(kCheckpoint, &options, &checkpoint) == PAWL_INVALID);
  EXPECT(strstr(pawl_checkpoint_error(), "mine") != NULL);
  options.family = NULL;
  options.struct_size = 8;
  EXPECT(pawl_checkpoint_open(kCheckpoint, &options, &checkpoint) == PAWL_INVALID && checkpoint == NULL);
  EXPECT(strstr(pawl_checkpoint_error(), "PAWL_CHECKPOINT_OPEN_OPTIONS_INIT") != NULL);
  EXPECT(strcmp(pawl_checkpoint_json(NULL), "null") == 0);
  pawl_checkpoint_close(NULL);
  return 0;
}

/* Replicas that are equal; what is stored once is not looked at. */
static int replicas(void) {
  pawl_checkpoint* checkpoint;
  uint32_t some[20], none = 100000, i;
  EXPECT(pawl_checkpoint_open(kReplicas, NULL, &checkpoint) == PAWL_OK);
  EXPECT(strstr(pawl_checkpoint_json(checkpoint), "\"copies\":2") != NULL);
  for (i = 0; i < 20; ++i) some[i] = i;
  EXPECT(pawl_checkpoint_compare(checkpoint, some, 20, NULL) == PAWL_OK);
  EXPECT(pawl_checkpoint_compare(checkpoint, &none, 1, NULL) == PAWL_INVALID);
  pawl_checkpoint_close(checkpoint);
  return 0;
}

/* A store of one part: what is written is read again. */
static int stores(const float* weight) {
  static const uint64_t shape[2] = {ROWS, COLUMNS};
  static float back[COUNT];
  char folder[] = "/tmp/pawl-checkpoint-library-XXXXXX", path[64];
  pawl_checkpoint_store_options options = PAWL_CHECKPOINT_STORE_OPTIONS_INIT;
  pawl_checkpoint_store_piece piece = PAWL_CHECKPOINT_STORE_PIECE_INIT;
  pawl_checkpoint_request request = PAWL_CHECKPOINT_REQUEST_INIT;
  pawl_checkpoint_store* store = NULL;
  pawl_checkpoint* checkpoint = NULL;
  const char* share = NULL;
  EXPECT(mkdtemp(folder) != NULL);
  snprintf(path, sizeof path, "%s/step1", folder);
  options.expected_bytes = COUNT * sizeof *weight;
  EXPECT(pawl_checkpoint_store_begin(path, &options, NULL) == PAWL_INVALID);
  options.struct_size = 0;
  EXPECT(pawl_checkpoint_store_begin(path, &options, &store) == PAWL_INVALID && store == NULL);
  EXPECT(strstr(pawl_checkpoint_error(), "PAWL_CHECKPOINT_STORE_OPTIONS_INIT") != NULL);
  options.struct_size = sizeof options;
  EXPECT(pawl_checkpoint_store_begin(path, &options, &store) == PAWL_OK);
  piece.name = kName;
  piece.dtype = "float32";
  piece.dimension_count = 2;
  piece.shape = shape;
  piece.memory = weight;
  piece.struct_size = 0;
  EXPECT(pawl_checkpoint_store_write_part(pawl_checkpoint_store_folder(store), 0, &piece, 1, NULL, &share) ==
         PAWL_INVALID);
  EXPECT(strstr(pawl_checkpoint_error(), "PAWL_CHECKPOINT_STORE_PIECE_INIT") != NULL);
  piece.struct_size = sizeof piece;
  EXPECT(pawl_checkpoint_store_write_part(pawl_checkpoint_store_folder(store), 0, &piece, 1, NULL, &share) == PAWL_OK);
  EXPECT(pawl_checkpoint_store_publish(store, &share, 1, "{\"step\": 1}", NULL, 0) == PAWL_OK);
  pawl_checkpoint_store_end(store);
  pawl_checkpoint_store_end(NULL);
  EXPECT(pawl_checkpoint_store_begin(path, NULL, &store) == PAWL_INVALID); /* there is one */
  options.overwrite = 1;
  EXPECT(pawl_checkpoint_store_begin(path, &options, &store) == PAWL_OK);
  pawl_checkpoint_store_end(store); /* not published: the old one stays */
  EXPECT(pawl_checkpoint_open(path, NULL, &checkpoint) == PAWL_OK);
  EXPECT(strstr(pawl_checkpoint_json(checkpoint), "{\"step\": 1}") != NULL);
  request.memory = back;
  request.memory_bytes = sizeof back;
  EXPECT(pawl_checkpoint_read(checkpoint, &request, 1, NULL, NULL) == PAWL_OK);
  EXPECT(memcmp(back, weight, sizeof back) == 0);
  pawl_checkpoint_close(checkpoint);
  return nftw(folder, &removed, 8, FTW_DEPTH | FTW_PHYS) != 0;
}

/* Two ranks of one replica write half of it each; a third one's own is its own. */
static int divisions(void) {
  static const uint64_t shape[2] = {8, 3}, lower[2] = {4, 0}, rows[2] = {4, 3};
  static const size_t counts[4] = {1, 2, 0, 1};
  struct {
    pawl_checkpoint_division_options options;
    uint64_t added;
  } later;
  pawl_checkpoint_division_options options = PAWL_CHECKPOINT_DIVISION_OPTIONS_INIT;
  pawl_checkpoint_held_piece pieces[4] = {PAWL_CHECKPOINT_HELD_PIECE_INIT, PAWL_CHECKPOINT_HELD_PIECE_INIT,
                                          PAWL_CHECKPOINT_HELD_PIECE_INIT, PAWL_CHECKPOINT_HELD_PIECE_INIT};
  pawl_checkpoint_division* division = (pawl_checkpoint_division*)&kName;
  const uint64_t* boxes;
  size_t count = 7;
  int i;
  for (i = 0; i < 4; ++i) {
    pieces[i].name = i == 1 ? "number" : i == 3 ? "own" : "shared";
    pieces[i].dtype = "float32";
    pieces[i].dimension_count = i == 1 ? 0 : 2;
    pieces[i].element_bytes = 4;
    pieces[i].shape = shape;
  }
  pieces[3].begin = lower;
  options.part_bytes_min = 12;
  EXPECT(pawl_checkpoint_divide(pieces, counts, 4, &options, NULL) == PAWL_INVALID);
  EXPECT(pawl_checkpoint_divide(pieces, counts, 4, &options, &division) == PAWL_OK);
  boxes = pawl_checkpoint_division_boxes(division, 0, &count);
  EXPECT(count == 1 && boxes[0] == 0 && memcmp(boxes + 3, rows, sizeof rows) == 0 && boxes[1] == 0);
  boxes = pawl_checkpoint_division_boxes(division, 1, &count);
  EXPECT(count == 2 && boxes[0] == 0 && boxes[1] == 1 && boxes[2] == 4 && memcmp(boxes + 4, rows, sizeof rows) == 0);
  EXPECT(pawl_checkpoint_division_boxes(division, 2, &count) != NULL && count == 0);
  boxes = pawl_checkpoint_division_boxes(division, 3, &count);
  EXPECT(count == 1 && memcmp(boxes + 1, lower, sizeof lower) == 0 && memcmp(boxes + 3, rows, sizeof rows) == 0);
  EXPECT(pawl_checkpoint_division_boxes(division, 4, &count) == NULL && count == 0);
  pawl_checkpoint_division_free(division);
  EXPECT(pawl_checkpoint_divide(pieces, counts, 4, NULL, &division) == PAWL_OK); /* 96 bytes aren't worth a cut */
  EXPECT(pawl_checkpoint_division_boxes(division, 0, &count) != NULL && count == 1);
  EXPECT(pawl_checkpoint_division_boxes(division, 1, &count) != NULL && count == 1);
  pawl_checkpoint_division_free(division);

  pieces[2].sample = 1;
  EXPECT(pawl_checkpoint_divide(pieces, counts, 4, NULL, &division) == PAWL_INVALID && division == NULL);
  EXPECT(strstr(pawl_checkpoint_error(), "shared (weight) on ranks 0 and 1") != NULL);
  options.without_replica_check = 1;
  EXPECT(pawl_checkpoint_divide(pieces, counts, 4, &options, &division) == PAWL_OK);
  EXPECT(pawl_checkpoint_division_boxes(division, 1, &count) != NULL && count == 1);
  pawl_checkpoint_division_free(division);
  pieces[3].name = NULL;
  EXPECT(pawl_checkpoint_divide(pieces, counts, 4, &options, &division) == PAWL_INVALID);
  pieces[3].name = "own";
  pieces[3].dimension_count = 9;
  EXPECT(pawl_checkpoint_divide(pieces, counts, 4, &options, &division) == PAWL_INVALID);
  EXPECT(strstr(pawl_checkpoint_error(), "own: 9 dimensions") != NULL);
  pieces[3].dimension_count = 2;
  pieces[3].element_bytes = 0;
  EXPECT(pawl_checkpoint_divide(pieces, counts, 4, &options, &division) == PAWL_INVALID);
  pieces[3].struct_size = 0;
  EXPECT(pawl_checkpoint_divide(pieces, counts, 4, &options, &division) == PAWL_INVALID);
  pieces[0].struct_size = 0;
  EXPECT(pawl_checkpoint_divide(pieces, counts, 4, &options, &division) == PAWL_INVALID);
  EXPECT(strstr(pawl_checkpoint_error(), "PAWL_CHECKPOINT_HELD_PIECE_INIT") != NULL);
  EXPECT(pawl_checkpoint_divide(NULL, counts, 4, &options, &division) == PAWL_INVALID);
  EXPECT(pawl_checkpoint_divide(pieces, NULL, 4, &options, &division) == PAWL_INVALID);
  memset(&later, 0, sizeof later);
  later.options.struct_size = sizeof later;
  EXPECT(pawl_checkpoint_divide(NULL, NULL, 0, &later.options, &division) == PAWL_OK);
  pawl_checkpoint_division_free(division);
  later.added = 1;
  EXPECT(pawl_checkpoint_divide(NULL, NULL, 0, &later.options, &division) == PAWL_INVALID);
  EXPECT(pawl_checkpoint_division_boxes(NULL, 0, &count) == NULL && count == 0);
  pawl_checkpoint_division_free(NULL);
  return 0;
}

int main(void) {
  static float weight[COUNT], average[COUNT], expected[COUNT];
  pawl_checkpoint *checkpoint, *golden;
  EXPECT(pawl_checkpoint_open(kCheckpoint, NULL, &checkpoint) == PAWL_OK);
  EXPECT(pawl_checkpoint_open(kGolden, NULL, &golden) == PAWL_OK);
  EXPECT(strstr(pawl_checkpoint_json(checkpoint), "\"format\":\"PyTorch DCP\"") != NULL);
  if (whole(checkpoint, "weight", weight) != 0 || whole(golden, "weight", expected) != 0) return 1;
  EXPECT(weight[0] != 0 && memcmp(weight, expected, sizeof weight) == 0);
  if (whole(checkpoint, "exp_avg", average) != 0 || whole(golden, "exp_avg", expected) != 0) return 1;
  EXPECT(memcmp(average, expected, sizeof average) == 0);
  pawl_checkpoint_close(golden);
  if (parts(checkpoint, weight, average) != 0 || refusals(checkpoint) != 0) return 1;
  if (later_versions(checkpoint, weight) != 0) return 1;
  if (watched(checkpoint, weight) != 0 || stores(weight) != 0) return 1;
  if (whole(checkpoint, "weight", expected) != 0) return 1;
  if (peers(checkpoint, weight, expected) != 0) return 1;
  pawl_checkpoint_close(checkpoint);
  return opening() != 0 || replicas() != 0 || divisions() != 0;
}
