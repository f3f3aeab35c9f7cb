#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dstrain::hub {

/// An address of http or https, without a user's name.
struct Url {
  bool tls = true;
  std::string host;  ///< in lower case; IPv6 without brackets
  int port = 443;
  std::string target;  ///< path and query, from "/" on

  [[nodiscard]] std::string origin() const;  ///< "https://huggingface.co", with a port of its own
  [[nodiscard]] std::string text() const { return origin() + target; }
  [[nodiscard]] std::string host_header() const;
};

/// Error{data} for anything else, with `whose` at its head. At most 8 KiB; bytes that no address
/// has are written as %XX, control characters are refused.
[[nodiscard]] Url parse_url(std::string_view text, std::string_view whose);
/// Where `location` of an answer from `from` leads.
[[nodiscard]] Url resolve_location(const Url& from, std::string_view location);

/// `text` with all but letters, digits and "-._~" as %XX; slashes stay with `path`.
[[nodiscard]] std::string percent_encoded(std::string_view text, bool path);

/// What HTTP goes through instead of to its host.
struct Proxy {
  Url url;
  std::string authorization;  ///< "Basic ..."; empty: none
};
/// What https_proxy, http_proxy, all_proxy and no_proxy of the environment say, in small letters or
/// in capitals. Error{usage} names a variable with an address that is none of http.
[[nodiscard]] std::optional<Proxy> proxy_for(const Url& url);

}  // namespace dstrain::hub
