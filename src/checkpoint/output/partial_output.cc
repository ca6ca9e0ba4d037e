#include "checkpoint/output/partial_output.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <memory>
#include <set>
#include <thread>

#include "base/text.h"
#include "env/files.h"

namespace pawl::checkpoint {
namespace {

constexpr const char* kGoneName = "gone-";      // in the partial folder: what is being removed
constexpr const char* kHolderName = "held-by";  // in the partial folder: whose it is, in words, for whoever comes next

Error system_refused(std::string what, int errno_value) {
  Error error = system_error(std::move(what), errno_value);
  if (errno_value == ENOSPC || errno_value == EDQUOT) error.what += ": free some space there, or write elsewhere";
  error.code = errno_value == ENOSPC || errno_value == EDQUOT || errno_value == EFBIG ? Code::full
               : errno_value == ENOENT                                                ? Code::not_found
                                                                                      : Code::io;
  return error;
}

bool is_folder(const std::string& path) {
  struct stat found {};
  return ::stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

bool is_there(const std::string& path) {
  struct stat found {};
  return ::lstat(path.c_str(), &found) == 0;
}

std::string without_slashes(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

Status check_place(const std::string& path, const PartialOptions& options) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) {
    if (errno == ENOENT) return {};
    return system_refused(text("look at ", path), errno);
  }
  const bool folder = is_folder(path);
  if (folder != options.folder)
    return Error{Code::invalid, text(path, " is ", folder ? "a folder" : "a file", ", and a ",
                                     options.folder ? "folder" : "file", " is to be written: choose another name")};
  const Result<std::vector<std::string>> names = folder ? real_files().list(path) : std::vector<std::string>();
  if (!names) return Error{names.error()};
  if (folder && names->empty()) return {};
  if (options.overwrite && folder && !options.marker.empty() && !is_there(join_path(path, options.marker)))
    return Error{Code::invalid, text(path, " holds no ", options.marker,
                                     ", so it is not a checkpoint of this format and is "
                                     "not replaced: choose another name, or remove it yourself")};
  if (options.overwrite) return {};
  return Error{Code::invalid, text(path, " is there already: choose another name, or say --overwrite")};
}

Status check_room(const std::string& folder, std::uint64_t bytes) {
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0) return system_refused(text("room in ", folder), errno);
  const std::uint64_t free = std::uint64_t{disk.f_bavail} * disk.f_frsize;
  if (free >= bytes) return {};
  return Error{Code::full, text("no room in ", folder, ": ", bytes, " bytes are needed and ", free, " are free, so ",
                                bytes - free, " are missing: free as many, or write elsewhere")};
}

// As good as can be: a lock is what keeps others away, this only names its holder.
void tell_holder(const std::string& partial) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
  const time_t now = ::time(nullptr);
  struct tm parts {};
  std::array<char, 32> when{};
  if (::gmtime_r(&now, &parts) != nullptr) (void)::strftime(when.data(), when.size(), "%F %T UTC", &parts);
  const std::string told = text("process ", ::getpid(), " on ", host.data(), ", since ", when.data());
  const auto file = open_file(join_path(partial, kHolderName), {.write = true, .create = true, .truncate = true});
  if (file) (void)(*file)->write_at(0, std::as_bytes(std::span(told)));
}

std::string holder_of(const std::string& partial) {
  const Result<std::string> told = read_file(join_path(partial, kHolderName), 1024);
  return told && !told->empty() ? *told : "another process";
}

// Opens the partial folder, made if it is not there, and locks it: the lock ends with its holder, however that ends.
Result<Fd> lock_partial(const std::string& partial) {
  for (;;) {
    if (::mkdir(partial.c_str(), 0777) != 0 && errno != EEXIST) return system_refused(text("make ", partial), errno);
    Fd fd(::open(partial.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!fd.valid() && errno == ENOENT) continue;
    if (!fd.valid()) return system_refused(text("open ", partial), errno);
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK)
        return Error{Code::stale, text(partial, " is being written by ", holder_of(partial),
                                       ": wait for its end, or end it; what it leaves is taken over")};
      if (errno != ENOTSUP && errno != ENOLCK && errno != EINVAL) return system_refused(text("lock ", partial), errno);
    }
    struct stat held {
    }, named{};  // another run may have finished in between, and taken the name away
    if (::fstat(fd.get(), &held) == 0 && ::lstat(partial.c_str(), &named) == 0 && held.st_ino == named.st_ino &&
        held.st_dev == named.st_dev)
      return fd;
  }
}

