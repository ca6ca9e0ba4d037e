/* pawl: the C interface, all that a trainer ever includes.
 *
 * One handle per process, one training thread per handle: unless a call says otherwise it belongs to the thread that
 * runs the training loop. Nothing here throws, prints, forks or installs a signal handler.
 *
 * With PAWL=off in the environment every call is a no-op that answers PAWL_OK, but: the identity is read from RANK,
 * WORLD_SIZE and LOCAL_RANK (generation 0), the role is PAWL_ROLE_SEATED, pawl_event_fd answers -1, pawl_event_next
 * PAWL_TIMEOUT, and pawl_committed_step and pawl_interrupted 0. The store is a working one of this process alone, for
 * its threads: ranks don't meet in it. pawl_stop_after agrees with itself.
 *
 * Environment, besides PAWL; `pawl run` sets the first two:
 *   PAWL_SOCKET             where this node's pawld listens
 *   PAWL_LOCAL_INDEX        which of the node's trainers this process is
 *   PAWL_FENCE_DEADLINE_MS  a window that is not copied out so long after pawl_fence began is void; 1 to 86400000
 * (10000) PAWL_COPY_THREADS       that capture; 1 to 64 (a quarter of the cores, at most 2) PAWL_BUCKET_BYTES that are
 * copied, summed and sent at a time; 4096 to 16777216, by 4096 (262144). The same on all nodes, since a seat may move
 *
 * The loop (docs/protocol.md follows one step and one recovery through it):
 *
 *     pawl_attach(NULL, &t);
 *   join:
 *     pawl_recover_join(t, &seat);           // waits; also where a spare is parked until it is given a seat
 *     first time: pawl_mesh_add, pawl_tensor_add, pawl_blob_add, pawl_layout_seal
 *     if (seat.resume_step > 0) pawl_restore(t);
 *     connect to the other ranks with pawl_store_set and pawl_store_get
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
 * The layout may be sealed later where resume_step is 0: while the job runs, between two steps, on all seats after the
 * same one. Until then steps are unprotected: pawl_step_begin, pawl_fence and pawl_progress do what they can, and
 * pawl_window_open is for after the seal. A death before the first commit starts every trainer process of the job anew,
 * from step 0: the only case in which survivors change process.
 *
 * Any call may answer PAWL_RECOVER: drop the step in flight, close the connections to the other ranks, go to `join`.
 * Any call may answer PAWL_STOP: the job ends; clean up and leave. pawl_error() has the sentence.
 */
#ifndef PAWL_PAWL_H
#define PAWL_PAWL_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define PAWL_API __attribute__((visibility("default")))
#else
#define PAWL_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define PAWL_VERSION_MAJOR 0
#define PAWL_VERSION_MINOR 1

typedef struct pawl_trainer pawl_trainer;

