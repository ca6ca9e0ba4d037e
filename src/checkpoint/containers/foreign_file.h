// ForeignFile: what a file is that only looks like a checkpoint, and what to do with it.
//
// For the errors of readers that can't make sense of a file: git-lfs pointers, compressed files, empty ones and files of
// zeros, web pages and messages that were saved instead of a download, arrays of numpy, HDF5, plain pickles, models of
// other frameworks. By what the bytes say, of which a few kilobytes are looked at; by names where bytes say nothing.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "checkpoint/containers/zip.h"
#include "env/byte_source.h"

namespace pawl::checkpoint {

// What it is and the remedy: `corrupt` where it should have been something else (empty, zeros, a pointer, a web page),
// `invalid` for what pawl knows and doesn't read. Nothing for bytes that say nothing, and for what pawl reads.
enum class ForeignText { told, left_out };  // left out: notes and settings, which may lie in any folder
[[nodiscard]] std::optional<Error> foreign_file(ByteSource& source, ForeignText text = ForeignText::told);

// The same, of an archive that holds no object of torch's.
[[nodiscard]] std::optional<Error> foreign_archive(const ZipDirectory& directory);

// The same, by the names in a folder, or of one file: TensorFlow's and Orbax's checkpoints.
[[nodiscard]] std::optional<Error> foreign_folder(std::span<const std::string> names);

}  // namespace pawl::checkpoint
