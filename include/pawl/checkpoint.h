/* pawl: the C interface to checkpoints, whoever wrote them: any part of any tensor, straight into your memory.
 *
 * A checkpoint of torch.save, PyTorch DCP, DeepSpeed, Megatron-Core, Hugging Face, safetensors or pawl's own store, in
 * whatever layout its writer had, is a list of tensors with a name, a role, a type and a whole shape. A request asks
 * for a box of one of them. One call answers all requests, reads what is needed once, and casts on the way. Stored code
 * (pickles) is parsed, never executed.
 *
 * This is libpawl_checkpoint, a library of its own: libpawl (pawl.h) stays the small one that every trainer links.
 *
 *     pawl_checkpoint* c;
 *     pawl_checkpoint_open("run/global_step1200", NULL, &c);
 *     puts(pawl_checkpoint_json(c));                  // what it holds
 *     pawl_checkpoint_request r = PAWL_CHECKPOINT_REQUEST_INIT;
 *     r.tensor = 0; r.dtype = "bfloat16"; r.memory = mine; r.memory_bytes = size;
 *     pawl_checkpoint_read(c, &r, 1, NULL, NULL);     // all of tensor 0
 *     pawl_checkpoint_close(c);
 *
 * pawl_checkpoint_store_* write a checkpoint in pawl's own format. One process writes it, or many at once, each its own
 * parts. It is published whole or not at all, whichever process dies when. One process begins and publishes; all write
 * parts; the folder's name and the shares go from process to process by your own means:
 *
 *     pawl_checkpoint_store_begin("run/step1200", NULL, &s);                               // one process
 *     folder = pawl_checkpoint_store_folder(s);
 *     pawl_checkpoint_store_write_part(folder, my_rank, my_pieces, my_count, NULL, &share);  // every process
 *     pawl_checkpoint_store_publish(s, all_shares, how_many, "{\"step\": 1200}", NULL, 0);   // the first one again
 *     pawl_checkpoint_store_end(s);
 *
 * Where processes hold the same, pawl_checkpoint_divide says which of them writes what.
 *
 * Threads: any thread may make any call, several at once, also with one handle; only a handle that is closed, freed or
 * ended must not be in use. A call that reads or writes tensors uses all cores. Nothing here throws, prints, forks or
 * installs a signal handler.
 *
 * Ownership: what you pass is read during the call only; memory that is read into is written during the call only.
 * Strings that are returned belong to the library; each comment says how long they live.
 *
 * Units: sizes and strides in memory are in bytes, boxes in elements. dtypes are torch's names: "bfloat16".
 *
 * Structs begin with `struct_size`, and may grow: pawl.h says how. Begin with their PAWL_..._INIT; where 0 or NULL is a
 * field's default, its comment says what that means. All elements of one array have the same struct_size.
 *
 * Errors: each call that answers a pawl_status answers PAWL_OK, or
 *   PAWL_INVALID      the call is wrong, or something isn't there
 *   PAWL_CORRUPT      stored bytes are not what they should be
 *   PAWL_IO           the operating system refused, or there is no room
 *   PAWL_UNREACHABLE  a peer has left
 *   PAWL_TIMEOUT      pawl_checkpoint_peers_leave: a peer still writes
 *   PAWL_STOP         cancelled by a watch
 *   PAWL_BROKEN       a fault in pawl itself
 * and pawl_checkpoint_error says why.
 */
#ifndef PAWL_CHECKPOINT_H
#define PAWL_CHECKPOINT_H

#include "pawl/pawl.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pawl_checkpoint pawl_checkpoint;
typedef struct pawl_checkpoint_peers pawl_checkpoint_peers;
typedef struct pawl_checkpoint_watch pawl_checkpoint_watch;
typedef struct pawl_checkpoint_division pawl_checkpoint_division;

#define PAWL_CHECKPOINT_OPEN_OPTIONS_INIT PAWL_INIT(pawl_checkpoint_open_options)
#define PAWL_CHECKPOINT_ACCESS_OPTIONS_INIT PAWL_INIT(pawl_checkpoint_access_options)
#define PAWL_CHECKPOINT_REQUEST_INIT PAWL_INIT(pawl_checkpoint_request)
#define PAWL_CHECKPOINT_REPORT_INIT PAWL_INIT(pawl_checkpoint_report)
#define PAWL_CHECKPOINT_STORE_OPTIONS_INIT PAWL_INIT(pawl_checkpoint_store_options)
#define PAWL_CHECKPOINT_STORE_PIECE_INIT PAWL_INIT(pawl_checkpoint_store_piece)
#define PAWL_CHECKPOINT_HELD_PIECE_INIT PAWL_INIT(pawl_checkpoint_held_piece)
#define PAWL_CHECKPOINT_DIVISION_OPTIONS_INIT PAWL_INIT(pawl_checkpoint_division_options)

