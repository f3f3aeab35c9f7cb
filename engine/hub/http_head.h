#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dstrain::hub {

inline constexpr std::size_t kMaxHeadBytes = std::size_t{64} << 10;

/// Status line and headers of an answer.
struct HttpHead {
  int status = 0;
  std::vector<std::pair<std::string, std::string>> headers;  ///< names in small letters

  /// The first header of that name; nothing where there is none.
  [[nodiscard]] std::optional<std::string_view> find(std::string_view name) const;
  /// Content-Length. Error{data} where it is no number, or several differ.
  [[nodiscard]] std::optional<std::int64_t> content_length() const;
  /// Whether the body comes in chunks. Error{data} for another Transfer-Encoding.
  [[nodiscard]] bool is_chunked() const;
};

/// `text`: up to and with the empty line. Error{data} names `host` and what is wrong.
[[nodiscard]] HttpHead parse_http_head(std::string_view text, std::string_view host);

/// "bytes FIRST-LAST/SIZE" of a Content-Range.
struct ContentRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
  std::int64_t size = -1;  ///< -1: not said
};
[[nodiscard]] std::optional<ContentRange> parse_content_range(std::string_view text);

/// Size of a chunk out of its first line, without the line end; nothing where it says none.
[[nodiscard]] std::optional<std::int64_t> parse_chunk_size(std::string_view line);

/// Address of rel="next" in a Link header.
[[nodiscard]] std::optional<std::string> next_link(std::string_view text);

}  // namespace dstrain::hub
