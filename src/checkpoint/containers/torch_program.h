// TorchProgram: weights, buffers and constants of an archive of torch.export.save (.pt2), by their names.
//
// Torch 2.9 and later: the bytes of each storage are a record, and a table in JSON (data/weights/<program>_weights_config.json,
// likewise of constants) says which tensors lie in it. Torch 2.7 and 2.8: a file of torch.save, whole, is a record of the
// archive; so are tensors of classes of their own. Before that the archive has no folder. The program itself is not
// looked at. One of several programs: its name comes first.
//
// What always holds: see torch_file.h.
#pragma once

#include "base/result.h"
#include "checkpoint/containers/torch_file.h"
#include "checkpoint/containers/zip.h"
#include "env/byte_source.h"

namespace pawl::checkpoint {

[[nodiscard]] bool is_torch_program(const ZipDirectory& directory);

// Fails: `corrupt`; `invalid` for an archive without weights, and what is packed in it; `full`; `io`.
[[nodiscard]] Result<TorchFile> read_torch_program(ByteSource& source, ZipDirectory directory);

}  // namespace pawl::checkpoint
