#include "engine/hub/url.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/printable.h"

namespace dstrain::hub {
namespace {

constexpr std::size_t kMaxUrlBytes = 8192;

bool is_letter_or_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

std::string in_small_letters(std::string_view text) {
  std::string small(text);
  for (char& c : small)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return small;
}

[[noreturn]] void refuse_url(std::string_view whose, std::string_view text, const char* why) {
  throw Error(ErrorKind::data, fmt::format("{}: '{}' {}", whose, shown(text, 200), why));
}

bool is_host(std::string_view host, bool brackets) {
  return !host.empty() && host.size() <= 253 && std::ranges::all_of(host, [&](char c) {
    return is_letter_or_digit(c) || c == '.' || (brackets ? c == ':' : c == '-' || c == '_');
  });
}

const char* variable(const char* small, const char* capitals) {
  for (const char* name : {small, capitals}) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') return value;
  }
  return nullptr;
}

/// Whether no_proxy names the host, one of its domains, or "*".
bool goes_directly(const Url& url) {
  const char* value = variable("no_proxy", "NO_PROXY");
  if (value == nullptr) return false;
  std::string_view rest = value;
  while (!rest.empty()) {
    std::string entry = in_small_letters(rest.substr(0, rest.find(',')));
    rest.remove_prefix(std::min(
        rest.size(), rest.find(',') == std::string_view::npos ? rest.size() : rest.find(',') + 1));
    std::erase(entry, ' ');
    if (entry.starts_with("*.")) entry.erase(0, 1);
    if (const auto colon = entry.rfind(':');
        colon != std::string::npos && entry.find(':') == colon) {
      if (entry.substr(colon + 1) != std::to_string(url.port)) continue;
      entry.resize(colon);
    }
    if (entry.empty()) continue;
    const std::string domain = entry.front() == '.' ? entry : "." + entry;
    if (entry == "*" || url.host == domain.substr(1) || url.host.ends_with(domain)) return true;
  }
  return false;
}

std::string base64(const std::string& text) {
  std::string out(4 * ((text.size() + 2) / 3) + 1, '\0');
  const int size = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                   reinterpret_cast<const unsigned char*>(text.data()),
                                   static_cast<int>(text.size()));
  out.resize(static_cast<std::size_t>(size));
  return out;
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    int value = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 3, value, 16).ptr ==
            text.data() + i + 3) {
      out.push_back(static_cast<char>(value));
      i += 2;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

}  // namespace

std::string Url::host_header() const {
  const std::string name = host.find(':') == std::string::npos ? host : "[" + host + "]";
  return port == (tls ? 443 : 80) ? name : fmt::format("{}:{}", name, port);
}

std::string Url::origin() const { return (tls ? "https://" : "http://") + host_header(); }

Url parse_url(std::string_view text, std::string_view whose) {
  if (text.size() > kMaxUrlBytes) refuse_url(whose, text.substr(0, 100), "is too long an address");
  if (std::ranges::any_of(text, [](unsigned char c) { return c < ' ' || c == 0x7f; }))
    refuse_url(whose, text, "holds control characters");
  Url url;
  std::string_view rest = text;
  const std::string scheme = in_small_letters(text.substr(0, text.find(':')));
  if (scheme != "http" && scheme != "https") refuse_url(whose, text, "is no address of https");
  url.tls = scheme == "https";
  rest.remove_prefix(scheme.size());
  if (!rest.starts_with("://")) refuse_url(whose, text, "is no address of https");
  rest.remove_prefix(3);
  std::string_view authority = rest.substr(0, rest.find_first_of("/?#"));
  rest.remove_prefix(authority.size());
  if (authority.find('@') != std::string_view::npos)
    throw Error(ErrorKind::data,
                fmt::format("{}: an address with a user's name is not taken", whose));
  const bool brackets = authority.starts_with('[');
  const auto end = brackets ? authority.find(']') : authority.find(':');
  if (brackets && end == std::string_view::npos) refuse_url(whose, text, "has no host");
  url.host = in_small_letters(brackets ? authority.substr(1, end - 1) : authority.substr(0, end));
  if (!is_host(url.host, brackets)) refuse_url(whose, text, "has no host");
  url.port = url.tls ? 443 : 80;
  authority.remove_prefix(std::min(authority.size(), brackets ? end + 1 : end));
  if (!authority.empty()) {
    const auto* last = authority.data() + authority.size();
    const auto read = std::from_chars(authority.data() + 1, last, url.port);
    if (authority.front() != ':' || read.ec != std::errc{} || read.ptr != last || url.port < 1 ||
        url.port > 65535)
      refuse_url(whose, text, "has a port that is none");
  }
  rest = rest.substr(0, rest.find('#'));
  if (!rest.starts_with('/')) url.target = "/";
  for (const char c : rest) {
    if (c == ' ' || static_cast<unsigned char>(c) >= 0x80)
      url.target += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    else
      url.target += c;
  }
  return url;
}

Url resolve_location(const Url& from, std::string_view location) {
  const std::string whose = "a redirect of " + from.host;
  if (location.starts_with("//"))
    return parse_url(fmt::format("{}:{}", from.tls ? "https" : "http", location), whose);
  if (location.starts_with('/'))
    return parse_url(fmt::format("{}{}", from.origin(), location), whose);
  if (const auto colon = location.find_first_of(":/?#");
      colon != std::string_view::npos && location[colon] == ':')
    return parse_url(location, whose);
  std::string_view path = std::string_view(from.target).substr(0, from.target.find('?'));
  path = path.substr(0, path.rfind('/') + 1);
  return parse_url(fmt::format("{}{}{}", from.origin(), path, location), whose);
}

std::string percent_encoded(std::string_view text, bool path) {
  std::string out;
  for (const char c : text) {
    if (is_letter_or_digit(c) || c == '-' || c == '.' || c == '_' || c == '~' || (path && c == '/'))
      out += c;
    else
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

std::optional<Proxy> proxy_for(const Url& url) {
  const char* name = url.tls ? "https_proxy" : "http_proxy";
  const char* value =
      url.tls ? variable("https_proxy", "HTTPS_PROXY") : variable("http_proxy", "HTTP_PROXY");
  if (value == nullptr) {
    name = "all_proxy";
    value = variable("all_proxy", "ALL_PROXY");
  }
  if (value == nullptr || goes_directly(url)) return std::nullopt;
  std::string text = value;
  if (text.find("://") == std::string::npos) text.insert(0, "http://");
  Proxy proxy;
  const auto start = text.find("://") + 3;
  const auto authority_end = std::min(text.size(), text.find_first_of("/?#", start));
  if (const auto at = text.rfind('@', authority_end);
      at != std::string::npos && at >= start && at < authority_end) {
    proxy.authorization = "Basic " + base64(percent_decoded(text.substr(start, at - start)));
    text.erase(start, at + 1 - start);
  }
  if (!text.starts_with("http://"))
    throw Error(
        ErrorKind::usage,
        fmt::format("{} of the environment names a proxy that is not spoken to by http", name),
        "write http://HOST:PORT, or take the variable away");
  proxy.url = parse_url(text, name);
  return proxy;
}

}  // namespace dstrain::hub
