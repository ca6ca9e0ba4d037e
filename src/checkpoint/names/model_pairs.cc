#include "checkpoint/names/model_pairs.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <vector>

namespace pawl::checkpoint {
namespace {

constexpr std::size_t kKeyBytesLooked = 512;
constexpr std::array<std::string_view, 19> kKindWords = {
    "optimizer", "optimizers", "optim",  "optims",  "opt",   "opts",   "model", "models", "net",    "nets",
    "network",   "networks",   "module", "modules", "state", "states", "dict",  "dicts",  "weights"};
constexpr std::array<std::string_view, 8> kAverageWords = {"ema",     "swa",    "avg",     "averaged",
                                                           "average", "shadow", "teacher", "target"};

char lower(char c) {
  return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
}

bool is_upper(char c) {
  return std::isupper(static_cast<unsigned char>(c)) != 0;
}

// "netG_A" is net, g, a. A capital begins a word after a small letter.
std::vector<std::string> words_of(std::string_view key) {
  std::vector<std::string> out;
  bool is_open = false;
  char before = '.';
  for (const char c : key.substr(0, kKeyBytesLooked)) {
    const bool is_part = std::isalnum(static_cast<unsigned char>(c)) != 0;
    const bool begins = is_part && (!is_open || (is_upper(c) && !is_upper(before)));
    if (begins) out.emplace_back();
    if (is_part) out.back().push_back(lower(c));
    is_open = is_part;
    before = c;
  }
  return out;
}

std::vector<std::string> own_words(std::string_view key) {
  std::vector<std::string> out = words_of(key);
  std::erase_if(out, [](const std::string& word) { return std::ranges::find(kKindWords, word) != kKindWords.end(); });
  return out;
}

// "g" and "generator". Of numbers one does not stand for another.
bool is_short_for(std::string_view word, std::string_view longer) {
  return longer.starts_with(word) && std::isalpha(static_cast<unsigned char>(word.back())) != 0;
}

}  // namespace

bool are_paired(std::string_view optimizer, std::string_view model) {
  return std::ranges::equal(own_words(optimizer), own_words(model), [](std::string_view a, std::string_view b) {
    return a == b || is_short_for(a, b) || is_short_for(b, a);
  });
}

bool is_average(std::string_view model) {
  return std::ranges::any_of(words_of(model), [](const std::string& word) {
    return std::ranges::find(kAverageWords, word) != kAverageWords.end();
  });
}

}  // namespace pawl::checkpoint
