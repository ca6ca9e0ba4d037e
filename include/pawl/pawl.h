/* pawl: the C interface, all that a trainer ever includes.
 *
 * Handles and threads: one handle per process, one training thread per handle. A call belongs to the thread that runs
 * the training loop unless its comment says "any thread". Nothing here throws, prints, forks or installs a signal
 * handler.
 *
 * Errors: a call that answers a pawl_status answers PAWL_OK or what pawl_status lists; pawl_error() then says why.
 * Any call may answer PAWL_RECOVER: drop the step in flight, close the connections to the other ranks, go to `join`.
 * Any call may answer PAWL_STOP: the job ends; clean up and leave.
 *
 * Units: bytes and elements as the name says, times in milliseconds (_ms) or nanoseconds (_ns), steps from 1 on.
 * Ownership: what you pass is read during the call only, unless its comment says that it is kept. Strings that pawl
 * returns are pawl's; each comment says how long they live.
 *
 * Structs may grow in later versions. Each begins with `struct_size`, which must be sizeof the struct: begin with its
 * PAWL_..._INIT, which sets it and makes everything else 0. A program built with an older pawl.h passes a smaller size;
 * the fields that it doesn't know count as 0. A program built with a newer one passes a larger size; the fields that
 * this library doesn't know must be 0, else the call answers PAWL_INVALID. Of a struct that pawl fills in, the fields
 * that fit into the caller's size are filled, and the fields that this library doesn't know become 0.
 *
 * PAWL=off in the environment: every call is a no-op that answers PAWL_OK, with these exceptions. The identity is read
 * from RANK, WORLD_SIZE and LOCAL_RANK (generation 0), the role is PAWL_ROLE_SEATED, pawl_event_fd answers -1,
 * pawl_event_next PAWL_TIMEOUT, and pawl_committed_step and pawl_interrupted 0. pawl_rendezvous_* work within this
 * process only: its threads meet there, ranks don't. pawl_stop_after agrees with itself. The size of a struct that pawl
 * fills in is still checked.
 *
 * Environment, read by pawl_attach:
 *   PAWL                    "off": see above. Default: on.
 *   PAWL_SOCKET             Unix socket of this node's pawld. Set by `pawl run`; there is no default.
 *   PAWL_LOCAL_INDEX        Which of the node's trainers this process is, from 0. Set by `pawl run`. Default: 0.
 *   PAWL_FENCE_DEADLINE_MS  How long pawl_fence waits for the copy; then the window is void and the step unprotected.
 *                           1 to 86400000, default 10000. Lower: a slow copy delays training less. Higher: steps of
 *                           large models on busy machines still become protected.
 *   PAWL_FENCE_SHARE        How much of the steps' time the waits of this seat's fences may take together, in percent, 1
 *                           to 100; default: they are limited by the deadline alone. A copy that needs more than what is
 *                           left is void, and the time is saved for a later step. At first a whole deadline is left, and
 *                           each fence may wait 5 ms. Seats save each for itself, and a step counts only where all have
 *                           it: with many seats whose copies take longer than a step few steps are protected.
 *                           "strict": every fence waits until the copy is done, without the deadline.
 *   PAWL_COPY_THREADS       Threads that copy state. 1 to 64. Default: as many as windows need, at most a quarter of the
 *                           cores and 8, at least 1. More: shorter copies where memory bandwidth is free, fewer
 *                           cores for training.
 *   PAWL_COMPARED_WINDOWS   How many windows are compared with the state that they were copied from and found right, and
 *                           are sealed only at their fence: the first ones, and again after one that was written. 0 to
 *                           4294967295, default 8. Of other windows one bucket is looked at. More: finds programs that
 *                           write stable state in an open window, also if they begin to do so late; each of these
 *                           windows is protected a part of a step later.
 *   PAWL_PARANOID           1: all stable state is hashed when a window opens and again at its fence, and a tensor that was
 *                           written meanwhile is named. For debugging: the training thread does both. Default: 0.
 *   PAWL_BUCKET_BYTES       How much is copied, checksummed and sent at once. 4096 to 16777216, a multiple of 4096,
 *                           default 262144. Larger: fewer messages. Smaller: less to repeat after a fault. It must be
 *                           the same on all nodes, because a seat may move.
 *   PAWL_KERNEL             Which of the processor's ways to copy and sum bytes is used, for tests and comparisons:
 *                           `pawl doctor` names those that there are. Default: the best one.
 *
 * The loop (docs/protocol.md follows one step and one recovery through it):
 *
 *     pawl_seat seat = PAWL_SEAT_INIT;
 *     pawl_attach(NULL, &t);
 *   join:
 *     pawl_recover_join(t, &seat);           // waits; a spare waits here until it gets a seat
 *     first time: pawl_mesh_add, pawl_tensor_add, pawl_blob_add, pawl_layout_seal
 *     if (seat.resume_step > 0) pawl_restore(t);
 *     connect to the other ranks with pawl_rendezvous_set and pawl_rendezvous_get
 *     pawl_recover_done(t);                  // waits until every seat is restored
 *     for (step = seat.resume_step + 1; step <= total; ++step) {
 *       pawl_step_begin(t, step);            // volatile state of step-1 is copied here
 *       forward, backward, reduce            // overlapped with the capture of step-1
 *       pawl_fence(t, NULL);                 // step-1 is copied out: stable state may change now
 *       optimizer
 *       pawl_window_open(t, step, samples);  // stable state is `step` from here to the next fence
 *     }
 *     pawl_finish(t);                        // the last step is committed on every seat
 *     pawl_detach(t);
 *
 * If resume_step is 0, the layout may also be sealed later: while the job runs, between two steps, on all seats after
 * the same step. Until then steps are unprotected: pawl_step_begin, pawl_fence and pawl_progress do what they can, and
 * pawl_window_open must wait for the seal. If a process dies before the first commit, every trainer process of the job
 * is started again from step 0. This is the only case in which survivors change process.
 */
