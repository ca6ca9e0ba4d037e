/* pawl: the C interface to checkpoints, whoever wrote them: any part of any tensor, straight into your memory.
 *
 * A checkpoint of torch.save, PyTorch DCP, DeepSpeed, Megatron-Core, Hugging Face, safetensors or pawl's own store, in
 * whatever layout its writer had, is a list of tensors with a name, a role, a type and a whole shape. A request asks
 * for a box of one of them; one call answers all requests, reads what is needed once, and casts on the way. Stored code
 * (pickles) is parsed, never executed.
 *
 * This is libpawl_checkpoint, a library of its own: libpawl (pawl.h) stays the small one that every trainer links.
 * Any thread may call, several at once, also with one handle, but pawl_checkpoint_close. A call that reads uses all
 * cores. Nothing here throws, prints, forks or installs a signal handler; pawl_checkpoint_watch shows how far a call is
 * and ends it.
 *
 *     pawl_checkpoint* c;
 *     pawl_checkpoint_open("run/global_step1200", NULL, &c);
 *     puts(pawl_checkpoint_json(c));                  // what it holds
 *     pawl_checkpoint_request r = {.tensor = 0, .dtype = "bfloat16", .memory = mine, .memory_bytes = size};
 *     pawl_checkpoint_read(c, &r, 1, NULL, NULL);     // all of tensor 0
 *     pawl_checkpoint_close(c);
 *
 * pawl_store_* write a checkpoint of pawl's own format, by one process or by many at once, each its own parts: it is
 * published whole or not at all, whoever dies when. One process begins and publishes; all write parts; folder and
 * shares go from process to process by your own means:
 *
 *     pawl_store_begin("run/step1200", NULL, &s);  folder = pawl_store_folder(s);          // one process
 *     pawl_store_write_part(folder, my_rank, my_pieces, my_count, NULL, &share);           // every process
 *     pawl_store_publish(s, all_shares, how_many, "{\"step\": 1200}", NULL, 0);            // the first again
 *     pawl_store_end(s);
 *
 * Every call that answers a pawl_status answers PAWL_OK, or PAWL_INVALID (the call is wrong, or no such thing is
 * there), PAWL_CORRUPT (bytes are not what they should be), PAWL_IO (the system refused; no room), PAWL_UNREACHABLE (a
 * peer has left), PAWL_STOP (cancelled) or PAWL_BROKEN (pawl's own mistake); pawl_checkpoint_error has the sentence.
 *
 * Options are a JSON object in UTF-8, or NULL; a key that is not listed here is an error.
 */
#ifndef PAWL_CHECKPOINT_H
#define PAWL_CHECKPOINT_H

#include "pawl/pawl.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pawl_checkpoint pawl_checkpoint;
typedef struct pawl_checkpoint_peers pawl_checkpoint_peers;

/* A box of a tensor, and the memory it is wanted in. */
typedef struct pawl_checkpoint_request {
  uint32_t tensor;              /* index in pawl_checkpoint_json's "tensors" */
  uint32_t dimension_count;     /* of begin, size and strides: that tensor's, or 0 where all three are NULL */
  const char* dtype;            /* what you want it as: torch's name, "bfloat16". NULL: as it is stored */
  const uint64_t* begin;        /* of the box; NULL: at 0 */
  const uint64_t* size;         /* of the box; NULL: up to the end of the tensor */
  const uint64_t* strides;      /* in memory, in elements, of one step along each dimension; NULL: row-major, dense */
  void* memory;                 /* where the box's first element goes; at any address */
  uint64_t memory_bytes;        /* there are so many from there on: nothing beyond is written */
  pawl_checkpoint_peers* peers; /* NULL: `memory` is this process's. The same one in all requests that have one */
  uint32_t peer;                /* `memory` is an address of the process of this number in peers */
} pawl_checkpoint_request;

typedef struct pawl_checkpoint_report {
  uint64_t bytes_read;  /* from files, with what was read along to make fewer requests */
  uint64_t bytes_moved; /* into memory */
  uint64_t overflowed;  /* finite numbers that a cast made infinite */
} pawl_checkpoint_report;

