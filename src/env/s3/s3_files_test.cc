#include "env/s3/s3_files.h"

#include <gtest/gtest.h>

#include <thread>

#include "env/byte_source.h"
#include "env/s3/memory_bucket.h"

namespace pawl::s3 {
namespace {

constexpr const char* kSecret = "never-to-be-seen";

class S3FilesTest : public testing::Test {
 protected:
  [[nodiscard]] S3FilesOptions options() {
    S3FilesOptions options;
    options.settings = []() -> Result<S3Settings> {
      S3Settings settings;
      settings.credentials = {"id", Secret(kSecret), Secret()};
      settings.region = "us-east-1";
      settings.endpoint = "http://store.test";
      return settings;
    };
    options.transport = &bucket;
    options.retry.attempts_max = 1;
    options.window_min_bytes = 10;
    options.window_max_bytes = 40;
    return options;
  }
  [[nodiscard]] static std::string read(File& file, std::uint64_t offset_bytes, std::size_t size_bytes) {
    std::string out(size_bytes, '\0');
    const Result<std::size_t> got = file.read_at(offset_bytes, std::as_writable_bytes(std::span(out)));
    EXPECT_TRUE(got) << got.error().what;
    out.resize(got ? *got : 0);
    return out;
  }

  MemoryBucket bucket;
  S3Files files{options()};
};

using Names = std::vector<std::string>;

TEST_F(S3FilesTest, a_folder_is_what_lies_beneath_its_name) {
  for (const char* key : {"job/step-1/a", "job/step-1/b", "job/step-2/a", "job/step-2-old", "job/latest", "job/",
                          "job//x", "jobs", "job/z/../q", "top"})
    bucket.put(key, "x");
  EXPECT_EQ(*files.list("s3://bucket/job"), (Names{"latest", "step-1", "step-2", "step-2-old", "z"}));
  EXPECT_EQ(*files.list("s3://bucket/job/"), *files.list("s3://bucket/job"));
  EXPECT_EQ(*files.list("s3://bucket/job/step-1"), (Names{"a", "b"}));
  EXPECT_EQ(*files.list("s3://bucket"), (Names{"job", "jobs", "top"}));
  EXPECT_EQ(*files.list("s3://bucket/"), *files.list("s3://bucket"));
  EXPECT_EQ(files.list("s3://bucket/jo").error().code, Code::not_found);
  EXPECT_EQ(files.list("s3://bucket/top").error().code, Code::not_found);
}

TEST_F(S3FilesTest, what_exists) {
  bucket.put("job/step-1/a", "x");
  for (const char* path : {"s3://bucket/job", "s3://bucket/job/", "s3://bucket/job/step-1/a", "s3://bucket"})
    EXPECT_TRUE(files.exists(path)) << path;
  for (const char* path : {"s3://bucket/jo", "s3://bucket/job/step", "s3://bucket/job/step-1/a/b"})
    EXPECT_FALSE(files.exists(path)) << path;
}

TEST_F(S3FilesTest, small_reads_share_a_window_that_grows) {
  std::string content;
  for (int i = 0; i < 200; ++i) content.push_back(static_cast<char>(i));
  bucket.put("file", content);
  const std::unique_ptr<File> file = *files.open("s3://bucket/file", {});
  EXPECT_EQ(*file->size(), 200u);
  for (std::size_t at = 0; at < 90; at += 3) EXPECT_EQ(read(*file, at, 3), content.substr(at, 3));
  EXPECT_EQ(read(*file, 195, 30), content.substr(195));
  EXPECT_EQ(read(*file, 200, 5), "");
  EXPECT_EQ(read(*file, 300, 5), "");
  EXPECT_EQ(read(*file, 100, 60), content.substr(100, 60));
  EXPECT_EQ(bucket.seen(), (Names{"HEAD file", "GET file 0-9", "GET file 10-29", "GET file 30-69", "GET file 70-109",
                                  "GET file 195-199", "GET file 100-159"}));
}

TEST_F(S3FilesTest, a_shared_file_is_read_by_many_at_once_and_no_more_than_asked_for) {
  bucket.put("file", std::string(1000, 'a'));
  const std::unique_ptr<File> file = *files.open("s3://bucket/file", {.shared = true});
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back([&] { EXPECT_EQ(read(*file, 100, 3), "aaa"); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(bucket.seen(),
            Names({"HEAD file", "GET file 100-102", "GET file 100-102", "GET file 100-102", "GET file 100-102",
                   "GET file 100-102", "GET file 100-102", "GET file 100-102", "GET file 100-102"}));
}

TEST_F(S3FilesTest, an_open_file_is_one_version) {
  bucket.put("file", std::string(100, 'a'));
  const std::unique_ptr<File> file = *files.open("s3://bucket/file", {});
  EXPECT_EQ(read(*file, 0, 2), "aa");
  bucket.put("file", std::string(100, 'b'));
  EXPECT_EQ(read(*file, 2, 2), "aa");  // of the window
  std::string out(5, '\0');
  EXPECT_EQ(file->read_at(50, std::as_writable_bytes(std::span(out))).error().code, Code::stale);
  EXPECT_EQ(read(**files.open("s3://bucket/file", {}), 50, 2), "bb");
}

TEST_F(S3FilesTest, whatever_writes_is_refused) {
  bucket.put("file", "x");
  const std::unique_ptr<File> file = *files.open("s3://bucket/file", {});
  for (const Status& refused :
       {file->write_at(0, {}), file->truncate(0), file->sync(), file->reserve(0, 1), files.remove("s3://bucket/file"),
        files.rename("s3://bucket/file", "s3://bucket/b"), files.sync_directory("s3://bucket")}) {
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::invalid);
    EXPECT_NE(refused.error().what.find("write to a folder and copy it"), std::string::npos);
  }
  EXPECT_EQ(files.open("s3://bucket/file", {.write = true}).error().code, Code::invalid);
  EXPECT_EQ(files.open("s3://bucket/", {}).error().code, Code::invalid);
  EXPECT_TRUE(file->close());
}

TEST_F(S3FilesTest, without_credentials_everybody_is_told) {
  S3FilesOptions none = options();
  none.settings = []() -> Result<S3Settings> { return Error{Code::invalid, "set AWS_ACCESS_KEY_ID"}; };
  S3Files blind(std::move(none));
  EXPECT_EQ(blind.open("s3://bucket/file", {}).error().what, "s3://bucket/file: set AWS_ACCESS_KEY_ID");
  EXPECT_EQ(blind.list("s3://bucket/file").error().code, Code::invalid);
  EXPECT_TRUE(blind.exists("s3://bucket/file"));
  EXPECT_EQ(blind.open("s3://B/file", {}).error().code, Code::invalid);
}

// The last test to look at the registry: what it sets stays.
TEST_F(S3FilesTest, real_files_find_it_by_the_scheme) {
  bucket.put("a/file", "content");
  const Result<std::string> before = read_file("s3://bucket/a/file");
  ASSERT_FALSE(before);
  EXPECT_EQ(before.error().code, Code::invalid);
  static S3Files* now = nullptr;
  now = &files;
  read_addresses_by("s3", *now);
  EXPECT_EQ(*read_file("s3://bucket/a/file"), "content");
  EXPECT_EQ(*file_size("s3://bucket/a/file"), 7u);
  EXPECT_EQ(*read_head("s3://bucket/a/file", 4), "cont");
  EXPECT_TRUE(path_exists("s3://bucket/a"));
  EXPECT_EQ(*real_files().list("s3://bucket"), Names{"a"});
  EXPECT_EQ(read_file("gs://bucket/a/file").error().code, Code::invalid);
  EXPECT_EQ(make_directories("s3://bucket/b").error().code, Code::invalid);
  EXPECT_EQ(write_file_atomically("s3://bucket/b", "x").error().code, Code::invalid);
  static S3Files closed{S3FilesOptions{.settings = []() -> Result<S3Settings> {
                                         return Error{Code::invalid, "closed"};
                                       },
                                       .transport = nullptr,
                                       .clock = nullptr,
                                       .retry = {}}};
  read_addresses_by("s3", closed);
}

}  // namespace
}  // namespace pawl::s3