#ifndef PAWL_PAWL_H
#define PAWL_PAWL_H

#include <stddef.h>
#include <stdint.h>

#include "pawl/version.h"

#if defined(__GNUC__)
#define PAWL_API __attribute__((visibility("default")))
#else
#define PAWL_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pawl_trainer pawl_trainer;

typedef enum pawl_status {
  PAWL_OK = 0,
  PAWL_RECOVER = 1,     /* a member was lost or is suspected: go to pawl_recover_join */
  PAWL_STOP = 2,        /* the job ends (finished elsewhere, stopped by its operator, or beyond recovery) */
  PAWL_INVALID = 3,     /* the call itself is wrong; nothing has changed */
  PAWL_TIMEOUT = 4,     /* a wait passed its deadline, or there is nothing yet */
  PAWL_UNREACHABLE = 5, /* no pawld at PAWL_SOCKET */
  PAWL_CORRUPT = 6,     /* stored or received bytes are wrong; they were not used */
  PAWL_IO = 7,          /* the operating system refused */
  PAWL_BROKEN = 8       /* a fault in pawl itself: it has detached, training goes on unprotected */
} pawl_status;

typedef enum pawl_dtype {
  PAWL_FLOAT32 = 0,
  PAWL_FLOAT64 = 1,
  PAWL_FLOAT16 = 2,
  PAWL_BFLOAT16 = 3,
  PAWL_INT8 = 4,
  PAWL_INT16 = 5,
  PAWL_INT32 = 6,
  PAWL_INT64 = 7,
  PAWL_UINT8 = 8,
  PAWL_UINT16 = 9,
  PAWL_UINT32 = 10,
  PAWL_UINT64 = 11,
  PAWL_BOOL = 12,
  PAWL_COMPLEX32 = 13, /* pairs of two halves, of two floats, of two doubles */
  PAWL_COMPLEX64 = 14,
  PAWL_COMPLEX128 = 15
} pawl_dtype;

/* When a tensor changes, hence when it is copied. */
typedef enum pawl_lifetime {
  PAWL_STABLE = 0,   /* only between pawl_fence and pawl_window_open: weights, optimizer state */
  PAWL_VOLATILE = 1, /* at any time within a step: RNG, sampler, scaler. Small: copied inside pawl_step_begin */
  PAWL_DERIVED = 2   /* computed from others: never captured, the trainer recomputes it after pawl_restore */
} pawl_lifetime;

