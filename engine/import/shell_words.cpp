#include "engine/import/shell_words.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"

namespace dstrain::importing {
namespace {

bool any_of(std::string_view all, char c) { return all.find(c) != std::string_view::npos; }

class WordReader {
 public:
  explicit WordReader(std::string_view text) : text_(text) {}

  std::vector<std::string> read() {
    while (at_ < text_.size()) step(text_[at_]);
    end_word();
    return std::move(words_);
  }

 private:
  void step(char c) {
    if (any_of(" \t\r\n", c)) {
      end_word();
      over_ = over_ || (c == '\n' && !words_.empty());
      ++at_;
    } else if (c == '#' && !open_) {
      at_ = std::min(text_.find('\n', at_), text_.size());
    } else if (over_) {
      throw Error(ErrorKind::usage, "--command: a line break ends the command, and another follows",
                  "give one command; a line that goes on ends with \\");
    } else if (c == '\'' || c == '"') {
      quoted(c);
    } else if (c == '\\') {
      escape();
    } else if (any_of(";|&<>`", c)) {
      throw Error(ErrorKind::usage, fmt::format("--command: '{}' needs a shell", c),
                  "give one command without pipes and redirections");
    } else {
      add(c);
      ++at_;
    }
  }
  void escape() {
    if (++at_ == text_.size()) return;
    if (text_.substr(at_).starts_with("\r\n")) ++at_;  // a line of Windows that goes on
    if (text_[at_] != '\n') add(text_[at_]);
    ++at_;
  }
  void quoted(char mark) {
    open_ = true;
    for (++at_; at_ < text_.size() && text_[at_] != mark; ++at_) {
      const bool escaped = mark == '"' && text_[at_] == '\\' && at_ + 1 < text_.size() &&
                           any_of("\"\\$`", text_[at_ + 1]);
      if (escaped) ++at_;
      add(text_[at_]);
    }
    if (at_ == text_.size()) {
      throw Error(ErrorKind::usage, fmt::format("--command: a quote ({}) without its end", mark),
                  "close it");
    }
    ++at_;
  }
  void add(char c) {
    word_ += c;
    open_ = true;
  }
  void end_word() {
    if (open_) words_.push_back(std::move(word_));
    word_.clear();
    open_ = false;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::string word_;
  bool open_ = false;  ///< a word has begun, perhaps an empty one in quotes
  bool over_ = false;  ///< a line break has ended the command
  std::vector<std::string> words_;
};

}  // namespace

std::vector<std::string> shell_words(std::string_view line) { return WordReader(line).read(); }

}  // namespace dstrain::importing
