// Addresses of objects as users write them, keys as servers encode them, and endpoints.
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/text.h"
#include "env/s3/s3_url.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size);

int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const pawl::Result<pawl::s3::S3Path> path = pawl::s3::parse_s3_path(input);
  if (path) {
    const pawl::Result<pawl::s3::S3Path> again =
        pawl::s3::parse_s3_path(pawl::text("s3://", path->bucket, "/", path->prefix));
    if (!again || !(*again == *path)) std::abort();
  }
  const pawl::Result<std::string> key = pawl::s3::decode_key(pawl::s3::encode_key(input));
  if (!key || *key != input) std::abort();
  (void)pawl::s3::decode_key(input);
  const pawl::Result<pawl::s3::Endpoint> endpoint = pawl::s3::parse_endpoint(input);
  if (endpoint) (void)pawl::s3::address_of(*endpoint, pawl::s3::BucketPlace::path, "bucket", input);
  return 0;
}
