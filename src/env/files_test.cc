#include "env/files.h"

#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "base/text.h"
#include "env/temporary_directory.h"

namespace pawl {
namespace {

class FilesTest : public testing::Test {
 protected:
  [[nodiscard]] std::string path(const std::string& name) const { return root_.path(name); }
  const TemporaryDirectory root_;
};

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// Passes calls on to the real files, and fails the nth of those that change something.
class FailingFiles final : public Files {
 public:
  explicit FailingFiles(int fail_at) : fail_at_(fail_at) {}
  [[nodiscard]] bool failed() const { return calls_ >= fail_at_; }

  Result<std::unique_ptr<File>> open(const std::string& path, OpenOptions options) override {
    PAWL_TRY(next());
    PAWL_ASSIGN(std::unique_ptr<File> file, real_files().open(path, options));
    return std::unique_ptr<File>(std::make_unique<FailingFile>(*this, std::move(file)));
  }
  Status rename(const std::string& from, const std::string& to) override {
    PAWL_TRY(next());
    return real_files().rename(from, to);
  }
  Status remove(const std::string& path) override { return real_files().remove(path); }
  Result<std::vector<std::string>> list(const std::string& directory) override { return real_files().list(directory); }
  Status sync_directory(const std::string& directory) override {
    PAWL_TRY(next());
    return real_files().sync_directory(directory);
  }
  bool exists(const std::string& path) override { return real_files().exists(path); }

 private:
  class FailingFile final : public File {
   public:
    FailingFile(FailingFiles& files, std::unique_ptr<File> file) : files_(files), file_(std::move(file)) {}
    Status write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
      if (Status next = files_.next(); !next) {
        (void)file_->write_at(offset, bytes.first(bytes.size() / 2));  // a torn write
        return next;
      }
      return file_->write_at(offset, bytes);
    }
    Result<std::size_t> read_at(std::uint64_t offset, std::span<std::byte> buffer) override {
      return file_->read_at(offset, buffer);
    }
    Status sync() override {
      PAWL_TRY(files_.next());
      return file_->sync();
    }
    Status truncate(std::uint64_t size) override { return file_->truncate(size); }
    Result<std::uint64_t> size() override { return file_->size(); }
    Status close() override {
      PAWL_TRY(files_.next());
      return file_->close();
    }

   private:
    FailingFiles& files_;
    std::unique_ptr<File> file_;
  };

  Status next() {
    if (++calls_ == fail_at_) return Error{Code::full, "no space left, says the test"};
    return {};
  }
  int fail_at_;
  int calls_ = 0;
};

TEST_F(FilesTest, ReadsWhatWasWritten) {
  Result<std::unique_ptr<File>> file = open_file(path("log"), {.write = true, .create = true});
  ASSERT_TRUE(file) << file.error().what;
  ASSERT_TRUE((*file)->write_at(4, bytes_of("tail")));
  ASSERT_TRUE((*file)->write_at(0, bytes_of("head")));
  ASSERT_TRUE((*file)->sync());
  EXPECT_EQ(*(*file)->size(), 8U);
  std::byte buffer[16];
  EXPECT_EQ(*(*file)->read_at(2, buffer), 6U);
  EXPECT_EQ(*(*file)->read_at(8, buffer), 0U);
  ASSERT_TRUE((*file)->truncate(3));
  ASSERT_TRUE((*file)->close());
  EXPECT_EQ(*read_file(path("log")), "hea");
}

TEST_F(FilesTest, SaysWhatFailed) {
  const Result<std::string> missing = read_file(path("missing"));
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::not_found);
  EXPECT_NE(missing.error().what.find("missing"), std::string::npos);
  ASSERT_TRUE(write_file_atomically(path("long"), std::string(1000, 'x')));
  EXPECT_EQ(read_file(path("long"), 999).error().code, Code::invalid);
  EXPECT_EQ(read_file(path("long"), 1000)->size(), 1000U);
  EXPECT_EQ(open_file(path("long"), {.write = true, .create = true, .exclusive = true}).error().code, Code::invalid);
}

TEST_F(FilesTest, AFullDiskIsFull) {
  Result<std::unique_ptr<File>> full = open_file("/dev/full", {.write = true});
  if (!full) GTEST_SKIP() << "privilege: /dev/full can't be opened here";
  EXPECT_EQ((*full)->write_at(0, bytes_of("x")).error().code, Code::full);
}

TEST_F(FilesTest, ReadsFilesThatSayTheyAreEmpty) {
  EXPECT_FALSE(read_file("/proc/self/stat")->empty());
}

// Fails each outside call in turn: until all went through, the file holds the old or the new content, never a part.
TEST_F(FilesTest, AnAtomicWriteIsWholeOrNotAtAllWhereverItFails) {
  const std::string file = path("state");
  int fail_at = 1;
  for (;; ++fail_at) {
    ASSERT_TRUE(write_file_atomically(file, "old content"));
    FailingFiles files(fail_at);
    const Status written = write_file_atomically(file, "NEW", files);
    const std::string now = *read_file(file);
    EXPECT_EQ(real_files().list(root_.path())->size(), 1U) << "a temporary file was left behind";
    if (!files.failed()) {
      EXPECT_TRUE(written);
      EXPECT_EQ(now, "NEW");
      break;
    }
    EXPECT_FALSE(written) << fail_at;
    EXPECT_TRUE(now == "old content" || now == "NEW") << fail_at << ": " << now;
  }
  EXPECT_EQ(fail_at, 7);  // open, write, sync, close, rename, directory: each has failed once
}

