#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dstrain::trace {

/// How far a reader came: through a value, to the end of the text, or to a mistake.
enum class Reading : std::uint8_t { whole, cut, broken };

/// A place in JSON text that ends with a byte 0 at `end`: the loops stop there without looking.
struct TextCursor {
  const char* p = nullptr;
  const char* end = nullptr;
  const char* mistake = "";  ///< after `broken`

  Reading fail(const char* what) {
    mistake = what;
    return Reading::broken;
  }
  /// At a byte that cannot stand there.
  Reading stop(const char* what) { return p == end ? Reading::cut : fail(what); }
  void skip_space() {
    while (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t') ++p;
  }
};

/// Past the text, number or whole value that begins at the cursor; at most 64 values deep. NaN and
/// Infinity pass for numbers, as Python and Kineto write them.
Reading skip_text(TextCursor& cursor);
Reading skip_value(TextCursor& cursor);

/// A value without the quotes of a text.
[[nodiscard]] std::string_view without_quotes(std::string_view value);

/// Reads the members of an object one by one; ends at the first one that is broken.
class Members {
 public:
  /// `object` with its braces, from Event::args or Scanner::top.
  explicit Members(std::string_view object);
  /// False at the end. `value` without quotes; `is_text` says whether it had any.
  [[nodiscard]] bool next(std::string_view& key, std::string_view& value, bool& is_text);
  [[nodiscard]] bool next(std::string_view& key, std::string_view& value) {
    bool ignored = false;
    return next(key, value, ignored);
  }

 private:
  std::string_view rest_;
};

/// The value of `key` in the object, without quotes; nothing where it is missing.
[[nodiscard]] std::optional<std::string_view> find_argument(std::string_view object,
                                                            std::string_view key);
[[nodiscard]] std::optional<std::int64_t> find_integer(std::string_view object,
                                                       std::string_view key);
[[nodiscard]] std::optional<std::int64_t> to_integer(std::string_view text);

/// A text of a file, with its escapes resolved. Halves of surrogate pairs become U+FFFD.
[[nodiscard]] std::string unescape(std::string_view text);

/// Nanoseconds of decimal microseconds ("12.345", "-3", "1.5e3"), without going through a double;
/// what is finer than a nanosecond is rounded. Nothing for another text or beyond int64.
[[nodiscard]] std::optional<std::int64_t> microseconds_to_ns(std::string_view text);

}  // namespace dstrain::trace
