#include "env/s3/answers.h"

#include <gtest/gtest.h>

#include "env/s3/xml.h"

namespace pawl::s3 {
namespace {

TEST(Xml, a_tree_with_text) {
  const XmlElement root =
      parse_xml("\n <?xml version=\"1.0\"?>\n\n<a:R xmlns:a=\"n\"><B>x &amp; <C/>y</B><B/></a:R>").value();
  EXPECT_EQ(root.name, "R");
  EXPECT_EQ(root.text_of("B"), "x & y");
  EXPECT_EQ(root.children.size(), 2u);
  EXPECT_EQ(root.child("D"), nullptr);
}

TEST(Xml, what_is_refused) {
  std::string deep;
  for (int level = 0; level < 17; ++level) deep += "<a>";
  for (int level = 0; level < 17; ++level) deep += "</a>";
  for (const std::string& document :
       {std::string(), std::string("<html><br></html>"), std::string("<a>"), std::string("<a/><b/>"),
        std::string("<!DOCTYPE a [<!ENTITY e \"x\">]><a>&e;</a>"), deep}) {
    const Result<XmlElement> found = parse_xml(document);
    ASSERT_FALSE(found) << document;
    EXPECT_EQ(found.error().code, Code::corrupt);
  }
}

TEST(Answers, an_error) {
  const std::string document =
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>RequestTimeTooSkewed</Code><Message>far off</Message>"
      "<ServerTime>2013-05-24T00:00:00Z</ServerTime><Region>eu-west-1</Region><New><Thing/></New></Error>";
  const ServerError found = parse_error(document);
  EXPECT_EQ(found.code, "RequestTimeTooSkewed");
  EXPECT_EQ(found.message, "far off");
  EXPECT_EQ(found.region, "eu-west-1");
  EXPECT_EQ(found.server_time, Duration(std::chrono::seconds(1369353600)));
  EXPECT_TRUE(is_error(document));
  EXPECT_EQ(parse_error("<html>Bad Gateway</html>").code, "");
  EXPECT_FALSE(is_error(""));
}

TEST(Answers, a_list) {
  const ListPage page =
      parse_list_page(
          "<ListBucketResult><IsTruncated>true</IsTruncated><EncodingType>url</EncodingType>"
          "<NextContinuationToken>tok/1=</NextContinuationToken>"
          "<Contents><Key>a/b+c%2B</Key><Size>7</Size><ETag>&quot;e&quot;</ETag><Owner><ID>x</ID></Owner></Contents>"
          "<CommonPrefixes><Prefix>a/d%20/</Prefix></CommonPrefixes></ListBucketResult>")
          .value();
  ASSERT_EQ(page.objects.size(), 1u);
  EXPECT_EQ(page.objects[0].key, "a/b c+");
  EXPECT_EQ(page.objects[0].size_bytes, 7u);
  EXPECT_EQ(page.objects[0].etag, "\"e\"");
  EXPECT_EQ(page.prefixes, std::vector<std::string>{"a/d /"});
  EXPECT_EQ(page.continuation, "tok/1=");
}

TEST(Answers, keys_that_are_not_encoded_stay_as_they_are) {
  const ListPage page =
      parse_list_page("<ListBucketResult><Contents><Key>a+%20</Key><Size>0</Size></Contents></ListBucketResult>")
          .value();
  EXPECT_EQ(page.objects.at(0).key, "a+%20");
}

TEST(Answers, lists_that_are_not_whole) {
  for (const char* document :
       {"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
        "<ListBucketResult><NextContinuationToken>t</NextContinuationToken></ListBucketResult>",
        "<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>",
        "<ListBucketResult><Contents><Key>a</Key><Size>-1</Size></Contents></ListBucketResult>", "<Other/>"}) {
    EXPECT_EQ(parse_list_page(document).error().code, Code::corrupt) << document;
  }
}

TEST(Answers, of_an_upload_by_parts) {
  EXPECT_EQ(
      parse_upload_id("<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>").value(),
      "u");
  EXPECT_EQ(parse_upload_id("<InitiateMultipartUploadResult/>").error().code, Code::corrupt);
  EXPECT_EQ(
      parse_completed_etag("<CompleteMultipartUploadResult><ETag>e-2</ETag></CompleteMultipartUploadResult>").value(),
      "e-2");
  EXPECT_EQ(parse_completed_etag("<Error><Code>InternalError</Code></Error>").error().code, Code::corrupt);
}

TEST(Answers, the_list_of_parts_is_in_order) {
  EXPECT_EQ(complete_document({{2, "\"b\"", ""}, {1, "a", "4waSgw=="}}),
            "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
            "<Part><PartNumber>1</PartNumber><ETag>a</ETag><ChecksumCRC32C>4waSgw==</ChecksumCRC32C></Part>"
            "<Part><PartNumber>2</PartNumber><ETag>&quot;b&quot;</ETag></Part></CompleteMultipartUpload>");
}

}  // namespace
}  // namespace pawl::s3
