#include "env/s3/xml.h"

#include <expat.h>

#include <limits>
#include <memory>

#include "base/text.h"

namespace pawl::s3 {
namespace {

constexpr std::size_t kLevelsMax = 16;

struct Reading {
  XML_Parser parser = nullptr;
  XmlElement root;               // its one child is the document's root
  std::vector<XmlElement> open;  // from the root to the innermost
  const char* refused = nullptr;

  void refuse(const char* why) {
    refused = why;
    XML_StopParser(parser, XML_FALSE);
  }
};

std::string_view without_prefix(std::string_view name) {
  const std::size_t colon = name.find(':');
  return colon == name.npos ? name : name.substr(colon + 1);
}

void begin_element(void* user, const XML_Char* name, const XML_Char** /*attributes*/) {
  auto& reading = *static_cast<Reading*>(user);
  if (reading.open.size() >= kLevelsMax) {
    reading.refuse("elements nest too deeply");
    return;
  }
  XmlElement element;
  element.name = without_prefix(name);
  reading.open.push_back(std::move(element));
}

void end_element(void* user, const XML_Char* /*name*/) {
  auto& reading = *static_cast<Reading*>(user);
  XmlElement done = std::move(reading.open.back());
  reading.open.pop_back();
  XmlElement& parent = reading.open.empty() ? reading.root : reading.open.back();
  parent.children.push_back(std::move(done));
}

void add_text(void* user, const XML_Char* characters, int size) {
  auto& reading = *static_cast<Reading*>(user);
  if (!reading.open.empty()) reading.open.back().text.append(characters, static_cast<std::size_t>(size));
}

void begin_document_type(void* user, const XML_Char*, const XML_Char*, const XML_Char*, int) {
  static_cast<Reading*>(user)->refuse("it has a document type");
}

}  // namespace

const XmlElement* XmlElement::child(std::string_view wanted) const {
  for (const XmlElement& each : children)
    if (each.name == wanted) return &each;
  return nullptr;
}

std::string_view XmlElement::text_of(std::string_view wanted) const {
  const XmlElement* found = child(wanted);
  return found == nullptr ? std::string_view() : std::string_view(found->text);
}

Result<XmlElement> parse_xml(std::string_view document) {
  while (!document.empty() &&
         (document.front() == ' ' || document.front() == '\n' || document.front() == '\r' || document.front() == '\t'))
    document.remove_prefix(1);
  if (document.size() > std::numeric_limits<int>::max()) return Error{Code::corrupt, "XML of more than 2 GiB"};
  const std::unique_ptr<XML_ParserStruct, void (*)(XML_Parser)> parser(XML_ParserCreate(nullptr), XML_ParserFree);
  if (!parser) return Error{Code::full, "no memory for a reader of XML"};
  Reading reading;
  reading.parser = parser.get();
  XML_SetUserData(parser.get(), &reading);
  XML_SetElementHandler(parser.get(), begin_element, end_element);
  XML_SetCharacterDataHandler(parser.get(), add_text);
  XML_SetStartDoctypeDeclHandler(parser.get(), begin_document_type);
  if (XML_Parse(parser.get(), document.data(), static_cast<int>(document.size()), 1) != XML_STATUS_OK) {
    const char* why = reading.refused;
    if (why == nullptr) why = XML_ErrorString(XML_GetErrorCode(parser.get()));
    return Error{Code::corrupt, text("XML: ", why, " at line ", std::uint64_t{XML_GetCurrentLineNumber(parser.get())})};
  }
  return std::move(reading.root.children.front());
}

std::string escape_xml(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace pawl::s3
