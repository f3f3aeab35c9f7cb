#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "engine/base/unique_fd.h"
#include "engine/hub/url.h"

struct ssl_st;

namespace dstrain::hub {

/// How long a server may be silent, and no connection may be made: HF_HUB_DOWNLOAD_TIMEOUT seconds
/// of the environment, else 10.
[[nodiscard]] std::chrono::milliseconds patience();

/// HTTP is spoken in this folder: Debian has cpp-httplib as a shared library alone, and its libcurl
/// brings eleven libraries more.
///
/// Bytes to a server and back, through TLS where the address wants it and through a proxy where the
/// environment says so. The server's certificate must be good and name its host.
class Connection {
 public:
  /// Error{again} where nobody answers, Error{hosts} where the name stands for no address or the
  /// certificate is refused.
  Connection(const Url& url, const std::optional<Proxy>& proxy);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Error{again} when the server takes or sends nothing for patience(), or is gone.
  void write(std::string_view bytes);
  /// At least one byte; 0 at the end.
  [[nodiscard]] std::size_t read(std::span<char> buffer);

 private:
  void ask_proxy(const Url& url, const Proxy& proxy);
  void start_tls();
  [[noreturn]] void fail_tls(const char* action);
  void await(short events);
  /// What SSL_get_error() asks for, if it asks for more bytes or room.
  [[nodiscard]] bool awaits(int result);

  std::string host_;
  UniqueFd fd_;
  std::unique_ptr<ssl_st, void (*)(ssl_st*)> tls_;
};

/// File with the certificates of authorities: SSL_CERT_FILE, else where distributions have it.
/// Error{hosts} names them all where none is there.
[[nodiscard]] std::string certificate_file();

}  // namespace dstrain::hub