typedef enum pawl_status {
  PAWL_OK = 0,
  PAWL_RECOVER = 1,     /* a member was lost or is suspected: go to pawl_recover_join */
  PAWL_STOP = 2,        /* the job ends (finished elsewhere, stopped by its operator, or beyond recovery) */
  PAWL_INVALID = 3,     /* the call itself is wrong; nothing has changed */
  PAWL_TIMEOUT = 4,     /* a named wait passed its deadline */
  PAWL_UNREACHABLE = 5, /* no pawld at PAWL_SOCKET */
  PAWL_CORRUPT = 6,     /* bytes that should be ours are wrong; they were not used */
  PAWL_IO = 7,          /* the system refused */
  PAWL_BROKEN = 8       /* pawl's own mistake: it has detached, training goes on unprotected */
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
  PAWL_BOOL = 12
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

typedef struct pawl_attach_options {
  const char* socket_path; /* NULL: PAWL_SOCKET from the environment, which `pawl run` sets */
} pawl_attach_options;

typedef struct pawl_seat {
  uint32_t seat; /* stable place in the job; equals the rank */
  uint32_t rank;
  uint32_t world; /* number of seats */
  uint32_t local_rank;
  uint64_t generation;   /* version of the membership */
  uint64_t resume_step;  /* R: go on with R+1; 0: from the initial state */
  char store_prefix[48]; /* new for each generation; pawl_store_* put it before the keys already */
} pawl_seat;

typedef struct pawl_tensor {
  const char* name; /* canonical parameter name; the pair (name, role) is unique on this rank */
  const char* role; /* weight, master, exp_avg, exp_avg_sq, step, buffer, ... */
  pawl_dtype dtype;
  uint32_t dimension_count;      /* 0: a scalar; at most 8 */
  const uint64_t* shape;         /* global shape, elements */
  const uint64_t* region_offset; /* where this rank's box begins in the global shape; NULL: at 0 */
  const uint64_t* region_shape;  /* extent of this rank's box; NULL: the whole shape */
  uint32_t mesh;                 /* from pawl_mesh_add */
  pawl_placement placement;
  pawl_lifetime lifetime;
  void* data; /* contiguous, row-major, this rank's box; the trainer's own memory */
} pawl_tensor;

typedef struct pawl_fence_report {
  uint64_t step;      /* whose window was fenced; 0: none was open */
  int captured;       /* 1: copied out and sealed; 0: void (protection lags one step) */
  uint64_t waited_ns; /* how long the training thread waited here */
  uint64_t captured_bytes;
  char why_void[96]; /* empty if captured */
} pawl_fence_report;

typedef struct pawl_event {
  uint32_t kind;  /* 1: recovery pending, 2: stop, 3: step committed */
  uint64_t value; /* generation, 0, or the step */
} pawl_event;

/* Writes at most `capacity` bytes to `buffer` and their number to `size`. Nonzero: failed (the window is void). */
typedef int (*pawl_blob_save)(void* context, void* buffer, size_t capacity, size_t* size);
typedef int (*pawl_blob_load)(void* context, const void* buffer, size_t size);

/* Connects to this node's pawld. The handle is the caller's until pawl_detach. NULL options: from the environment. */
PAWL_API pawl_status pawl_attach(const pawl_attach_options* options, pawl_trainer** trainer);
/* Ends the copy threads, disconnects, frees the handle. Never waits for another rank. */
PAWL_API void pawl_detach(pawl_trainer* trainer);
/* Why this thread's last call failed, in a sentence; valid until its next call. Never NULL. Also for a NULL trainer
 * (attach). */
PAWL_API const char* pawl_error(const pawl_trainer* trainer);
/* The seat as of the last pawl_recover_join. PAWL_INVALID before the first. */
PAWL_API pawl_status pawl_identity(const pawl_trainer* trainer, pawl_seat* seat);
/* This trainer's role now. Any thread; one load. */
PAWL_API pawl_role pawl_role_of(const pawl_trainer* trainer);
/* Seats of the job, also while parked; 0: not known yet. Any thread; one load. */
PAWL_API uint32_t pawl_world(const pawl_trainer* trainer);

/* A grid of ranks with named axes; `sizes` multiply to the world. Before pawl_layout_seal. */
PAWL_API pawl_status pawl_mesh_add(pawl_trainer* trainer, const char* name, const char* const* axes,
                                   const uint64_t* sizes, uint32_t axis_count, uint32_t* mesh);
/* Declares state. Nothing of *tensor is kept but `data`. Before pawl_layout_seal. */
PAWL_API pawl_status pawl_tensor_add(pawl_trainer* trainer, const pawl_tensor* tensor, uint32_t* id);
/* The tensor lies elsewhere now (same shape). Not while its window is open. */
PAWL_API pawl_status pawl_tensor_rebind(pawl_trainer* trainer, uint32_t id, void* data);
/* Volatile state by callbacks, called on the training thread: save in pawl_step_begin, load in pawl_restore. */
PAWL_API pawl_status pawl_blob_add(pawl_trainer* trainer, const char* name, size_t capacity, pawl_blob_save save,
                                   pawl_blob_load load, void* context);
/* Declarations are complete: agrees with the other seats (their replicated tensors and meshes must be equal; the
 * error names the first that differ), gets the arena. PAWL_INVALID: they differ. PAWL_IO: no memory for the arena.
 * Between pawl_recover_join and pawl_recover_done, or where resume_step is 0 also later, between two steps. */
PAWL_API pawl_status pawl_layout_seal(pawl_trainer* trainer);

/* Step `step` begins: copies the volatile state that belongs to step-1. Before the layout is sealed: just counts. */
PAWL_API pawl_status pawl_step_begin(pawl_trainer* trainer, uint64_t step);
/* Waits until the open window is copied out and sealed; afterwards stable state may change. Running out of time, or no
 * free slot, voids the window and answers PAWL_OK, as where no window is open. `report` may be NULL. */
PAWL_API pawl_status pawl_fence(pawl_trainer* trainer, pawl_fence_report* report);
/* Stable state is now that of `step`; capture starts. `samples`: global samples consumed so far (for status). */
PAWL_API pawl_status pawl_window_open(pawl_trainer* trainer, uint64_t step, uint64_t samples);
/* The hang watch: something is alive and in this phase. Cheap (no system call). Any thread. A trainer that drains a
 * lost step is given more time to come to pawl_recover_join while it says so. */
PAWL_API pawl_status pawl_progress(pawl_trainer* trainer, pawl_phase phase);
/* Greatest step known to be committed on every seat. Any thread. */
PAWL_API uint64_t pawl_committed_step(const pawl_trainer* trainer);

/* Readable when an event waits: poll it beside your sockets, so that a blocked collective ends in milliseconds. */
PAWL_API int pawl_event_fd(const pawl_trainer* trainer);
/* PAWL_OK and an event; PAWL_TIMEOUT if none waits. Any thread. */
PAWL_API pawl_status pawl_event_next(pawl_trainer* trainer, pawl_event* event);
/* 1 if a recovery or a stop is pending. Cheap (one load). Any thread. */
PAWL_API int pawl_interrupted(const pawl_trainer* trainer);
/* A collective failed, or the trainer sees another fault. Go to pawl_recover_join afterwards. */
PAWL_API pawl_status pawl_fault_report(pawl_trainer* trainer, const char* what);

/* Joins the copy threads, tells pawld, and waits: for a seat (parked), for the first forming, or for the decision of a
 * recovery. PAWL_OK with the seat; PAWL_STOP. A parked trainer may wait here in a second thread, while its main thread
 * (which rehearses) calls nothing but pawl_role_of, pawl_world, pawl_progress, pawl_committed_step and
 * pawl_interrupted. */
PAWL_API pawl_status pawl_recover_join(pawl_trainer* trainer, pawl_seat* seat);
/* State of resume_step into the declared tensors and blobs, each bucket verified before it is used. Needs the layout
 * sealed, unless resume_step is 0 (then there is nothing to do). PAWL_RECOVER also where the source proved corrupt and
 * another is sought. */
PAWL_API pawl_status pawl_restore(pawl_trainer* trainer);
/* This seat is ready; waits until all are. Needs the layout sealed, unless resume_step is 0. */
PAWL_API pawl_status pawl_recover_done(pawl_trainer* trainer);
/* Waits until the last window is committed on every seat and every seat has finished. All seats finish after the same
 * step: if one waits here and another has begun a later step, the job fails and says who. */
PAWL_API pawl_status pawl_finish(pawl_trainer* trainer);

/* Proposes that the job ends after `step`; the first proposal of all seats counts and is the answer in *agreed (which
 * may be NULL). Returns when every seat sees it in pawl_stop_step; since nobody gets past a step without this seat, all
 * can then end at the same one: look after each step whether pawl_stop_step is it. Others may have begun the step after
 * the last that this seat has begun, so that one is the earliest. PAWL_RECOVER: ask again afterwards; what was agreed
 * stays. */
PAWL_API pawl_status pawl_stop_after(pawl_trainer* trainer, uint64_t step, uint64_t* agreed);
/* After which step the job ends; 0: nobody has asked for an end. Any thread; one load. */
PAWL_API uint64_t pawl_stop_step(const pawl_trainer* trainer);

/* Rendezvous: a small key-value store of this generation, shared by all seats, cancelled (PAWL_RECOVER) when the
 * generation changes. Every seat sees what any seat was told is done; nothing is lost or done twice because a pawld was
 * restarted. Between pawl_recover_join and the next; any thread (what changes something is done one at a time), as long
 * as none is in it when the handle is detached. Values have at most 16 MiB.
 * *size is the capacity of `value` on entry, the length on return; PAWL_INVALID if that is greater: ask again (but a
 * compare_set has been done). PAWL_INVALID also without a seat. */
PAWL_API pawl_status pawl_store_set(pawl_trainer* trainer, const char* key, const void* value, size_t size);
/* Waits for the key; PAWL_TIMEOUT if it is not there in time. */
PAWL_API pawl_status pawl_store_get(pawl_trainer* trainer, const char* key, void* value, size_t* size,
                                    uint32_t timeout_ms);
/* PAWL_TIMEOUT at once if the key is not there. */
PAWL_API pawl_status pawl_store_try_get(pawl_trainer* trainer, const char* key, void* value, size_t* size);
/* The value is a decimal number (0 if the key is not there) and grows by `amount`; the sum in *sum (which may be NULL).
 * PAWL_INVALID: what is there is no number. */
PAWL_API pawl_status pawl_store_add(pawl_trainer* trainer, const char* key, int64_t amount, int64_t* sum);
/* Where the key has the value `expected`, or is not there and `expected` is empty, it has `desired` afterwards.
 * `value`: what it has now; of a key that is not there, `expected`. */
PAWL_API pawl_status pawl_store_compare_set(pawl_trainer* trainer, const char* key, const void* expected,
                                            size_t expected_size, const void* desired, size_t desired_size, void* value,
                                            size_t* size);
/* *deleted (which may be NULL): whether the key was there. */
PAWL_API pawl_status pawl_store_delete(pawl_trainer* trainer, const char* key, int* deleted);

/* A JSON object: seat, generation, step, committed, fence waits, voided windows. The string lives until the next call.
 */
PAWL_API const char* pawl_status_json(pawl_trainer* trainer);

#ifdef __cplusplus
}
#endif
#endif
