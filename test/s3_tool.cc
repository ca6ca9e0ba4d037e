// s3_tool: the client of object storage for test_s3.py, by the settings of the environment.
//
//   s3_tool BUCKET SUM put KEY FILE | put-if-absent KEY FILE | upload KEY FILE PART_BYTES | get KEY OFFSET SIZE ETAG |
//                      head KEY | list PREFIX | remove KEY | abort KEY
// Prints what it got, or "CODE: error" and exits with 1.
#include <algorithm>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "base/text.h"
#include "env/byte_source.h"
#include "env/s3/s3_bucket.h"

namespace pawl::s3 {
namespace {

using Arguments = std::vector<std::string>;

std::uint64_t number_of(const std::string& digits) {
  std::uint64_t out = 0;
  (void)parse_number(digits, out);
  return out;
}

Result<std::string> content_of(const std::string& path) {
  PAWL_ASSIGN(const std::unique_ptr<ByteSource> file, open_bytes(path));
  return read_text(*file, 0, file->size_bytes());
}

// All parts at once, the last one first.
Result<std::string> upload(S3Bucket& bucket, const std::string& key, const std::string& content,
                           std::size_t part_bytes) {
  PAWL_ASSIGN(const MultipartUpload begun, bucket.begin_upload(key, {}));
  const std::span<const std::byte> bytes = std::as_bytes(std::span(content));
  const std::size_t count = (bytes.size() + part_bytes - 1) / part_bytes;
  std::vector<Result<UploadedPart>> sent(count, Error{});
  std::vector<std::thread> threads;
  for (std::size_t index = count; index-- > 0;) {
    threads.emplace_back([&, index] {
      const std::span<const std::byte> rest = bytes.subspan(index * part_bytes);
      sent[index] = bucket.upload_part(begun, static_cast<std::uint32_t>(index + 1),
                                       rest.first(std::min(part_bytes, rest.size())), {});
    });
  }
  for (std::thread& each : threads) each.join();
  std::vector<UploadedPart> parts;
  for (const Result<UploadedPart>& each : sent) {
    if (!each) return each.error();
    parts.push_back(each.value());
  }
  return bucket.complete_upload(begun, parts, {});
}

Result<std::string> run(S3Bucket& bucket, const Arguments& words) {
  const std::string& what = words[0];
  const std::string& key = words[1];
  if (what == "put" || what == "put-if-absent") {
    PAWL_ASSIGN(const std::string content, content_of(words[2]));
    return bucket.put(key, std::as_bytes(std::span(content)), {.only_if_absent = what == "put-if-absent"}, {});
  }
  if (what == "upload") {
    PAWL_ASSIGN(const std::string content, content_of(words[2]));
    return upload(bucket, key, content, number_of(words[3]));
  }
  if (what == "get") {
    std::string out(number_of(words[3]), '\0');
    PAWL_TRY(bucket.get(key, number_of(words[2]), std::as_writable_bytes(std::span(out)), words[4], {}));
    return out;
  }
  if (what == "head") {
    PAWL_ASSIGN(const ObjectHead head, bucket.head(key, {}));
    return text(head.size_bytes, " ", head.etag);
  }
  if (what == "list") {
    std::string out;
    PAWL_ASSIGN(const std::vector<ListedObject> found, bucket.list(key, {}));
    for (const ListedObject& each : found) out += text(each.size_bytes, " ", each.key, "\n");
    return out;
  }
  if (what == "remove") {
    PAWL_TRY(bucket.remove(key, {}));
    return std::string();
  }
  if (what == "abort") {  // twice: the second time there is none
    PAWL_ASSIGN(const MultipartUpload begun, bucket.begin_upload(key, {}));
    PAWL_TRY(bucket.abort_upload(begun, {}));
    PAWL_TRY(bucket.abort_upload(begun, {}));
    return std::string();
  }
  return Error{Code::invalid, text("no command: ", what)};
}

Result<std::string> open_and_run(const Arguments& words) {
  S3Options options;
  PAWL_ASSIGN(options.settings, read_settings(real_settings_sources()));
  options.bucket = words[0];
  options.sum = words[1] == "md5" ? UploadSum::md5 : UploadSum::crc32c;
  const std::unique_ptr<HttpTransport> transport =
      curl_transport({std::chrono::seconds(10), options.settings.certificates});
  PAWL_ASSIGN(S3Bucket bucket, S3Bucket::open(std::move(options), *transport, real_clock()));
  return run(bucket, Arguments(words.begin() + 2, words.end()));
}

}  // namespace
}  // namespace pawl::s3

int main(int count, char** words) {
  if (count < 5) return 2;
  const pawl::Result<std::string> done = pawl::s3::open_and_run({words + 1, words + count});
  const std::string out =
      done ? done.value() : pawl::text(pawl::name_of(done.error().code), ": ", done.error().what, "\n");
  std::fwrite(out.data(), 1, out.size(), stdout);
  return done ? 0 : 1;
}