TEST_F(FilesTest, MakesDirectoriesForItsOwnerOnly) {
  ASSERT_TRUE(make_directories(path("a/b/c/")));
  ASSERT_TRUE(make_directories(path("a/b/c")));
  struct stat found {};
  ASSERT_EQ(stat(path("a/b").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0700U);
  std::ofstream(path("file")) << "x";
  EXPECT_EQ(make_directories(path("file")).error().code, Code::invalid);
  EXPECT_EQ(make_directories(path("file/below")).error().code, Code::invalid);
}

TEST_F(FilesTest, APrivateDirectoryIsOursAlone) {
  EXPECT_TRUE(make_private_directory(path("own")));
  ASSERT_EQ(chmod(path("own").c_str(), 0755), 0);
  EXPECT_EQ(make_private_directory(path("own")).error().code, Code::invalid);
  ASSERT_EQ(symlink("/tmp", path("link").c_str()), 0);
  EXPECT_EQ(make_private_directory(path("link")).error().code, Code::invalid);
}

TEST_F(FilesTest, ADirectoryOfSomeoneElseIsRefused) {
  ASSERT_TRUE(make_directories(path("theirs")));
  if (chown(path("theirs").c_str(), 12345, 12345) != 0) GTEST_SKIP() << "privilege: may not give a directory away";
  const Status refused = make_private_directory(path("theirs"));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what.find("12345"), std::string::npos);
}

TEST_F(FilesTest, RemovesATreeAndFollowsNoLink) {
  ASSERT_TRUE(make_directories(path("root/tree/deep/er")));
  ASSERT_TRUE(make_directories(path("outside")));
  std::ofstream(path("outside/kept")) << "x";
  std::ofstream(path("root/tree/deep/file")) << "x";
  ASSERT_EQ(symlink(path("outside").c_str(), path("root/tree/link").c_str()), 0);
  ASSERT_TRUE(remove_tree(path("root"), path("root/tree")));
  EXPECT_FALSE(path_exists(path("root/tree")));
  EXPECT_TRUE(path_exists(path("outside/kept")));
  EXPECT_TRUE(remove_tree(path("root"), path("root/tree")));  // gone is gone
}

TEST_F(FilesTest, RemovesNothingOutsideItsRoot) {
  ASSERT_TRUE(make_directories(path("root/a")));
  ASSERT_TRUE(make_directories(path("root2/b")));
  ASSERT_EQ(symlink(path("root2").c_str(), path("root/link").c_str()), 0);
  const std::string outside[] = {path("root2/b"),
                                 path("root/../root2/b"),
                                 path("root/link/b"),
                                 path("root"),
                                 path("root/."),
                                 path("root/a/.."),
                                 path("root/../root2"),
                                 "/",
                                 ""};
  for (const std::string& wrong : outside)
    EXPECT_EQ(remove_tree(path("root"), wrong).error().code, Code::invalid) << wrong;
  EXPECT_TRUE(path_exists(path("root2/b")));
  EXPECT_TRUE(path_exists(path("root/a")));
}

TEST(Paths, AreJoinedAndTakenApart) {
  EXPECT_EQ(join_path("a", "b"), "a/b");
  EXPECT_EQ(join_path("a/", "b"), "a/b");
  EXPECT_EQ(join_path("a", "/b"), "/b");
  EXPECT_EQ(join_path("", "b"), "b");
  EXPECT_EQ(parent_path("/a/b/"), "/a");
  EXPECT_EQ(parent_path("/a"), "/");
  EXPECT_EQ(parent_path("a"), ".");
  EXPECT_EQ(parent_path("/"), "/");
  EXPECT_EQ(last_name("/a/b/"), "b");
  EXPECT_EQ(last_name("b"), "b");
}

TEST(Addresses, stay_whole_as_text) {
  for (const char* path : {"s3://bucket", "s3://bucket/a/b", "gs://x"}) EXPECT_TRUE(is_address(path)) << path;
  for (const char* path : {"", "s3:/bucket", "://x", "/a://b", "a/s3://b", "./s3://b", "S3://b"})
    EXPECT_FALSE(is_address(path)) << path;
  EXPECT_EQ(parent_path("s3://bucket/a/b/"), "s3://bucket/a");
  EXPECT_EQ(parent_path("s3://bucket/a"), "s3://bucket");
  EXPECT_EQ(parent_path("s3://bucket"), "s3://bucket");
  EXPECT_EQ(parent_path("s3://bucket/"), "s3://bucket");
  EXPECT_EQ(last_name("s3://bucket/a/"), "a");
  EXPECT_EQ(join_path("s3://bucket", "a"), "s3://bucket/a");
  EXPECT_EQ(join_path("/folder", "s3://bucket/a"), "s3://bucket/a");
}

TEST(Addresses, are_refused_where_nobody_reads_them) {
  const std::string address = "nobody://host/file";
  EXPECT_EQ(real_files().open(address, {}).error().code, Code::invalid);
  EXPECT_EQ(real_files().list(address).error().code, Code::invalid);
  EXPECT_FALSE(real_files().exists(address));
  EXPECT_EQ(make_directories(address).error().code, Code::invalid);
  EXPECT_EQ(remove_tree(address, address).error().code, Code::invalid);
}

}  // namespace
}  // namespace pawl