/* Why this thread's last call failed, in a sentence. Lives until this thread's next call. Never NULL. */
PAWL_API const char* pawl_checkpoint_error(void);

/* --- Opening. */

/* Which names tensors get. Renaming also splits or joins tensors that one of the two sides fuses. */
typedef enum pawl_checkpoint_names {
  PAWL_CHECKPOINT_NAMES_STORED = 0,
  PAWL_CHECKPOINT_NAMES_HUGGINGFACE = 1,
  PAWL_CHECKPOINT_NAMES_MEGATRON = 2
} pawl_checkpoint_names;

typedef struct pawl_checkpoint_open_options {
  size_t struct_size; /* PAWL_CHECKPOINT_OPEN_OPTIONS_INIT */
  /* Which of several checkpoints in the folder: a subfolder's name, "global_step1200". NULL: the one that the folder's
   * own pointer (`latest`) names, or the only one. */
  const char* tag;
  /* File of parameter names in the model's order, one a line or a JSON list, for optimizer state that is keyed by
   * number. NULL: the names are in the checkpoint; if they are not, the error asks for this file. */
  const char* parameter_names_file;
  /* Default: stored. Rename where the program that loads has other names than the one that saved. */
  pawl_checkpoint_names names;
  /* For renaming: the model's family: "gpt", "llama", "mixtral" or "gpt_neox". NULL: detected by the stored names. */
  const char* family;
  /* For renaming: what the checkpoint doesn't say about the model. 0: as the checkpoint says; if it doesn't, the error
   * names what is missing. */
  uint64_t attention_heads;
  uint64_t query_groups; /* heads of keys and values */
  uint64_t head_size;    /* elements per head */
  uint64_t vocabulary;   /* how many rows of a padded embedding stay; 0: all */
} pawl_checkpoint_open_options;

/* Opens, and checks that what the checkpoint says of itself fits its files; reads no tensor. `options` may be NULL.
 * *checkpoint is yours until pawl_checkpoint_close; it keeps no file open. */
PAWL_API pawl_status pawl_checkpoint_open(const char* path, const pawl_checkpoint_open_options* options,
                                          pawl_checkpoint** checkpoint);
/* A JSON object. Lives as long as the handle.
 *   "format"
 *   "facts"     pairs
 *   "tensors"   objects: "name", "role", "dtype", "shape", "bytes", "pieces", "versions", "copies"
 *   "aliases"   pairs: a tied name, and the one that is kept
 *   "objects"   what is stored and is no tensor
 *   "notes"
 *   "unnamed"   optimizers whose state keeps its numbers, since nothing says whose they are
 *   "problems"  what is missing or damaged; those that begin with "optimizer state" leave the weights whole
 *   "family"    the model's family by its names, or null
 *   "names"     whose names these are: "huggingface", "megatron" or null
 *   "values"    what else a checkpoint of pawl's store holds, or null */
PAWL_API const char* pawl_checkpoint_json(const pawl_checkpoint* checkpoint);
/* NULL: does nothing. */
PAWL_API void pawl_checkpoint_close(pawl_checkpoint* checkpoint);

/* --- Reading. */

/* A box of a tensor, and the memory it is wanted in. Lists have `dimension_count` numbers. */
typedef struct pawl_checkpoint_request {
  size_t struct_size;           /* PAWL_CHECKPOINT_REQUEST_INIT */
  uint32_t tensor;              /* index in pawl_checkpoint_json's "tensors" */
  uint32_t dimension_count;     /* that tensor's; may be 0 if the three lists are NULL */
  const char* dtype;            /* what you want it as; NULL: as it is stored */
  const uint64_t* begin;        /* where the box begins, in elements; NULL: at 0 */
  const uint64_t* size;         /* extent of the box, in elements; NULL: up to the end of the tensor */
  const uint64_t* stride_bytes; /* in memory, of one step along each dimension: multiples of an element of `dtype`;
                                   NULL: dense and row-major, as packed types (4 and 6 bits) always are */
  void* memory;                 /* where the box's first element goes; any address */
  uint64_t memory_bytes;        /* how much memory there is from there on: nothing beyond it is written */
  pawl_checkpoint_peers* peers; /* NULL: `memory` is this process's. All requests that have peers have the same */
  uint32_t peer;                /* `memory` is an address in the process that has this number in `peers` */
} pawl_checkpoint_request;

