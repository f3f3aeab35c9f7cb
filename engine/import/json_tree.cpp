#include "engine/import/json_tree.h"

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/json.h"

namespace dstrain::importing {
namespace {

constexpr JsonLimits kLimits = {.bytes = std::uint64_t{1} << 20,
                                .depth = 100,
                                .values = 100'000,
                                .unique_keys = true,
                                .kind = ErrorKind::usage};

bool is_one_of(std::string_view all, char c) { return all.find(c) != std::string_view::npos; }

/// Finds the places of the values of a text that is known to be JSON.
class PlaceScanner {
 public:
  explicit PlaceScanner(std::string_view text) : text_(text) {}

  Node value() {
    skip_blanks();
    const Place place = here();
    switch (text_[at_]) {
      case '{':
        return object(place);
      case '[':
        return list(place);
      case '"':
        return {Node::Kind::scalar, place, string(), /*quoted=*/true};
      default:
        return scalar(place);
    }
  }

 private:
  [[nodiscard]] Place here() const {
    return {.line = line_, .column = static_cast<int>(at_ - line_begin_) + 1};
  }
  void skip_blanks() {
    for (; at_ < text_.size() && is_one_of(" \t\r\n", text_[at_]); ++at_) {
      if (text_[at_] != '\n') continue;
      ++line_;
      line_begin_ = at_ + 1;
    }
  }
  /// Steps over blanks and one of ':' ',' '}' ']'.
  char punctuation() {
    skip_blanks();
    return text_[at_++];
  }
  [[nodiscard]] bool closes(char end) {
    skip_blanks();
    if (text_[at_] != end) return false;
    ++at_;
    return true;
  }

  std::string string() {
    const std::size_t begin = at_++;
    bool escapes = false;
    while (text_[at_] != '"') {
      escapes = escapes || text_[at_] == '\\';
      at_ += text_[at_] == '\\' ? 2 : 1;
    }
    ++at_;
    const std::string_view token = text_.substr(begin, at_ - begin);
    if (!escapes) return std::string(token.substr(1, token.size() - 2));
    return parse_json(token, "", kLimits).get<std::string>();
  }
  Node scalar(Place place) {
    const std::size_t begin = at_;
    while (at_ < text_.size() && !is_one_of(" \t\r\n,]}", text_[at_])) ++at_;
    std::string word(text_.substr(begin, at_ - begin));
    if (word == "null") return {Node::Kind::null, place};
    return {Node::Kind::scalar, place, std::move(word)};
  }
  Node list(Place place) {
    Node node(Node::Kind::list, place);
    ++at_;
    if (closes(']')) return node;
    do node.items.push_back(value());
    while (punctuation() == ',');
    return node;
  }
  Node object(Place place) {
    Node node(Node::Kind::map, place);
    ++at_;
    if (closes('}')) return node;
    do {
      skip_blanks();
      Entry entry = {.key = {}, .place = here()};
      entry.key = string();
      (void)punctuation();
      entry.value = value();
      node.entries.push_back(std::move(entry));
    } while (punctuation() == ',');
    return node;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int line_ = 1;
  std::size_t line_begin_ = 0;
};

}  // namespace

Node read_json_tree(std::string_view text, const std::string& file) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);  // a byte order mark says nothing
  try {
    (void)parse_json(text, file, kLimits);
  } catch (const Error& error) {
    const auto holds = [&](std::string_view part) { return text.find(part) != text.npos; };
    const bool twice = std::string_view(error.what()).ends_with("twice");
    const bool comment = holds("//") || holds("/*") || holds("\n#");
    throw Error(error.kind(), error.what(),
                twice     ? "keep one of the two"
                : comment ? "JSON has no comments: take them out"
                          : "write plain JSON");
  }
  return PlaceScanner(text).value();
}

}  // namespace dstrain::importing
