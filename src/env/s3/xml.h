// XmlElement: a small XML document as a tree, read by expat. Pure.
//
// Meant for a server's answers: no document type, so no entities of its own, and at most 16 levels.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace pawl::s3 {

struct XmlElement {
  std::string name;  // without a prefix of a namespace
  std::string text;  // its own, not its children's
  std::vector<XmlElement> children;

  [[nodiscard]] const XmlElement* child(std::string_view wanted) const;   // the first of that name; null: none
  [[nodiscard]] std::string_view text_of(std::string_view wanted) const;  // of that child; empty where there is none
};

// The root. Blanks before the document are allowed: S3 sends some while it works. Fails: `corrupt`.
[[nodiscard]] Result<XmlElement> parse_xml(std::string_view document);

// `text` between tags or in an attribute.
[[nodiscard]] std::string escape_xml(std::string_view text);

}  // namespace pawl::s3
