// The real files, of which the nth modifying call fails, with half of its bytes written or with none. For tests.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "base/text.h"
#include "env/files.h"

namespace pawl::job {

class FailingFiles final : public Files {
 public:
  // Calls are counted from 1; 0: none fails. After the failing one all others work again, as a disk may.
  FailingFiles(int fail_at, bool write_half) : fail_at_(fail_at), write_half_(write_half) {}
  [[nodiscard]] bool failed() const { return failed_; }
  [[nodiscard]] int calls() const { return calls_; }
  std::function<void()> before_sync = [] {};

  Result<std::unique_ptr<File>> open(const std::string& path, OpenOptions options) override {
    if (options.create && fails()) return error("open");
    auto opened = real_files().open(path, options);
    if (!opened) return opened;
    return std::unique_ptr<File>(std::make_unique<FailingFile>(this, std::move(*opened)));
  }
  Status rename(const std::string& from, const std::string& to) override {
    if (fails()) return error("rename");
    return real_files().rename(from, to);
  }
  Status remove(const std::string& path) override { return real_files().remove(path); }
  Result<std::vector<std::string>> list(const std::string& directory) override { return real_files().list(directory); }
  Status sync_directory(const std::string& directory) override {
    if (fails()) return error("sync directory");
    return real_files().sync_directory(directory);
  }
  bool exists(const std::string& path) override { return real_files().exists(path); }

 private:
  class FailingFile final : public File {
   public:
    FailingFile(FailingFiles* files, std::unique_ptr<File> real) : files_(files), real_(std::move(real)) {}
    Status write_at(std::uint64_t offset_bytes, std::span<const std::byte> bytes) override {
      if (!files_->fails()) return real_->write_at(offset_bytes, bytes);
      if (files_->write_half_) (void)real_->write_at(offset_bytes, bytes.first(bytes.size() / 2));
      return Error{Code::full, "injected: no space"};
    }
    Result<std::size_t> read_at(std::uint64_t offset_bytes, std::span<std::byte> buffer) override {
      return real_->read_at(offset_bytes, buffer);
    }
    Status sync() override {
      files_->before_sync();
      if (files_->fails()) return error("sync");
      return real_->sync();
    }
    Status truncate(std::uint64_t size_bytes) override {
      if (files_->fails()) return error("truncate");
      return real_->truncate(size_bytes);
    }
    Result<std::uint64_t> size() override { return real_->size(); }
    Status close() override { return real_->close(); }

   private:
    FailingFiles* files_;
    std::unique_ptr<File> real_;
  };

  static Error error(const char* what) { return Error{Code::io, text("injected: ", what)}; }
  bool fails() {
    if (++calls_ != fail_at_) return false;
    failed_ = true;
    return true;
  }

  const int fail_at_;
  const bool write_half_;
  std::atomic<int> calls_ = 0;
  std::atomic<bool> failed_ = false;
};

}  // namespace pawl::job