// Workers of an attempt that ended may still put files there, by names that they know: so those are taken away first.
Status empty_partial(const std::string& partial) {
  constexpr int kTries = 20;
  PAWL_ASSIGN(const std::vector<std::string> left, real_files().list(partial));
  for (std::size_t i = 0; i < left.size(); ++i) {
    const std::string named = join_path(partial, left[i]);
    const std::string unnamed = join_path(partial, text(kGoneName, ::getpid(), "-", i));
    const bool is_renamed = !left[i].starts_with(kGoneName) && ::rename(named.c_str(), unnamed.c_str()) == 0;
    Status removed = remove_tree(partial, is_renamed ? unnamed : named);
    for (int tries = 0; !removed && tries < kTries; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      removed = remove_tree(partial, is_renamed ? unnamed : named);
    }
    PAWL_TRY(removed);
  }
  return {};
}

Status remove_partial(const std::string& partial) {
  if (is_folder(partial)) PAWL_TRY(empty_partial(partial));
  return remove_tree(parent_path(partial), partial);
}

Status sync_path(const std::string& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid() || ::fsync(fd.get()) != 0) return system_refused(text("sync ", path), errno);
  return {};
}

// As if it had been made with the mode that files get here: who may read them is the folder's and the user's choice.
Status open_to_others(const std::string& path) {
  const mode_t hidden = ::umask(0);
  (void)::umask(hidden);
  if (::chmod(path.c_str(), 0666 & ~hidden) != 0) return system_refused(text("mode of ", path), errno);
  return {};
}

Status rename_path(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) return system_refused(text("rename ", from, " to ", to), errno);
  return {};
}

// The folders between `root` and the file of that name, the outermost first: "a", "a/b" of "a/b/c.pt".
std::vector<std::string> folders_of(const std::string& name) {
  std::vector<std::string> folders;
  for (std::size_t at = name.find('/'); at != std::string::npos; at = name.find('/', at + 1))
    folders.push_back(name.substr(0, at));
  return folders;
}

bool is_weights_name(const std::string& name) {
  return name == "model.safetensors" || (name.starts_with("model-") && name.ends_with(".safetensors"));
}

}  // namespace

std::string partial_folder(const std::string& path) {
  return without_slashes(path) + kPartialSuffix;
}

Status PartialOutput::check(const std::string& given, const PartialOptions& options) {
  PAWL_TRY(check_no_address(given));
  const std::string path = without_slashes(given);
  if (path.empty() || path == "/" || last_name(path) == "." || last_name(path) == "..")
    return Error{Code::invalid, text("\"", given, "\" is not a name for what is to be written")};
  if (!is_folder(parent_path(path)))
    return Error{Code::not_found, text(parent_path(path), ": no such folder; make it first")};
  PAWL_TRY(check_place(path, options));
  return check_room(parent_path(path), options.bytes);
}

Result<PartialOutput> PartialOutput::begin(const std::string& given, PartialOptions options) {
  const std::uint64_t bytes = std::exchange(options.bytes, 0);  // asked for when there is as much room as there can be
  PAWL_TRY(check(given, options));
  const std::string path = without_slashes(given);
  const std::string partial = path + kPartialSuffix;
  Result<Fd> lock = lock_partial(partial);
  if (!lock && lock.error().code == Code::full) PAWL_TRY(check_room(parent_path(path), bytes));
  if (!lock) return std::move(lock).error();
  PAWL_TRY(empty_partial(partial));  // of a run that was killed
  tell_holder(partial);
  PartialOutput output(path, partial, std::move(*lock), std::move(options));
  PAWL_TRY(check_room(parent_path(path), bytes));
  if (output.root_ != partial && ::mkdir(output.root_.c_str(), 0777) != 0)
    return system_refused(text("make ", output.root_), errno);
  return output;
}