/* Opens, and proves that what it says of itself fits its files; reads no tensor. Options:
 *   "tag"                   which of several checkpoints in a folder
 *   "parameter_names_file"  names in the model's order, for optimizer state that is keyed by number
 *   "names"                 "stored" (the default), "huggingface" or "megatron": rename, and regroup fused tensors
 *   "family", "attention_heads", "query_groups", "head_size", "vocabulary"
 *                           for "names": what the checkpoint does not say of itself
 * *checkpoint is yours until pawl_checkpoint_close; it keeps no file open. */
PAWL_API pawl_status pawl_checkpoint_open(const char* path, const char* options, pawl_checkpoint** checkpoint);
/* A JSON object: "format", "facts" (pairs), "tensors" (objects: "name", "role", "dtype", "shape", "bytes", "pieces",
 * "versions", "copies"), "aliases" (pairs: a tied name, and the one that is kept), "objects", "notes", "problems" (what
 * is missing or damaged; those that begin with "optimizer state" leave the weights whole), "family" (the model's family
 * by its names, or null), "names" (whose they are: "huggingface", "megatron", or null), "values" (what else a
 * checkpoint of pawl's store holds, or null). Lives as long as the handle. */
PAWL_API const char* pawl_checkpoint_json(const pawl_checkpoint* checkpoint);

/* Whether pawl_checkpoint_read could answer these: shapes, types, boxes, holes. Reads no tensor, writes no memory. */
PAWL_API pawl_status pawl_checkpoint_check(const pawl_checkpoint* checkpoint, const pawl_checkpoint_request* requests,
                                           size_t count, const char* options);
/* Everything that pawl_checkpoint_check looks at, then the bytes. Where it fails after that (files that can't be read)
 * the requests' memory holds anything. The memory of different requests must not overlap. `report` may be NULL.
 * Options: "memory_bytes"   for buffers (1 GiB) "threads"        (all cores) "trusted_copy"   of a tensor that has a
 * copy of this number, use only that one "io_uring", "direct"   false: without them "prove"   true: of a checkpoint of
 * pawl's store, keep what was seen of its checksums for pawl_checkpoint_seen */
PAWL_API pawl_status pawl_checkpoint_read(const pawl_checkpoint* checkpoint, const pawl_checkpoint_request* requests,
                                          size_t count, const char* options, pawl_checkpoint_report* report);
/* What all reads with "prove" have seen of the checksums, as a text for pawl_checkpoint_prove's "seen": texts of all
 * processes that read, with blanks between, prove what they read together without reading it again. "" if nothing was
 * seen. Lives until the next call, or as long as the handle. Not while another thread reads. */
PAWL_API const char* pawl_checkpoint_seen(const pawl_checkpoint* checkpoint);
/* Whether the stored replicas of these tensors are equal, bit for bit: PAWL_CORRUPT, naming those that are not. Reads
 * each replica once, and nothing of a tensor that is stored once. Options as for pawl_checkpoint_read. */
PAWL_API pawl_status pawl_checkpoint_compare(const pawl_checkpoint* checkpoint, const uint32_t* tensors, size_t count,
                                             const char* options);
/* Of a checkpoint of pawl's store: whether the bytes of these tensors agree with the checksums that were written with
 * them: PAWL_CORRUPT, naming what doesn't. Processes can share the work: of all pieces number n is looked at where n %
 * shares == share (0 and 1: all of them). Reads through the page cache, so that what is read next is mostly there.
 * PAWL_OK for other formats. Options as for pawl_checkpoint_read, and "seen": texts of pawl_checkpoint_seen; what these
 * prove isn't read. */
PAWL_API pawl_status pawl_checkpoint_prove(const pawl_checkpoint* checkpoint, const uint32_t* tensors, size_t count,
                                           uint32_t share, uint32_t shares, const char* options);
PAWL_API void pawl_checkpoint_close(pawl_checkpoint* checkpoint);

/* Of calls that move or look at bytes (read, compare, prove, pawl_store_write_part): how far they are, and a way to end
 * them. A thread says whose watch its calls are under; any other looks and cancels meanwhile. One call at a time. */
typedef struct pawl_checkpoint_watch pawl_checkpoint_watch;

PAWL_API pawl_status pawl_checkpoint_watch_create(pawl_checkpoint_watch** watch);
/* This thread's calls are under `watch` from now on; NULL: under none. */
PAWL_API void pawl_checkpoint_watch_use(pawl_checkpoint_watch* watch);
/* Of the call that runs, or was the last: both 0 before any. compare moves no bytes that are counted. */
PAWL_API void pawl_checkpoint_watch_look(const pawl_checkpoint_watch* watch, uint64_t* bytes_done, uint64_t* bytes_all);
/* The call that runs ends within a tenth of a second (one that syncs a file: when that is done) with PAWL_STOP, and so
 * does every later one under this watch. */