/* How tensors are read and written. */
typedef struct pawl_checkpoint_access_options {
  size_t struct_size; /* PAWL_CHECKPOINT_ACCESS_OPTIONS_INIT */
  /* Memory for buffers, beside your own. 0: 1 GiB; 256 MiB in pawl_checkpoint_store_write_part. At least 256 KiB are
   * used. Less: where memory is short. More: fewer and larger reads. */
  uint64_t memory_bytes;
  /* At most 1024. 0: all cores. Fewer: where other processes of this machine work at the same time. */
  uint32_t threads;
  /* 1: without io_uring. Default 0: with it where the kernel allows it. For kernels where it is slow or faulty. */
  int without_io_uring;
  /* 1: through the page cache. Default 0: large ranges that are not cached bypass it (O_DIRECT). For file systems that
   * are slow without a cache, or if the same files are read again soon. */
  int without_direct;
  /* read: 1: keep what was seen of the checksums that the checkpoint has, for pawl_checkpoint_seen. Default 0. It costs
   * some time of the cores, and saves a second read. */
  int prove;
  /* prove: texts of pawl_checkpoint_seen, with blanks between: what they prove is not read again. NULL: none. */
  const char* seen;
  /* read, compare, prove: of a tensor that has a copy of this number, use only that one. NULL: any copy. For checkpoints
   * whose copies differ, when you know which one is right. */
  const uint32_t* trusted_copy;
  /* Shows how far the call is, and can cancel it. NULL: nobody watches. */
  pawl_checkpoint_watch* watch;
} pawl_checkpoint_access_options;

/* Filled in by the library. */
typedef struct pawl_checkpoint_report {
  size_t struct_size;   /* PAWL_CHECKPOINT_REPORT_INIT */
  uint64_t bytes_read;  /* from files, including what was read in between to make fewer requests */
  uint64_t bytes_moved; /* into memory */
  uint64_t overflowed;  /* finite numbers that a cast made infinite */
} pawl_checkpoint_report;

/* Whether pawl_checkpoint_read could answer these requests: shapes, types, boxes, holes. Reads no tensor, writes no
 * memory. `options` may be NULL. */
PAWL_API pawl_status pawl_checkpoint_check(const pawl_checkpoint* checkpoint, const pawl_checkpoint_request* requests,
                                           size_t count, const pawl_checkpoint_access_options* options);
/* Checks what pawl_checkpoint_check checks; if that fails, no memory is written. Then reads. If reading fails, the
 * requests' memory holds anything. The memory of different requests must not overlap. `options` and `report` may be
 * NULL. */
PAWL_API pawl_status pawl_checkpoint_read(const pawl_checkpoint* checkpoint, const pawl_checkpoint_request* requests,
                                          size_t count, const pawl_checkpoint_access_options* options,
                                          pawl_checkpoint_report* report);
/* What all reads with `prove` have seen of the checksums, as a text for the option `seen` of pawl_checkpoint_prove.
 * The texts of all processes together prove what they read together, without reading it again. "": nothing was seen.
 * Lives until the next call with this handle. Not while another thread reads. */
PAWL_API const char* pawl_checkpoint_seen(const pawl_checkpoint* checkpoint);
/* Whether the stored copies of these tensors are equal, bit for bit. PAWL_CORRUPT: the error names those that are not.
 * Reads each copy once, and nothing of a tensor that is stored once. `options` may be NULL. */
PAWL_API pawl_status pawl_checkpoint_compare(const pawl_checkpoint* checkpoint, const uint32_t* tensors, size_t count,
                                             const pawl_checkpoint_access_options* options);
/* Whether the bytes of these tensors agree with the checksums that were written with them: pawl's store, torch.save, DCP
 * and the formats that are made of torch.save's files have some. PAWL_CORRUPT: the error names what does not. PAWL_OK
 * for safetensors, which has none. Processes can share the work: this call checks each piece number n with n % shares ==
 * share (0 and 1: all). Reads through the page cache, so the next read mostly finds the bytes there. `options` may be
 * NULL. */
PAWL_API pawl_status pawl_checkpoint_prove(const pawl_checkpoint* checkpoint, const uint32_t* tensors, size_t count,
                                           uint32_t share, uint32_t shares,
                                           const pawl_checkpoint_access_options* options);

