#include "env/s3/answers.h"

#include <algorithm>

#include "base/text.h"
#include "env/s3/s3_url.h"
#include "env/s3/utc_time.h"
#include "env/s3/xml.h"

namespace pawl::s3 {
namespace {

Result<XmlElement> parse_answer(std::string_view document, std::string_view root) {
  PAWL_ASSIGN(XmlElement found, parse_xml(document));
  if (found.name != root) return Error{Code::corrupt, text("the answer is <", found.name, ">, not <", root, ">")};
  return found;
}

Result<std::string> key_text(std::string_view written, bool encoded) {
  if (encoded) return decode_key(written);
  return std::string(written);
}

}  // namespace

ServerError parse_error(std::string_view document) {
  ServerError out;
  const Result<XmlElement> root = parse_answer(document, "Error");
  if (!root) return out;
  out.code = root.value().text_of("Code");
  out.message = root.value().text_of("Message");
  out.region = root.value().text_of("Region");
  out.server_time = parse_iso_time(root.value().text_of("ServerTime"));
  return out;
}

bool is_error(std::string_view document) {
  return parse_answer(document, "Error").has_value();
}

Result<ListPage> parse_list_page(std::string_view document) {
  PAWL_ASSIGN(const XmlElement root, parse_answer(document, "ListBucketResult"));
  ListPage out;
  const bool encoded = root.text_of("EncodingType") == "url";
  for (const XmlElement& each : root.children) {
    if (each.name == "CommonPrefixes") {
      PAWL_ASSIGN(std::string prefix, key_text(each.text_of("Prefix"), encoded));
      out.prefixes.push_back(std::move(prefix));
    }
    if (each.name != "Contents") continue;
    ListedObject object;
    PAWL_ASSIGN(object.key, key_text(each.text_of("Key"), encoded));
    if (object.key.empty() || !parse_number(each.text_of("Size"), object.size_bytes))
      return Error{Code::corrupt, "a list of objects has one without key or size"};
    object.etag = each.text_of("ETag");
    out.objects.push_back(std::move(object));
  }
  out.continuation = root.text_of("NextContinuationToken");
  const bool more = root.text_of("IsTruncated") == "true";
  if (more == out.continuation.empty())
    return Error{Code::corrupt, more ? "a list of objects goes on, and doesn't say from where"
                                     : "a list of objects is complete, and says how it goes on"};
  return out;
}

Result<std::string> parse_upload_id(std::string_view document) {
  PAWL_ASSIGN(const XmlElement root, parse_answer(document, "InitiateMultipartUploadResult"));
  const std::string_view id = root.text_of("UploadId");
  if (id.empty()) return Error{Code::corrupt, "the answer has no UploadId"};
  return std::string(id);
}

Result<std::string> parse_completed_etag(std::string_view document) {
  PAWL_ASSIGN(const XmlElement root, parse_answer(document, "CompleteMultipartUploadResult"));
  return std::string(root.text_of("ETag"));
}

std::string complete_document(std::vector<UploadedPart> parts) {
  std::sort(parts.begin(), parts.end(),
            [](const UploadedPart& a, const UploadedPart& b) { return a.number < b.number; });
  std::string out = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
  for (const UploadedPart& part : parts) {
    out += text("<Part><PartNumber>", part.number, "</PartNumber><ETag>", escape_xml(part.etag), "</ETag>");
    if (!part.crc32c.empty()) out += text("<ChecksumCRC32C>", part.crc32c, "</ChecksumCRC32C>");
    out += "</Part>";
  }
  return out + "</CompleteMultipartUpload>";
}

}  // namespace pawl::s3
