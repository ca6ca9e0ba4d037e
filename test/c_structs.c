/* Prints how this compiler lays out each struct of the C interface, for test_python_library.py:
 * "NAME SIZE" of a struct, then "NAME.FIELD OFFSET SIZE" of each field in order. That none is left out is checked there.
 * Of a field that is a pointer, the pointer's own size is meant: clang-tidy suspects that it is not. */
#include <stddef.h>
#include <stdio.h>

#include "pawl/checkpoint.h"
#include "pawl/pawl.h"

#define STRUCT(type) printf("%s %zu\n", #type, sizeof(type))
#define FIELD(type, field)                                        \
  printf("%s.%s %zu %zu\n", #type, #field, offsetof(type, field), \
         sizeof(((const type*)NULL)->field)) /* NOLINT(bugprone-sizeof-expression) */

int main(void) {
  STRUCT(pawl_attach_options);
  FIELD(pawl_attach_options, struct_size);
  FIELD(pawl_attach_options, socket_path);

  STRUCT(pawl_seat);
  FIELD(pawl_seat, struct_size);
  FIELD(pawl_seat, seat);
  FIELD(pawl_seat, rank);
  FIELD(pawl_seat, world);
  FIELD(pawl_seat, local_rank);
  FIELD(pawl_seat, generation);
  FIELD(pawl_seat, resume_step);
  FIELD(pawl_seat, rendezvous_prefix);

  STRUCT(pawl_tensor);
  FIELD(pawl_tensor, struct_size);
  FIELD(pawl_tensor, name);
  FIELD(pawl_tensor, role);
  FIELD(pawl_tensor, dtype);
  FIELD(pawl_tensor, dimension_count);
  FIELD(pawl_tensor, shape);
  FIELD(pawl_tensor, begin);
  FIELD(pawl_tensor, size);
  FIELD(pawl_tensor, mesh);
  FIELD(pawl_tensor, placement);
  FIELD(pawl_tensor, lifetime);
  FIELD(pawl_tensor, data);
  FIELD(pawl_tensor, equal_axes);
  FIELD(pawl_tensor, unit);
  FIELD(pawl_tensor, logical_dimension_count);
  FIELD(pawl_tensor, logical_shape);
  FIELD(pawl_tensor, order);

  STRUCT(pawl_fence_report);
  FIELD(pawl_fence_report, struct_size);
  FIELD(pawl_fence_report, step);
  FIELD(pawl_fence_report, captured);
  FIELD(pawl_fence_report, waited_ns);
  FIELD(pawl_fence_report, captured_bytes);
  FIELD(pawl_fence_report, why_void);
  FIELD(pawl_fence_report, was_written);
  FIELD(pawl_fence_report, written_tensor);

  STRUCT(pawl_event);
  FIELD(pawl_event, struct_size);
  FIELD(pawl_event, kind);
  FIELD(pawl_event, value);

  STRUCT(pawl_checkpoint_open_options);
  FIELD(pawl_checkpoint_open_options, struct_size);
  FIELD(pawl_checkpoint_open_options, tag);
  FIELD(pawl_checkpoint_open_options, parameter_names_file);
  FIELD(pawl_checkpoint_open_options, names);
  FIELD(pawl_checkpoint_open_options, family);
  FIELD(pawl_checkpoint_open_options, attention_heads);
  FIELD(pawl_checkpoint_open_options, query_groups);
  FIELD(pawl_checkpoint_open_options, head_size);
  FIELD(pawl_checkpoint_open_options, vocabulary);

  STRUCT(pawl_checkpoint_request);
  FIELD(pawl_checkpoint_request, struct_size);
  FIELD(pawl_checkpoint_request, tensor);
  FIELD(pawl_checkpoint_request, dimension_count);
  FIELD(pawl_checkpoint_request, dtype);
  FIELD(pawl_checkpoint_request, begin);
  FIELD(pawl_checkpoint_request, size);
  FIELD(pawl_checkpoint_request, stride_bytes);
  FIELD(pawl_checkpoint_request, memory);
  FIELD(pawl_checkpoint_request, memory_bytes);
  FIELD(pawl_checkpoint_request, peers);
  FIELD(pawl_checkpoint_request, peer);

  STRUCT(pawl_checkpoint_access_options);
  FIELD(pawl_checkpoint_access_options, struct_size);
  FIELD(pawl_checkpoint_access_options, memory_bytes);
  FIELD(pawl_checkpoint_access_options, threads);
  FIELD(pawl_checkpoint_access_options, without_io_uring);
  FIELD(pawl_checkpoint_access_options, without_direct);
  FIELD(pawl_checkpoint_access_options, prove);
  FIELD(pawl_checkpoint_access_options, seen);
  FIELD(pawl_checkpoint_access_options, trusted_copy);
  FIELD(pawl_checkpoint_access_options, watch);

  STRUCT(pawl_checkpoint_report);
  FIELD(pawl_checkpoint_report, struct_size);
  FIELD(pawl_checkpoint_report, bytes_read);
  FIELD(pawl_checkpoint_report, bytes_moved);
  FIELD(pawl_checkpoint_report, overflowed);

  STRUCT(pawl_checkpoint_store_options);
  FIELD(pawl_checkpoint_store_options, struct_size);
  FIELD(pawl_checkpoint_store_options, overwrite);
  FIELD(pawl_checkpoint_store_options, expected_bytes);

  STRUCT(pawl_checkpoint_store_piece);
  FIELD(pawl_checkpoint_store_piece, struct_size);
  FIELD(pawl_checkpoint_store_piece, name);
  FIELD(pawl_checkpoint_store_piece, role);
  FIELD(pawl_checkpoint_store_piece, dtype);
  FIELD(pawl_checkpoint_store_piece, dimension_count);
  FIELD(pawl_checkpoint_store_piece, shape);
  FIELD(pawl_checkpoint_store_piece, begin);
  FIELD(pawl_checkpoint_store_piece, size);
  FIELD(pawl_checkpoint_store_piece, stride_bytes);
  FIELD(pawl_checkpoint_store_piece, memory);

  STRUCT(pawl_checkpoint_held_piece);
  FIELD(pawl_checkpoint_held_piece, struct_size);
  FIELD(pawl_checkpoint_held_piece, name);
  FIELD(pawl_checkpoint_held_piece, role);
  FIELD(pawl_checkpoint_held_piece, dtype);
  FIELD(pawl_checkpoint_held_piece, dimension_count);
  FIELD(pawl_checkpoint_held_piece, element_bytes);
  FIELD(pawl_checkpoint_held_piece, shape);
  FIELD(pawl_checkpoint_held_piece, begin);
  FIELD(pawl_checkpoint_held_piece, size);
  FIELD(pawl_checkpoint_held_piece, sample);

  STRUCT(pawl_checkpoint_division_options);
  FIELD(pawl_checkpoint_division_options, struct_size);
  FIELD(pawl_checkpoint_division_options, without_replica_check);
  FIELD(pawl_checkpoint_division_options, part_bytes_min);
  return 0;
}
