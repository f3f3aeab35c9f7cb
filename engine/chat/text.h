#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain::chat {

/// Where a character of a rendered chat comes from.
enum class Origin : std::uint8_t {
  written,  ///< the template, its special tokens and its arguments
  message,  ///< a message of the conversation
  given,    ///< tools and documents
};

/// Which field of a message.
enum class Field : std::uint8_t { none, role, content, thought, tool_calls, tool_name, other };

struct Source {
  Origin origin = Origin::written;
  Field field = Field::none;
  std::uint16_t call = 0;     ///< of Field::tool_name: which tool call of the message
  std::int32_t message = -1;  ///< of Origin::message: its index
  bool marked = false;        ///< printed inside {% generation %}

  bool operator==(const Source&) const = default;
};

/// UTF-8 text whose characters know their source.
class Text {
 public:
  /// Bytes from the end of the run before up to `end`.
  struct Run {
    std::size_t end;
    Source source;
    bool operator==(const Run&) const = default;
  };

  Text() = default;
  explicit Text(std::string bytes, Source source = {});

  [[nodiscard]] const std::string& bytes() const { return bytes_; }
  [[nodiscard]] std::size_t size() const { return bytes_.size(); }
  [[nodiscard]] bool empty() const { return bytes_.empty(); }
  [[nodiscard]] const std::vector<Run>& runs() const { return runs_; }
  [[nodiscard]] Source source_at(std::size_t byte) const;

  void append(std::string_view bytes, Source source);
  void append(const Text& text) { append_part(text, 0, text.size()); }
  /// Bytes [begin, end) of `text`.
  void append_part(const Text& text, std::size_t begin, std::size_t end);
  [[nodiscard]] Text part(std::size_t begin, std::size_t end) const;
  /// All of it was printed inside {% generation %}.
  void mark();

 private:
  std::string bytes_;
  std::vector<Run> runs_;
};

}  // namespace dstrain::chat
