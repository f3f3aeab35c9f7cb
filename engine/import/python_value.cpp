#include "engine/import/python_value.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

namespace dstrain::importing {
namespace {

constexpr std::string_view kPythonBlanks = " \t\n\r\f\v";

std::string_view without_blanks(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kPythonBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kPythonBlanks) - begin + 1);
}

/// Reads the parts of a Python number and collects them without '+' and '_'.
class PythonNumber {
 public:
  explicit PythonNumber(std::string_view text) : text_(without_blanks(text)) {}

  bool read_whole() {
    sign();
    return digits() && at_ == text_.size();
  }
  bool read_real() {
    sign();
    const bool before = digits();
    const bool after = take('.') && digits();
    if (!before && !after) return false;
    if (take('e') || take('E')) {
      sign();
      if (!digits()) return false;
    }
    return at_ == text_.size();
  }
  [[nodiscard]] const std::string& plain() const { return plain_; }

 private:
  [[nodiscard]] bool is_digit(std::size_t at) const {
    return at < text_.size() && text_[at] >= '0' && text_[at] <= '9';
  }
  bool take(char c) {
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    plain_ += c;
    return true;
  }
  void sign() {
    if (at_ < text_.size() && text_[at_] == '+')
      ++at_;
    else
      take('-');
  }
  /// Digits; one '_' may stand between two of them.
  bool digits() {
    const std::size_t begin = at_;
    while (is_digit(at_) || (at_ > begin && at_ < text_.size() && text_[at_] == '_' &&
                             is_digit(at_ - 1) && is_digit(at_ + 1))) {
      if (text_[at_] != '_') plain_ += text_[at_];
      ++at_;
    }
    return at_ > begin;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::string plain_;
};

}  // namespace

std::optional<double> python_real(std::string_view text) {
  PythonNumber number(text);
  if (!number.read_real()) return std::nullopt;
  const std::string& plain = number.plain();
  double value = 0;
  if (std::from_chars(plain.data(), plain.data() + plain.size(), value).ec != std::errc{})
    return std::nullopt;
  return value;
}

std::optional<long> python_whole(std::string_view text) {
  PythonNumber number(text);
  if (!number.read_whole() || number.plain().size() > 16) return std::nullopt;
  return std::strtol(number.plain().c_str(), nullptr, 10);
}

std::optional<bool> python_flag(std::string_view text) {
  std::string word(text);
  for (char& c : word) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  for (const std::string_view yes : {"yes", "true", "t", "y", "1"})
    if (word == yes) return true;
  for (const std::string_view no : {"no", "false", "f", "n", "0"})
    if (word == no) return false;
  return std::nullopt;
}

}  // namespace dstrain::importing
