#pragma once

#include <string>
#include <string_view>

namespace dstrain {

/// A pattern of tokenizer.json (Oniguruma's syntax, which `tokenizers` reads) as the pattern for
/// PCRE2 with UTF that matches the same text: nested sets are flattened, classes are those of
/// Unicode 16 on PCRE2's Unicode 14, groups capture nothing. What has no equal, or none that was
/// compared, is refused: Error{data} names the construct and its byte, and begins with `where`.
[[nodiscard]] std::string to_pcre2(std::string_view pattern, const std::string& where);

/// A pattern that matches exactly this text.
[[nodiscard]] std::string literal_to_pcre2(std::string_view text);

/// `\\w` of Rust's regex, with which `tokenizers` tells whole words for added tokens.
[[nodiscard]] std::string rust_word_class();

}  // namespace dstrain
