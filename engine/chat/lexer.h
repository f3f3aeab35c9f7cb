#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain::chat {

/// A mistake in a template and its line.
struct SyntaxFault {
  int line;
  std::string message;
};

struct Token {
  enum class Kind : std::uint8_t {
    data,         ///< text between tags
    block_begin,  ///< {%
    block_end,
    print_begin,  ///< {{
    print_end,
    name,
    text,
    integer,
    real,
    symbol,
    end,
  };

  Kind kind;
  int line;
  std::string text;  ///< of data, names, symbols and texts, whose escapes are read
  std::int64_t integer = 0;
  double real = 0;
};

/// Tokens of a Jinja template with trim_blocks and lstrip_blocks, as jinja2's lexer finds them: one
/// final line end is dropped, line ends become "\n". Comments leave nothing. SyntaxFault for what
/// is no token.
[[nodiscard]] std::vector<Token> tokenise_template(std::string_view text);

}  // namespace dstrain::chat
