#include "checkpoint/containers/foreign_file.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "base/contains.h"
#include "base/text.h"
#include "base/utf8.h"

namespace pawl::checkpoint {
namespace {

constexpr std::uint64_t kLookedBytes = 4096;
constexpr std::size_t kShownBytes = 60;
constexpr std::size_t kLastBytes = 8;
constexpr std::string_view kTensorFlow =
    "load it with TensorFlow, and write its arrays with safetensors.numpy.save_file";
constexpr std::string_view kDownload = "download it again, and look at what the server says";

struct Magic {
  std::size_t at = 0;
  std::string_view bytes;
  std::string_view what;
  std::string_view remedy;
};

constexpr std::array kMagics = {
    Magic{0, {"\x1f\x8b", 2}, "compressed with gzip", "unpack it first (gunzip)"},
    Magic{0, {"\xfd\x37zXZ\0", 6}, "compressed with xz", "unpack it first (unxz)"},
    Magic{0, "BZh", "compressed with bzip2", "unpack it first (bunzip2)"},
    Magic{0, "\x28\xb5\x2f\xfd", "compressed with zstd", "unpack it first (unzstd)"},
    Magic{0, "\x04\x22\x4d\x18", "compressed with lz4", "unpack it first (unlz4)"},
    Magic{0, "7z\xbc\xaf\x27\x1c", "a 7-zip archive", "unpack it first"},
    Magic{0, "Rar!\x1a\x07", "a RAR archive", "unpack it first"},
    Magic{257, "ustar", "a tar archive",
          "unpack it first (tar -xf) and give what was in it; one that torch itself wrote (in its first versions) only "
          "torch "
          "reads: load it there, and save it again"},
    Magic{0, "\x89HDF\r\n\x1a\n", "an HDF5 file (Keras, h5py)",
          "load it with Keras or h5py, and write its arrays with safetensors.numpy.save_file"},
    Magic{0, "\x93NUMPY", "an array of numpy.save",
          "load it with numpy.load, and write it with safetensors.numpy.save_file"},
    Magic{0, "GGUF", "a GGUF file (llama.cpp)",
          "its tensors are packed in blocks of its own: give the checkpoint that it was made from"},
    Magic{4, "TFL3", "a model of TensorFlow Lite", "give the checkpoint that it was made from"},
    Magic{0, "model_checkpoint_path:", "TensorFlow's list of its checkpoints, without tensors", kTensorFlow},
};

bool has_at(std::string_view head, std::size_t at, std::string_view bytes) {
  return head.size() >= at + bytes.size() && head.substr(at, bytes.size()) == bytes;
}

std::string_view without_space(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  return begin == std::string_view::npos ? std::string_view() : text.substr(begin);
}

bool begins_as(std::string_view text, std::string_view lower_case) {
  return text.size() >= lower_case.size() &&
         std::ranges::equal(text.substr(0, lower_case.size()), lower_case, {},
                            [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
}

// Text to its end, but for a character that the end cuts.
bool is_text(std::string_view head, bool is_whole) {
  for (int cut = 0; !is_utf8(head); ++cut) {
    if (is_whole || cut == 3 || head.empty()) return false;
    head.remove_suffix(1);
  }
  return std::ranges::none_of(head, [](unsigned char c) { return c < 0x20 && c != '\n' && c != '\r' && c != '\t'; });
}

Error corrupt(std::string_view what, std::string_view remedy) {
  return Error{Code::corrupt, text(what, ": ", remedy)};
}

Error not_read(std::string_view what, std::string_view remedy) {
  return Error{Code::invalid, text(what, ", which pawl does not read: ", remedy)};
}

// "size 12345": of the file that the pointer stands for.
Error git_lfs_pointer(std::string_view head) {
  std::string size;
  if (const std::size_t at = head.find("\nsize "); at != std::string_view::npos) {
    const std::string_view line = head.substr(at + 6, head.find('\n', at + 6) - (at + 6));
    std::uint64_t bytes = 0;
    if (parse_number(line, bytes)) size = text(" of ", bytes, " bytes");
  }
  return corrupt(text("a git-lfs pointer to a file", size, ", not that file"),
                 "fetch it with `git lfs pull`, or download it");
}

// Protocols 2 and later say so; what the older ones begin with is a container or a class.
bool is_pickle(std::string_view head) {
  if (head.size() > 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5) return true;
  constexpr std::string_view kBegins[] = {"(dp",         "(lp",         "(d.",   "(l.", "}q", "]q", "ccollections\n",
                                          "ccopy_reg\n", "c__main__\n", "cnumpy"};
  return std::ranges::any_of(kBegins, [&](std::string_view begin) { return head.starts_with(begin); });
}

std::optional<Error> foreign_text(std::string_view head, bool is_whole) {
  if (!is_text(head, is_whole)) return std::nullopt;
  const std::string_view begin = without_space(head);
  if (begins_as(begin, "<!doctype html") || begins_as(begin, "<html"))
    return corrupt("a web page, which was saved instead of a file (a login, or an error)", kDownload);
  if (begins_as(begin, "<?xml") || begins_as(begin, "<error"))
    return corrupt("XML, probably a server's error that was saved instead of a file", kDownload);
  if (begin.starts_with('{') || begin.starts_with('['))
    return not_read("JSON text without tensors",
                    "give the checkpoint's folder, or its file of tensors; an index of safetensors files must be named "
                    "*.index.json");
  if (begin.empty()) return std::nullopt;
  std::string_view line = begin.substr(0, std::min(begin.find_first_of("\r\n"), kShownBytes));
  while (!is_utf8(line)) line.remove_suffix(1);  // not in the middle of a character
  return Error{Code::invalid,                    // perhaps a text that is well, and no checkpoint
               text("text that begins with \"", line, "\": if a download should have been here, download it again")};
}

}  // namespace

std::optional<Error> foreign_file(ByteSource& source, ForeignText text_files) {
  const std::uint64_t size = source.size_bytes();
  if (size == 0) return corrupt("an empty file", "its copy or download did not begin; get it again");
  const Result<std::string> head = read_text(source, 0, std::min(size, kLookedBytes));
  if (!head) return std::nullopt;
  if (head->find_first_not_of('\0') == std::string::npos)
    return corrupt(text("a file of ", size, " bytes whose first ", head->size(), " are zeros"),
                   "a copy or download made room for it and did not fill it; get it again");
  if (head->starts_with("version https://git-lfs.github.com/spec/")) return git_lfs_pointer(*head);
  for (const Magic& magic : kMagics)
    if (has_at(*head, magic.at, magic.bytes)) return not_read(magic.what, magic.remedy);
  if (is_pickle(*head))
    return not_read("a plain pickle (pickle.dump, joblib.dump)",
                    "load it in Python, and write its tensors with torch.save or safetensors");
  const Result<std::string> tail =
      read_text(source, size - std::min<std::uint64_t>(size, kLastBytes), std::min<std::uint64_t>(size, kLastBytes));
  if (tail && *tail == "\x57\xfb\x80\x8b\x24\x75\x47\xdb")
    return not_read("an index of a TensorFlow checkpoint", kTensorFlow);
  return text_files == ForeignText::left_out ? std::nullopt : foreign_text(*head, size <= kLookedBytes);
}

std::optional<Error> foreign_archive(const ZipDirectory& directory) {
  const auto any = [&](const auto& is_meant) {
    return std::ranges::any_of(directory.records(), [&](const ZipRecord& record) { return is_meant(record.name); });
  };
  const auto any_ends = [&](std::string_view end) {
    return any([&](std::string_view name) { return name.ends_with(end); });
  };
  if (directory.records().empty()) return corrupt("an empty zip archive", "get it again");
  if (any_ends("/data.pkl")) return std::nullopt;
  if (any_ends(".npy"))
    return not_read("an archive of numpy.savez",
                    "load it with numpy.load, and write its arrays with safetensors.numpy.save_file");
  if (directory.find("model.weights.h5") != nullptr)
    return not_read("a model of Keras", "load it with Keras, and write its arrays with safetensors.numpy.save_file");
  if (any_ends("/.data/extern_modules"))
    return not_read("an archive of torch.package",
                    "import its object with torch.package.PackageImporter, and write it with torch.save");
  if (any_ends("/model.json") && any([](std::string_view name) { return name.find("/tensors/") != name.npos; }))
    return not_read("TorchScript of torch before 1.4", "load it with torch.jit.load, and save it again");
  for (const std::string_view end : {".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".distcp"})
    if (any_ends(end))
      return not_read(text("a zip archive with files of a checkpoint in it (*", end, ")"), "unpack it first (unzip)");
  return std::nullopt;
}

std::optional<Error> foreign_folder(std::span<const std::string> names) {
  const auto any_has = [&](std::string_view part) {
    return std::ranges::any_of(names, [&](const std::string& name) { return name.find(part) != name.npos; });
  };
  if (contains(names, "saved_model.pb")) return not_read("a SavedModel of TensorFlow", kTensorFlow);
  if (any_has(".data-00000-of-")) return not_read("a checkpoint of TensorFlow", kTensorFlow);
  if (contains(names, "_CHECKPOINT_METADATA") || contains(names, "manifest.ocdbt") || contains(names, "_METADATA"))
    return not_read("a checkpoint of Orbax (JAX)",
                    "restore it in JAX, and write its arrays with safetensors.flax.save_file");
  return std::nullopt;
}

}  // namespace pawl::checkpoint
