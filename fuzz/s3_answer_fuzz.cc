// What a server of object storage answers in XML, in each way that it is read.
#include <cstdlib>
#include <string>
#include <string_view>

#include "env/s3/answers.h"
#include "env/s3/xml.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size);

int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const pawl::s3::ServerError error = pawl::s3::parse_error(input);
  if (error.code.size() + error.message.size() + error.region.size() > 2 * size) std::abort();
  (void)pawl::s3::is_error(input);
  (void)pawl::s3::parse_upload_id(input);
  (void)pawl::s3::parse_completed_etag(input);
  const pawl::Result<pawl::s3::ListPage> page = pawl::s3::parse_list_page(input);
  if (page && page->objects.size() + page->prefixes.size() > size) std::abort();
  // A text that is escaped is read as it was, but for what XML cannot hold.
  const pawl::Result<pawl::s3::XmlElement> again = pawl::s3::parse_xml("<a>" + pawl::s3::escape_xml(input) + "</a>");
  if (again && again->text != input && input.find('\r') == input.npos) std::abort();
  return 0;
}