/* --- Watching. A watch belongs to the calls that name it in their options, whichever threads make them. Other threads
 * look at it and cancel meanwhile. One call at a time: of two at once, the numbers would be mixed. */

PAWL_API pawl_status pawl_checkpoint_watch_create(pawl_checkpoint_watch** watch);
/* How far the running call is, or how far the last one came; both 0 before the first. Either may be NULL. compare has
 * no bytes that are counted. */
PAWL_API void pawl_checkpoint_watch_look(const pawl_checkpoint_watch* watch, uint64_t* bytes_done, uint64_t* bytes_all);
/* Ends the running call within a tenth of a second (a call that syncs a file: when that is done). It answers PAWL_STOP,
 * and so does every later call with this watch. */
PAWL_API void pawl_checkpoint_watch_cancel(pawl_checkpoint_watch* watch);
/* When no call with it runs. NULL: does nothing. */
PAWL_API void pawl_checkpoint_watch_free(pawl_checkpoint_watch* watch);

/* --- Peers: processes of one machine that read into each other's memory. What several of them need of a file, such as
 * rows of a tensor that is cut along its columns, one process reads for all. Each opens, tells the others its ticket by
 * your own means, joins with all tickets in one order, and may then name the others in requests. PAWL_IO: the system
 * doesn't allow it (it needs the same user, the same process namespace, and permission for process_vm_writev): then
 * each process reads for itself. */

PAWL_API pawl_status pawl_checkpoint_peers_open(pawl_checkpoint_peers** peers);
/* A line of text. Lives as long as the handle. */
PAWL_API const char* pawl_checkpoint_peers_ticket(const pawl_checkpoint_peers* peers);
/* tickets[self] is this process's. Once per handle. */
PAWL_API pawl_status pawl_checkpoint_peers_join(pawl_checkpoint_peers* peers, const char* const* tickets, size_t count,
                                                size_t self);
/* Copies `size_bytes` bytes from an address of peer number `peer` to `to`. The peer must keep them until then. */
PAWL_API pawl_status pawl_checkpoint_peers_read(const pawl_checkpoint_peers* peers, size_t peer, uint64_t address,
                                                void* to, size_t size_bytes);
/* From now on no other process writes into this one: their calls fail. PAWL_TIMEOUT: after `patience_ms` one still
 * writes (it is stopped): call again before you give the memory to anybody else. May be repeated. */
PAWL_API pawl_status pawl_checkpoint_peers_leave(pawl_checkpoint_peers* peers, uint32_t patience_ms);
/* Leaves, however long it takes, and frees the handle. When no call of this process uses it. NULL: does nothing. */
PAWL_API void pawl_checkpoint_peers_free(pawl_checkpoint_peers* peers);

/* --- Writing a checkpoint in pawl's own format. */

typedef struct pawl_checkpoint_store pawl_checkpoint_store;

typedef struct pawl_checkpoint_store_options {
  size_t struct_size; /* PAWL_CHECKPOINT_STORE_OPTIONS_INIT */
  /* 1: replace a checkpoint of pawl's that stands at the path, when the new one is whole; until then the disk holds
   * both. Default 0: refuse. */
  int overwrite;
  /* Bytes of all parts together: refused at once if the disk has less room. Default 0: not known. */
  uint64_t expected_bytes;
} pawl_checkpoint_store_options;

/* A box of a tensor, and the memory that holds it, which must not change during the call. Lists have `dimension_count`
 * numbers. */
typedef struct pawl_checkpoint_store_piece {
  size_t struct_size; /* PAWL_CHECKPOINT_STORE_PIECE_INIT */
  const char* name;
  const char* role; /* weight, exp_avg, ...; NULL: weight */
  const char* dtype;
  uint32_t dimension_count;     /* 0: a scalar; at most 8 */
  const uint64_t* shape;        /* of the whole tensor, in elements */
  const uint64_t* begin;        /* where the box begins, in elements; NULL: at 0 */
  const uint64_t* size;         /* extent of the box, in elements; NULL: up to the end of the tensor. An extent of 0:
                                   this part holds nothing of the tensor */
  const uint64_t* stride_bytes; /* in memory, of one step along each dimension: multiples of an element; NULL: dense and
                                   row-major */
  const void* memory;           /* the box's first element */
} pawl_checkpoint_store_piece;

/* Makes a folder beside `path` to write in, and checks that there is room. `options` may be NULL. *store is yours until
 * pawl_checkpoint_store_end. */
