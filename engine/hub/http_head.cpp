#include "engine/hub/http_head.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "engine/base/error.h"
#include "engine/base/printable.h"

namespace dstrain::hub {
namespace {

constexpr std::size_t kMaxHeaders = 200;

[[noreturn]] void refuse_head(std::string_view host, std::string_view what) {
  throw Error(ErrorKind::data,
              fmt::format("{} does not answer as a server of HTTP does: {}", shown(host), what),
              "a proxy or a portal of the network may answer in its place");
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

/// A number of digits alone.
template <int kBase = 10>
std::optional<std::int64_t> digits(std::string_view text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value, kBase);
  if (text.empty() || text.front() == '-' || read.ec != std::errc{} || read.ptr != end)
    return std::nullopt;
  return value;
}

bool is_token(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
  });
}

}  // namespace

std::optional<std::string_view> HttpHead::find(std::string_view name) const {
  for (const auto& [key, value] : headers)
    if (key == name) return value;
  return std::nullopt;
}

std::optional<std::int64_t> HttpHead::content_length() const {
  std::optional<std::int64_t> length;
  for (const auto& [key, value] : headers) {
    if (key != "content-length") continue;
    const auto one = digits(value);
    if (!one || (length && *length != *one))
      refuse_head("the server", fmt::format("Content-Length: {}", shown(value)));
    length = one;
  }
  return length;
}

bool HttpHead::is_chunked() const {
  const auto encoding = find("transfer-encoding");
  if (!encoding || *encoding == "identity") return false;
  if (*encoding != "chunked")
    refuse_head("the server", fmt::format("Transfer-Encoding: {}", shown(*encoding)));
  return true;
}

HttpHead parse_http_head(std::string_view text, std::string_view host) {
  HttpHead head;
  const auto take_line = [&] {
    const auto end = text.find('\n');
    if (end == std::string_view::npos) refuse_head(host, "its headers do not end");
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (std::ranges::any_of(line,
                            [](unsigned char c) { return (c < ' ' && c != '\t') || c == 0x7f; }))
      refuse_head(host, fmt::format("control characters in '{}'", shown(line)));
    return line;
  };
  const std::string_view first = take_line();
  const std::int64_t status = first.size() >= 12 ? digits(first.substr(9, 3)).value_or(0) : 0;
  if (!(first.starts_with("HTTP/1.1 ") || first.starts_with("HTTP/1.0 ")) || status < 100 ||
      status > 599 || (first.size() > 12 && first[12] != ' '))
    refuse_head(host, fmt::format("'{}'", shown(first)));
  head.status = static_cast<int>(status);
  for (std::string_view line = take_line(); !line.empty(); line = take_line()) {
    const auto colon = line.find(':');
    const std::string_view name = line.substr(0, colon);
    // A line that goes on the one before it begins with a blank: RFC 9112 forbids them.
    if (colon == std::string_view::npos || !is_token(name))
      refuse_head(host, fmt::format("'{}' is no header", shown(line)));
    if (head.headers.size() >= kMaxHeaders) refuse_head(host, "more than 200 headers");
    std::string key(name);
    for (char& c : key)
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    head.headers.emplace_back(std::move(key), trimmed(line.substr(colon + 1)));
  }
  return head;
}

std::optional<ContentRange> parse_content_range(std::string_view text) {
  if (!text.starts_with("bytes ")) return std::nullopt;
  text.remove_prefix(6);
  const auto dash = text.find('-');
  const auto slash = text.find('/');
  if (dash == std::string_view::npos || slash == std::string_view::npos || slash < dash)
    return std::nullopt;
  const auto first = digits(text.substr(0, dash));
  const auto last = digits(text.substr(dash + 1, slash - dash - 1));
  const std::string_view size = text.substr(slash + 1);
  const auto whole = size == "*" ? std::optional<std::int64_t>(-1) : digits(size);
  if (!first || !last || !whole || *first > *last || (*whole >= 0 && *last >= *whole))
    return std::nullopt;
  return ContentRange{.first = *first, .last = *last, .size = *whole};
}

std::optional<std::int64_t> parse_chunk_size(std::string_view line) {
  return digits<16>(trimmed(line.substr(0, line.find(';'))));
}

std::optional<std::string> next_link(std::string_view text) {
  while (true) {
    const auto open = text.find('<');
    if (open == std::string_view::npos) return std::nullopt;
    const auto close = text.find('>', open);
    if (close == std::string_view::npos) return std::nullopt;
    const std::string_view target = text.substr(open + 1, close - open - 1);
    text.remove_prefix(close + 1);
    const std::string_view parameters = text.substr(0, text.find('<'));
    if (parameters.find("rel=\"next\"") != std::string_view::npos ||
        parameters.find("rel=next") != std::string_view::npos)
      return std::string(target);
  }
}

}  // namespace dstrain::hub