PAWL_API void pawl_checkpoint_watch_cancel(pawl_checkpoint_watch* watch);
/* When no thread's calls are under it any more. */
PAWL_API void pawl_checkpoint_watch_free(pawl_checkpoint_watch* watch);

/* Processes of one machine that read into each other's memory: what several of them need of a file, rows of a tensor
 * that is cut along its columns, one reads for all. Each opens, tells the others its ticket by your own means, joins
 * with all tickets in one order, and may then name the others in requests. PAWL_IO where the system doesn't allow it
 * (see env/peer_memory.h: the same user, the same process namespace): then each reads for itself. */
PAWL_API pawl_status pawl_checkpoint_peers_open(pawl_checkpoint_peers** peers);
/* A line of text; lives as long as the handle. */
PAWL_API const char* pawl_checkpoint_peers_ticket(const pawl_checkpoint_peers* peers);
/* tickets[self] is this process's. Once. */
PAWL_API pawl_status pawl_checkpoint_peers_join(pawl_checkpoint_peers* peers, const char* const* tickets, size_t count,
                                                size_t self);
/* Copies so many bytes at an address of peer number `peer`, which keeps them until then, to `to`. */
PAWL_API pawl_status pawl_checkpoint_peers_read(const pawl_checkpoint_peers* peers, size_t peer, uint64_t address,
                                                void* to, size_t size_bytes);
/* From now on no other writes into this process: their calls fail. PAWL_TIMEOUT where one still does after so long (it
 * is stopped): call again before you give the memory to anybody. Again and again, if you like. */
PAWL_API pawl_status pawl_checkpoint_peers_leave(pawl_checkpoint_peers* peers, uint32_t patience_ms);
/* Leaves, however long it takes. When none of this process's calls uses it. */
PAWL_API void pawl_checkpoint_peers_free(pawl_checkpoint_peers* peers);

typedef struct pawl_store pawl_store;

/* A box of a tensor, and the memory that holds it: yours, and unchanged during the call. */
typedef struct pawl_store_piece {
  const char* name;
  const char* role;  /* weight, exp_avg, ...; NULL: weight */
  const char* dtype; /* torch's name */
  uint32_t dimension_count;
  const uint64_t* shape; /* of the whole tensor */
  const uint64_t* begin; /* of the box; NULL: at 0 */
  const uint64_t* size;  /* of the box; NULL: up to the end. An extent of 0: this part holds nothing of the tensor */
  const uint64_t* stride_bytes; /* in memory, of one step along each dimension; NULL: row-major, dense */
  const void* memory;           /* of the box's first element */
} pawl_store_piece;

/* Makes a folder beside `path` to write in, and looks whether there is room. Options: "overwrite" (replace a checkpoint
 * of pawl's that stands there; else it is refused), "bytes" (of all parts, as far as known). */
PAWL_API pawl_status pawl_store_begin(const char* path, const char* options, pawl_store** store);
/* For pawl_store_write_part. Lives as long as the handle. */
PAWL_API const char* pawl_store_folder(const pawl_store* store);
/* Writes and syncs the data file of one part; each part once, from any process. *share is what pawl_store_publish needs
 * of it, a text that lives until this thread's next pawl_store_write_part. Options as for pawl_checkpoint_read, but
 * "trusted_copy". */
PAWL_API pawl_status pawl_store_write_part(const char* folder, uint32_t part, const pawl_store_piece* pieces,
                                           size_t count, const char* options, const char** share);
/* The shares of all parts, in any order. `values`: JSON text that a reader gets back, or NULL. `aliases`: pairs, one
 * after another, of a tied name and the name that is kept. Fails where pieces don't tile their tensors exactly; then
 * nothing is published. */
PAWL_API pawl_status pawl_store_publish(pawl_store* store, const char* const* shares, size_t share_count,
                                        const char* values, const char* const* aliases, size_t alias_count);
/* Frees the handle; what was not published is removed. */
PAWL_API void pawl_store_end(pawl_store* store);

/* Why this thread's last call failed, in a sentence; valid until its next call. Never NULL. */
PAWL_API const char* pawl_checkpoint_error(void);

#ifdef __cplusplus
}
#endif
#endif
