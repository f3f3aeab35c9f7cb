#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/hosts/allocation.h"

namespace dstrain::launcher {

/// What is wrong at one byte of a line. Thrown while the line is read, caught by the loop over
/// lines, which goes on with the next one.
struct LineError {
  std::size_t at;
  std::string text;
};

/// All that is wrong with one text, so that a person can fix it in one go.
class LineErrors {
 public:
  /// `place` is "file:line" or an option's name; the column in `line` is added.
  void add(const std::string& place, std::string_view line, const LineError& complaint);
  /// So much is wrong that reading on would only cost time.
  [[nodiscard]] bool full() const;
  /// Error{usage} with a line for each of the first complaints, and how many more there are.
  void throw_if_any(const std::string& hint) const;

 private:
  std::size_t count_ = 0;
  std::string text_;
};

/// Part of a line, from byte `at` of it.
struct Word {
  std::string_view text;
  std::size_t at = 0;

  [[nodiscard]] Word from(std::size_t begin) const { return {text.substr(begin), at + begin}; }
  [[nodiscard]] Word to(std::size_t end) const { return {text.substr(0, end), at}; }
};

/// Takes the next word without blanks off `line`; empty at its end.
[[nodiscard]] Word next_word(Word& line);

/// LineError for a byte that no host list holds: NUL, another control character, broken UTF-8.
void check_bytes(Word line);

/// "'h1'", safe to print.
[[nodiscard]] std::string in_quotes(std::string_view text);
[[nodiscard]] bool is_name_character(char c);
/// Decimal without sign or leading zero, from `min` to `max`.
[[nodiscard]] std::optional<int> read_count(std::string_view text, int min, int max);
/// A host name, an IPv4 address, or an IPv6 address in brackets, which are taken off. LineError for
/// anything else.
[[nodiscard]] std::string read_name(Word word);
/// "0,2", in the order given, each once; else LineError.
[[nodiscard]] std::vector<int> read_devices(Word list);

/// Two names with the same key are one host: lower case, and one spelling of an IP address.
[[nodiscard]] std::string key_of(const std::string& name);
/// Whether a key means this machine: localhost, a loopback address, its name in full or short.
[[nodiscard]] bool is_this_machine(const std::string& key, const std::string& this_host);

}  // namespace dstrain::launcher