PAWL_API pawl_status pawl_checkpoint_store_begin(const char* path, const pawl_checkpoint_store_options* options,
                                                 pawl_checkpoint_store** store);
/* For pawl_checkpoint_store_write_part. Lives as long as the handle. */
PAWL_API const char* pawl_checkpoint_store_folder(const pawl_checkpoint_store* store);
/* Writes and syncs the data file of one part. Each part once, from any process. *share is a text for
 * pawl_checkpoint_store_publish; it lives until this thread's next pawl_checkpoint_store_write_part. `options` may be
 * NULL. */
PAWL_API pawl_status pawl_checkpoint_store_write_part(const char* folder, uint32_t part,
                                                      const pawl_checkpoint_store_piece* pieces, size_t count,
                                                      const pawl_checkpoint_access_options* options,
                                                      const char** share);
/* Publishes the checkpoint: `shares` are those of all parts, in any order. `values`: JSON text that a reader gets back;
 * NULL: none. `aliases`: alias_count pairs, one after another, of a tied name and the name that is kept; may be NULL.
 * PAWL_INVALID: pieces don't tile their tensors exactly. If it fails, nothing is published. */
PAWL_API pawl_status pawl_checkpoint_store_publish(pawl_checkpoint_store* store, const char* const* shares,
                                                   size_t share_count, const char* values, const char* const* aliases,
                                                   size_t alias_count);
/* Frees the handle; what was not published is removed. NULL: does nothing. */
PAWL_API void pawl_checkpoint_store_end(pawl_checkpoint_store* store);

/* --- Dividing what is written. Each rank tells all others what it holds, by your own means. All then make the same
 * call, and each writes its boxes of the equal answer, so that each byte is written once and all ranks write equally
 * much. Reads no tensor. */

/* A box of a tensor that a rank holds. Lists have `dimension_count` numbers. */
typedef struct pawl_checkpoint_held_piece {
  size_t struct_size; /* PAWL_CHECKPOINT_HELD_PIECE_INIT */
  const char* name;
  const char* role;         /* weight, exp_avg, ...; NULL: weight */
  const char* dtype;        /* only compared with the other ranks' */
  uint32_t dimension_count; /* 0: a scalar; at most 8 */
  uint32_t element_bytes;
  const uint64_t* shape; /* of the whole tensor, in elements */
  const uint64_t* begin; /* where the box begins, in elements; NULL: at 0 */
  const uint64_t* size;  /* extent of the box, in elements; NULL: up to the end of the tensor */
  uint64_t sample;       /* your checksum of some elements, equal wherever the box is held; 0 on all: not checked */
} pawl_checkpoint_held_piece;

typedef struct pawl_checkpoint_division_options {
  size_t struct_size; /* PAWL_CHECKPOINT_DIVISION_OPTIONS_INIT */
  /* 1: where samples of a box differ, the lowest rank that holds it writes it whole. Default 0: refuse. For replicas
   * that have diverged, where a save of one of them is better than none. */
  int without_replica_check;
  /* A box is not cut into parts of fewer bytes. 0: 1 MiB. Less: loads are more even. More: fewer and larger writes. */
  uint64_t part_bytes_min;
} pawl_checkpoint_division_options;

/* `pieces`: those of rank 0, then of rank 1, and so on; `counts`: how many each of the `rank_count` ranks has.
 * What several ranks hold is cut along rows, so that the rank that writes most has as little as possible. Roles "buffer"
 * and "extra_state", whose copies may differ, come whole from the lowest rank that holds the box. A tensor without
 * elements is given to the lowest rank that knows it. PAWL_INVALID: ranks know a tensor in different shapes or types, or
 * samples differ. `options` may be NULL. *division is yours until pawl_checkpoint_division_free. */
PAWL_API pawl_status pawl_checkpoint_divide(const pawl_checkpoint_held_piece* pieces, const size_t* counts,
                                            size_t rank_count, const pawl_checkpoint_division_options* options,
                                            pawl_checkpoint_division** division);
/* What a rank writes: *count boxes, in the order of its pieces. Of each 1 + 2 * dimension_count numbers: the index of
 * the piece in the rank's list, where the box begins, its extent. Lives as long as the handle. NULL, and *count is 0:
 * there is no such rank. */
PAWL_API const uint64_t* pawl_checkpoint_division_boxes(const pawl_checkpoint_division* division, size_t rank,
                                                        size_t* count);
/* NULL: does nothing. */
PAWL_API void pawl_checkpoint_division_free(pawl_checkpoint_division* division);

#ifdef __cplusplus
}
#endif
#endif