typedef enum pawl_placement {
  PAWL_REPLICATE = 0, /* every rank of the mesh holds it whole */
  PAWL_UNIQUE = 1     /* only this rank holds it */
} pawl_placement;

/* What the training thread is doing, for the hang watch, `pawl status` and drills. */
typedef enum pawl_phase {
  PAWL_PHASE_NONE = 0,
  PAWL_PHASE_COMPUTE = 1,   /* forward and backward */
  PAWL_PHASE_ALLREDUCE = 2, /* waiting for others inside a collective before the update */
  PAWL_PHASE_FENCE = 3,     /* set by pawl: in pawl_fence, and until the update begins */
  PAWL_PHASE_UPDATE = 4,    /* the optimizer */
  PAWL_PHASE_ALLGATHER = 5, /* waiting for others inside a collective after the update began */
  PAWL_PHASE_JOIN = 6,      /* set by pawl: in pawl_recover_join (parked, or waiting for a decision) */
  PAWL_PHASE_RESTORE = 7,   /* set by pawl: in pawl_restore, and until pawl_recover_done returns */
  PAWL_PHASE_ASIDE = 8,     /* evaluation, logging: outside a step */
  PAWL_PHASE_FINISH = 9,    /* set by pawl: in pawl_finish */
  PAWL_PHASE_EXCHANGE = 10  /* own part of the update is done; the first collective that shares it has not begun */
} pawl_phase;

/* What a trainer is to the job, also before it has a seat. */
typedef enum pawl_role {
  PAWL_ROLE_UNKNOWN = 0, /* the job has not formed yet */
  PAWL_ROLE_SEATED = 1,  /* a seat is or was just given to it: pawl_recover_join answers without waiting for a death */
  PAWL_ROLE_SPARE = 2    /* the job has formed and this trainer has no seat */
} pawl_role;