PartialOutput::~PartialOutput() {
  if (lock_.valid() && !keep_) (void)remove_partial(partial_);  // before the lock goes
}

std::string PartialOutput::path_of(const std::string& name) {
  names_.push_back(options_.folder ? name : std::string("data"));
  for (const std::string& folder : folders_of(names_.back())) (void)::mkdir(join_path(root_, folder).c_str(), 0777);
  return join_path(root_, names_.back());
}

Status PartialOutput::publish() {
  PAWL_TRY(remove_tree(partial_, join_path(partial_, kHolderName)));
  std::set<std::string, std::greater<>> folders;  // inner ones first
  // All modes before the first sync: the file system's journal then has one commit to wait for, not one a file.
  for (const std::string& name : names_) PAWL_TRY(open_to_others(join_path(root_, name)));
  for (const std::string& name : names_) {
    PAWL_TRY(sync_path(join_path(root_, name)));
    for (std::string& folder : folders_of(name)) folders.insert(std::move(folder));
  }
  for (const std::string& folder : folders) PAWL_TRY(sync_path(join_path(root_, folder)));
  PAWL_TRY(sync_path(root_));
  return options_.folder ? publish_folder() : publish_file();
}

Status PartialOutput::publish_file() {
  if (names_.size() != 1) return Error{Code::broken, "one file was to be written"};
  PAWL_TRY(rename_path(join_path(root_, names_[0]), path_));
  PAWL_TRY(remove_partial(partial_));
  lock_.reset();
  return sync_path(parent_path(path_));
}

Status PartialOutput::publish_folder() {
  if (::rename(root_.c_str(), path_.c_str()) != 0) {
    if (errno != ENOTEMPTY && errno != EEXIST) return system_refused(text("rename ", root_, " to ", path_), errno);
    return options_.marker.empty() ? take_over_folder() : exchange_folder();
  }
  // Nothing stood there, or an empty folder. What may not be on the disk is not to be found either.
  Status synced = sync_path(parent_path(path_));
  if (!synced && ::rename(path_.c_str(), root_.c_str()) == 0) return synced;
  if (root_ != partial_) (void)remove_partial(partial_);  // ours still
  lock_.reset();
  return synced;
}

// What stood there has the partial folder's name afterwards, and is removed; the lock went to the new one's name.
Status PartialOutput::exchange_folder() {
  PAWL_TRY(check_place(path_, options_));
  const Fd old(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!old.valid()) return system_refused(text("open ", path_), errno);
  (void)::flock(old.get(), LOCK_EX | LOCK_NB);  // for the next run: it gets the partial folder's name
  if (::renameat2(AT_FDCWD, root_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) != 0)
    return system_refused(
        text("exchange ", root_, " and ", path_, " (some file systems can't: then write to another name)"), errno);
  if (Status synced = sync_path(parent_path(path_)); !synced) {
    if (::renameat2(AT_FDCWD, root_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) != 0) keep_ = true;
    return synced;
  }
  if (root_ == partial_) lock_.reset();
  (void)remove_partial(partial_);  // the new one is there; the next run removes what is left
  lock_.reset();
  return {};
}

Status PartialOutput::take_over_folder() {
  PAWL_ASSIGN(const std::vector<std::string> old, real_files().list(path_));
  const std::string index(kHuggingFaceIndexName);
  keep_ = true;
  if (std::ranges::find(old, index) != old.end()) PAWL_TRY(real_files().remove(join_path(path_, index)));
  PAWL_TRY(sync_path(path_));
  for (const std::string& name : old)
    if (is_weights_name(name)) PAWL_TRY(real_files().remove(join_path(path_, name)));
  std::ranges::stable_sort(names_, {}, [&](const std::string& name) { return name == index; });
  for (const std::string& name : names_) {
    if (name == index) PAWL_TRY(sync_path(path_));
    PAWL_TRY(rename_path(join_path(root_, name), join_path(path_, name)));
  }
  PAWL_TRY(sync_path(path_));
  PAWL_TRY(remove_partial(partial_));
  lock_.reset();
  return sync_path(parent_path(path_));
}

}  // namespace pawl::checkpoint