/* The initialisers: pawl_tensor tensor = PAWL_TENSOR_INIT; */
#ifdef __cplusplus
} /* extern "C" */
template <class Struct>
inline Struct pawl_initialised() {
  Struct made = Struct();
  made.struct_size = sizeof(Struct);
  return made;
}
extern "C" {
#define PAWL_INIT(type) pawl_initialised<type>()
#else
#define PAWL_INIT(type) \
  { .struct_size = sizeof(type) }
#endif
#define PAWL_ATTACH_OPTIONS_INIT PAWL_INIT(pawl_attach_options)
#define PAWL_SEAT_INIT PAWL_INIT(pawl_seat)
#define PAWL_TENSOR_INIT PAWL_INIT(pawl_tensor)
#define PAWL_FENCE_REPORT_INIT PAWL_INIT(pawl_fence_report)
#define PAWL_EVENT_INIT PAWL_INIT(pawl_event)

typedef struct pawl_attach_options {
  size_t struct_size;      /* PAWL_ATTACH_OPTIONS_INIT */
  const char* socket_path; /* NULL: PAWL_SOCKET from the environment, which `pawl run` sets */
} pawl_attach_options;

/* Filled in by pawl. */
typedef struct pawl_seat {
  size_t struct_size; /* PAWL_SEAT_INIT */
  uint32_t seat;      /* stable place in the job; equals the rank */
  uint32_t rank;
  uint32_t world; /* number of seats */
  uint32_t local_rank;
  uint64_t generation;        /* version of the membership */
  uint64_t resume_step;       /* R: go on with R+1; 0: from the initial state */
  char rendezvous_prefix[48]; /* new for each generation; pawl_rendezvous_* already put it before the keys */
} pawl_seat;

/* State of this rank: a box of a tensor with a global shape. Lists have `dimension_count` numbers. */
typedef struct pawl_tensor {
  size_t struct_size; /* PAWL_TENSOR_INIT */
  const char* name;   /* canonical parameter name; the pair (name, role) is unique on this rank */
  const char* role;   /* weight, master, exp_avg, exp_avg_sq, step, buffer, ... */
  pawl_dtype dtype;
  uint32_t dimension_count; /* 0: a scalar; at most 8 */
  const uint64_t* shape;    /* global shape, in elements */
  const uint64_t* begin;    /* where this rank's box begins, in elements; NULL: at 0 */
  const uint64_t* size;     /* extent of this rank's box, in elements; NULL: up to the end of the tensor */
  uint32_t mesh;            /* from pawl_mesh_add */
  pawl_placement placement;
  pawl_lifetime lifetime;
  /* The box, contiguous, and row-major unless `order` says otherwise: the trainer's own memory, kept until pawl_detach or a
   * rebind. Host memory, or memory of a CUDA device, which pawl sees by itself: all such tensors of a trainer lie on one device. See pawl_stream_use. */
  void* data;
  /* Bit i: the box, and every byte of it, is equal on all ranks along axis i of the mesh. Of stable tensors only. Where a
   * rank's own copies are damaged or gone, its bytes are then also read from those ranks; what is known of its own sums proves them. */
  uint64_t equal_axes;
  /* For later versions. Not supported yet: must be 0 or NULL, else PAWL_INVALID names the field. */
  const char* unit;                 /* part of the model that is protected as one: "layers.3", "layers.3.experts.5" */
  uint32_t logical_dimension_count; /* of the list below */
  const uint64_t* logical_shape;    /* the tensor's shape in the model, where `shape` is flattened */
  /* How the box lies in `data`, where it isn't row-major: the dimensions of `shape`, each once, from the one with the greatest
   * stride to the one that runs fastest: 0,2,3,1 is NHWC of a shape that is NCHW. NULL: row-major. The memory is contiguous
   * in any case. Supported, other than the fields above. */
  const uint32_t* order;
} pawl_tensor;

/* Filled in by pawl. */
typedef struct pawl_fence_report {
  size_t struct_size; /* PAWL_FENCE_REPORT_INIT */
  uint64_t step;      /* whose window was fenced; 0: none was open */
  int captured;       /* 1: copied out and sealed; 0: void (protection lags one step) */
  uint64_t waited_ns; /* how long the training thread waited here */
  uint64_t captured_bytes;
  char why_void[96]; /* empty if captured */
  /* 1: pawl has seen that a stable tensor was written while the window was open. If `captured` is 1 as well, it was seen
   * too late: the step's snapshot holds bytes of no step. */
  int was_written;
  uint32_t written_tensor; /* the first such tensor, as pawl_tensor_add numbered it */
} pawl_fence_report;

typedef enum pawl_event_kind {
  PAWL_EVENT_RECOVERY = 1, /* a recovery is pending; value: the generation that it opens */
  PAWL_EVENT_STOP = 2,     /* the job ends; value: 0 */
  PAWL_EVENT_COMMITTED = 3 /* a step was committed on every seat; value: the step */
} pawl_event_kind;

/* Filled in by pawl. Skip kinds that you don't know: later versions may add some. */
typedef struct pawl_event {
  size_t struct_size; /* PAWL_EVENT_INIT */
  pawl_event_kind kind;
  uint64_t value;
} pawl_event;

/* Writes at most `capacity` bytes to `buffer` and their number to `size`. Answers 0, or anything else if it failed: the
 * window is void then. */
typedef int (*pawl_blob_save)(void* context, void* buffer, size_t capacity, size_t* size);
/* Takes back what a save wrote. Answers 0, or anything else if it doesn't understand the bytes. */
typedef int (*pawl_blob_load)(void* context, const void* buffer, size_t size);

/* Connects to this node's pawld; tries for up to 30 s. The handle is the caller's until pawl_detach. `options` may be
 * NULL. PAWL_UNREACHABLE: there is no pawld. */
PAWL_API pawl_status pawl_attach(const pawl_attach_options* options, pawl_trainer** trainer);
/* Ends the copy threads, disconnects, frees the handle. Never waits for another rank. NULL: does nothing. */
PAWL_API void pawl_detach(pawl_trainer* trainer);
/* Why this thread's last call failed, in a sentence. Lives until this thread's next call. Never NULL. With a NULL
 * trainer: why pawl_attach failed. */
PAWL_API const char* pawl_error(const pawl_trainer* trainer);
/* The seat as of the last pawl_recover_join. PAWL_INVALID before the first. */
PAWL_API pawl_status pawl_identity(const pawl_trainer* trainer, pawl_seat* seat);
/* This trainer's role now. Any thread; cheap (one load). */
PAWL_API pawl_role pawl_role_of(const pawl_trainer* trainer);
/* How many seats the job has, also while parked; 0: not known yet. Any thread; cheap (one load). */
PAWL_API uint32_t pawl_world(const pawl_trainer* trainer);

/* Declares a grid of ranks with named axes; the product of `sizes` is the number of seats. At most 8 axes. *mesh (may
 * be NULL) is its number: the first is 0. Before pawl_layout_seal. */
PAWL_API pawl_status pawl_mesh_add(pawl_trainer* trainer, const char* name, const char* const* axes,
                                   const uint64_t* sizes, uint32_t axis_count, uint32_t* mesh);
/* Declares a tensor. Of *tensor only the pointer `data` is kept. *id may be NULL. Before pawl_layout_seal. */
PAWL_API pawl_status pawl_tensor_add(pawl_trainer* trainer, const pawl_tensor* tensor, uint32_t* id);
/* The tensor lies elsewhere now, with the same shape. Not while its window is open. */
PAWL_API pawl_status pawl_tensor_rebind(pawl_trainer* trainer, uint32_t id, void* data);
/* Declares volatile state that callbacks write and read: pawl calls `save` in pawl_step_begin and `load` in
 * pawl_restore, on the training thread. `capacity`: the most bytes that it needs. If a snapshot is restored, the blob
 * has the capacity that the snapshot's layout has, however large `capacity` is here; `save` is told it. The callbacks
 * and `context` must stay valid until pawl_detach. Before pawl_layout_seal.
 * What a blob of the name "values.json" holds becomes the values and aliases of the checkpoints that pawld writes to storage;
 * one seat declares it. It is a JSON object: {"values": ANY, "aliases": {NAME: KEPT}}. An alias is one more name of a tied
 * tensor, which is declared once, as KEPT. Without such a blob these checkpoints have neither.
 * Where a job goes on from a checkpoint of a job of W seats (`pawl run --resume`), and has more or fewer itself, seat s
 * gets the blobs and volatile tensors that seat s mod W had, and a blob whose name ends with its own number ("rng/3") that
 * of the other's number. So what means one seat alone, as random numbers do, should say in its bytes whose it is, seat and
 * world: `load` then sees that it comes from another world. */
PAWL_API pawl_status pawl_blob_add(pawl_trainer* trainer, const char* name, size_t capacity, pawl_blob_save save,
                                   pawl_blob_load load, void* context);
/* Ends the declarations: compares them with those of the other seats and allocates the arena. PAWL_INVALID: replicated
 * tensors or meshes differ; the error names the first. PAWL_IO: no memory for the arena. Call it between
 * pawl_recover_join and pawl_recover_done, or, if resume_step is 0, also later between two steps. */
PAWL_API pawl_status pawl_layout_seal(pawl_trainer* trainer);

/* Step `step` begins: copies the volatile state that belongs to step-1. Before the layout is sealed it only counts. While
 * an operator drains a node (`pawl node drain`) it waits until all seats stand before the same step; then PAWL_RECOVER
 * follows. */
PAWL_API pawl_status pawl_step_begin(pawl_trainer* trainer, uint64_t step);
/* Waits until the open window is copied out and sealed; afterwards stable state may change. Answers PAWL_OK also if no
 * window is open, and if the window became void because time ran out or no slot was free. `report` may be NULL. */
PAWL_API pawl_status pawl_fence(pawl_trainer* trainer, pawl_fence_report* report);
/* For state on a CUDA device, before the first window or restore: the stream (CUstream, cudaStream_t) of the device's
 * primary context in which the program writes it; NULL: the legacy default stream. Its work may still be going on when
 * pawl is called: what the stream has when pawl_window_open is called belongs to the window's step, and pawl's copy threads
 * wait for it; pawl_step_begin waits for it only if there are volatile tensors on the device. pawl_restore waits until the
 * device has nothing left to do. What is launched after pawl_fence has returned may write stable state. Call it again when
 * the stream changes; other streams must be joined with it (cudaStreamWaitEvent) before those calls. Host memory that the
 * device writes (pinned, registered) is read at once: it must be settled when those are called. After pawl_recover_join. */
PAWL_API pawl_status pawl_stream_use(pawl_trainer* trainer, void* stream);
/* Stable state is now that of `step`; capture starts. `samples`: global samples consumed so far (`pawl status` shows
 * them). */
PAWL_API pawl_status pawl_window_open(pawl_trainer* trainer, uint64_t step, uint64_t samples);
/* The open window shall be void, since stable state was written: `why` stands in the fence's report. Without effect if
 * no window is open. If it is sealed already, which the report says, the snapshot on this node is marked: pawl_restore
 * refuses it, in later processes too. `why` may be NULL. */
PAWL_API pawl_status pawl_window_void(pawl_trainer* trainer, const char* why);
/* Tells the hang watch that this process is alive and in this phase. Any thread; cheap (no system call). A trainer that
 * finishes a lost step before it comes to pawl_recover_join gets more time while it calls this. */
PAWL_API pawl_status pawl_progress(pawl_trainer* trainer, pawl_phase phase);
/* Greatest step known to be committed on every seat; 0: none. Any thread. */
PAWL_API uint64_t pawl_committed_step(const pawl_trainer* trainer);

/* A file descriptor that is readable when an event waits: poll it beside your sockets, so that a blocked collective
 * ends within milliseconds. It is pawl's: don't read or close it. Any thread. */
PAWL_API int pawl_event_fd(const pawl_trainer* trainer);
/* PAWL_OK and an event; PAWL_TIMEOUT if none waits. Any thread. */
PAWL_API pawl_status pawl_event_next(pawl_trainer* trainer, pawl_event* event);
/* 1 if a recovery or a stop is pending. Any thread; cheap (one load). */
PAWL_API int pawl_interrupted(const pawl_trainer* trainer);
/* A collective failed, or the trainer sees another fault. Call pawl_recover_join afterwards. `what` may be NULL. */
PAWL_API pawl_status pawl_fault_report(pawl_trainer* trainer, const char* what);
/* The same, and whom the trainer found gone when the collective failed, before it closed its own connections: ranks, or
 * hosts of addresses ("10.0.0.7"), with blanks between. A node that most others name is replaced if the same happens to
 * it again without a new committed step. `lost` may be NULL or empty: it can't tell. */
PAWL_API pawl_status pawl_fault_report_lost(pawl_trainer* trainer, const char* what, const char* lost);

/* Ends the copy threads, tells pawld, and waits: for the job to form, for a seat (a spare), or for the decision of a
 * recovery. PAWL_OK: *seat (may be NULL) is filled in. A spare may wait here in a second thread; meanwhile its main
 * thread may call pawl_role_of, pawl_world, pawl_progress, pawl_committed_step and pawl_interrupted, nothing else. */
PAWL_API pawl_status pawl_recover_join(pawl_trainer* trainer, pawl_seat* seat);
/* Restores the state of resume_step into the declared tensors and blobs; each bucket is verified as it is copied, by all
 * cores at once. The layout must be sealed, unless resume_step is 0 (then there is nothing to do). PAWL_RECOVER also if
 * the source proved corrupt: pawl looks for another one; the tensors then have parts of it until the next pawl_restore.
 * PAWL_INVALID: stable state was written while that step was copied. */
PAWL_API pawl_status pawl_restore(pawl_trainer* trainer);
/* This seat is ready; waits until all are. The layout must be sealed, unless resume_step is 0. */
PAWL_API pawl_status pawl_recover_done(pawl_trainer* trainer);
/* Waits until the last window is committed on every seat and every seat has finished. All seats must finish after the
 * same step: if one waits here and another has begun a later step, the job fails and the error names the seat. */
PAWL_API pawl_status pawl_finish(pawl_trainer* trainer);

/* Proposes that the job ends after `step`. The first proposal of any seat wins; *agreed (may be NULL) is the step that
 * it named. Returns when every seat sees it in pawl_stop_step. No seat gets past a step without this one, so all can
 * end after the same step: compare it with pawl_stop_step after each. Another seat may be one step ahead, so the
 * earliest possible stop is this seat's current step plus one. After PAWL_RECOVER ask again; what was agreed stays. */
PAWL_API pawl_status pawl_stop_after(pawl_trainer* trainer, uint64_t step, uint64_t* agreed);
/* After which step the job ends; 0: nobody has asked for an end. Any thread; cheap (one load). */
PAWL_API uint64_t pawl_stop_step(const pawl_trainer* trainer);

/* Of a job that writes checkpoints to storage (`pawl run --checkpoint`): asks that this step, or the next one that can be, is written
 * out of turn. Returns at once. One seat is enough; calls of several in one step are one. It outlives a recovery. PAWL_INVALID: the
 * job writes none. Without a job (pawl switched off) it has no effect. */
PAWL_API pawl_status pawl_persist(pawl_trainer* trainer);
/* The newest step in storage, as far as this node knows; 0: none. Any thread; cheap (one load). A step that was asked for is
 * there at the earliest when a later one is committed: don't wait for it inside a step. */
PAWL_API uint64_t pawl_stored_step(const pawl_trainer* trainer);

/* Rendezvous: a small key-value store that all seats of this generation share, so that ranks find each other.
 *
 * When a call has returned, every seat sees its effect. A restart of a pawld loses nothing and does nothing twice. The
 * calls answer PAWL_RECOVER when the generation changes, PAWL_INVALID without a seat. Between pawl_recover_join and the
 * next one. Any thread (changes are made one at a time), but none may be inside when the handle is detached.
 * Keys end with a 0. Values are bytes, at most 16 MiB, copied in and out.
 * *size: the capacity of `value` on entry, the length of the value on return. If the value is longer than the capacity,
 * the answer is PAWL_INVALID and nothing is copied: call again with more room. */
PAWL_API pawl_status pawl_rendezvous_set(pawl_trainer* trainer, const char* key, const void* value, size_t size);
/* Waits for the key. PAWL_TIMEOUT: it was not there in time. */
PAWL_API pawl_status pawl_rendezvous_get(pawl_trainer* trainer, const char* key, void* value, size_t* size,
                                         uint32_t timeout_ms);
/* Waits for `count` keys, and asks for up to 256 of them at once: gloo's mesh has each rank read a key of every other.
 * sizes[i]: the length of the value of keys[i]. `values`: the values, one after another; *size: their capacity on entry,
 * their length on return. PAWL_TIMEOUT: not all were there in time. */
PAWL_API pawl_status pawl_rendezvous_get_all(pawl_trainer* trainer, const char* const* keys, size_t count, void* values,
                                             size_t* size, size_t* sizes, uint32_t timeout_ms);
/* Doesn't wait: PAWL_TIMEOUT if the key is not there. */
PAWL_API pawl_status pawl_rendezvous_try_get(pawl_trainer* trainer, const char* key, void* value, size_t* size);
/* Adds `amount` to the value, a decimal number (0 if the key is not there). *sum may be NULL. PAWL_INVALID: the value
 * is not a number. */
PAWL_API pawl_status pawl_rendezvous_add(pawl_trainer* trainer, const char* key, int64_t amount, int64_t* sum);
/* Sets the key to `desired` if its value is `expected`, or if it is not there and `expected` is empty. `value` becomes
 * what the key has afterwards; `expected` if it is not there. A `value` that is too small doesn't stop the change: give
 * it at least the size of `desired`; a longer answer then means that nothing was changed. */
PAWL_API pawl_status pawl_rendezvous_compare_set(pawl_trainer* trainer, const char* key, const void* expected,
                                                 size_t expected_size, const void* desired, size_t desired_size,
                                                 void* value, size_t* size);
/* *deleted (may be NULL): 1 if the key was there. */
PAWL_API pawl_status pawl_rendezvous_delete(pawl_trainer* trainer, const char* key, int* deleted);

/* A JSON object: seat, generation, step, committed, fence waits, voided windows. Lives until the next call. */
PAWL_API const char* pawl_status_json(pawl_trainer* trainer);

#ifdef __cplusplus
}
#endif
#endif
