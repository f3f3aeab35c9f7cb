#include "engine/hub/connection.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/base/printable.h"
#include "engine/base/socket.h"
#include "engine/hub/http_head.h"

namespace dstrain::hub {
namespace {

using std::chrono::milliseconds;

constexpr std::array kCertificateFiles = {
    "/etc/ssl/certs/ca-certificates.crt",                 // Debian, Ubuntu, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",                   // Fedora, RHEL
    "/etc/ssl/ca-bundle.pem",                             // SUSE
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  // RHEL, another place
    "/etc/pki/tls/cacert.pem",                            // OpenELEC
    "/etc/ssl/cert.pem",                                  // Alpine, OpenBSD
};

/// OpenSSL's own BIO of a socket writes by write(), which ends the program by SIGPIPE.
int send_bytes(BIO* bio, const char* bytes, int size) {
  const int fd = static_cast<int>(reinterpret_cast<std::intptr_t>(BIO_get_data(bio)));
  BIO_clear_retry_flags(bio);
  const auto sent = ::send(fd, bytes, static_cast<std::size_t>(size), MSG_NOSIGNAL);
  if (sent < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int receive_bytes(BIO* bio, char* bytes, int size) {
  const int fd = static_cast<int>(reinterpret_cast<std::intptr_t>(BIO_get_data(bio)));
  BIO_clear_retry_flags(bio);
  const auto got = ::recv(fd, bytes, static_cast<std::size_t>(size), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
  if (got == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
  return static_cast<int>(got);
}

long control(BIO* bio, int command, long /*number*/, void* /*pointer*/) {
  if (command == BIO_CTRL_EOF) return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0 ? 1 : 0;
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

BIO* socket_bio(int fd) {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "dstrain socket");
    BIO_meth_set_write(made, send_bytes);
    BIO_meth_set_read(made, receive_bytes);
    BIO_meth_set_ctrl(made, control);
    return made;
  }();
  BIO* bio = BIO_new(method);
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)));
  BIO_set_init(bio, 1);
  return bio;
}

std::string tls_reason() {
  std::array<char, 256> text{};
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  if (code == 0) return "the connection ended";
  ERR_error_string_n(code, text.data(), text.size());
  return text.data();
}

/// One for all connections.
SSL_CTX* tls_context() {
  static SSL_CTX* const context = [] {
    SSL_CTX* made = SSL_CTX_new(TLS_client_method());
    if (made == nullptr) throw Error(ErrorKind::internal, "no TLS: " + tls_reason());
    SSL_CTX_set_min_proto_version(made, TLS1_2_VERSION);
    SSL_CTX_set_verify(made, SSL_VERIFY_PEER, nullptr);
    const std::string file = certificate_file();
    if (SSL_CTX_load_verify_file(made, file.c_str()) != 1) {
      SSL_CTX_free(made);
      throw Error(ErrorKind::hosts,
                  fmt::format("{} holds no certificates: {}", shown_path(file), tls_reason()),
                  "SSL_CERT_FILE names another file of certificates (PEM)");
    }
    return made;
  }();
  return context;
}

}  // namespace

milliseconds patience() {
  constexpr int kMaxSeconds = 3600;
  const char* given = std::getenv("HF_HUB_DOWNLOAD_TIMEOUT");
  const int seconds = given == nullptr ? 0 : std::atoi(given);
  return std::chrono::seconds(seconds < 1 || seconds > kMaxSeconds ? 10 : seconds);
}

std::string certificate_file() {
  if (const char* given = std::getenv("SSL_CERT_FILE"); given != nullptr && *given != '\0')
    return given;
  for (const char* file : kCertificateFiles) {
    if (path_kind(file) == PathKind::file) return file;
  }
  throw Error(ErrorKind::hosts,
              fmt::format("no certificates on this machine: none of {} is there",
                          fmt::join(kCertificateFiles, ", ")),
              "install the package ca-certificates, or name a file of certificates (PEM) in "
              "SSL_CERT_FILE");
}

Connection::Connection(const Url& url, const std::optional<Proxy>& proxy)
    : host_(url.host), tls_(nullptr, SSL_free) {
  const Url& first = proxy ? proxy->url : url;
  try {
    fd_ = connect_to(first.host, first.port, std::chrono::steady_clock::now() + patience());
  } catch (const Error& error) {
    throw Error(error.kind(),
                fmt::format("cannot reach {}{}: {}", proxy ? "the proxy " : "", first.host_header(),
                            error.what()),
                "HTTPS_PROXY names a proxy, HF_ENDPOINT a mirror; --offline or HF_HUB_OFFLINE=1 "
                "takes what the cache has");
  }
  if (proxy && url.tls) ask_proxy(url, *proxy);
  if (url.tls) start_tls();
}

void Connection::ask_proxy(const Url& url, const Proxy& proxy) {
  const std::string host =
      url.host.find(':') == std::string::npos ? url.host : "[" + url.host + "]";
  const std::string place = fmt::format("{}:{}", host, url.port);
  std::string request = fmt::format("CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n", place);
  if (!proxy.authorization.empty())
    request += fmt::format("Proxy-Authorization: {}\r\n", proxy.authorization);
  write(request + "\r\n");
  // Byte by byte: what follows the empty line is TLS.
  std::string text;
  for (char byte = 0; !text.ends_with("\r\n\r\n");) {
    if (text.size() > kMaxHeadBytes || read({&byte, 1}) == 0)
      throw Error(ErrorKind::again, fmt::format("the proxy {} gives no answer", proxy.url.host));
    text += byte;
  }
  const int status = parse_http_head(text, proxy.url.host).status;
  if (status != 200)
    throw Error(ErrorKind::hosts,
                fmt::format("the proxy {} answers {} for {}", proxy.url.host, status, place),
                status == 407 ? "write its user and password into https_proxy" : "");
}

void Connection::start_tls() {
  ERR_clear_error();
  tls_.reset(SSL_new(tls_context()));
  if (!tls_) throw Error(ErrorKind::internal, "no TLS: " + tls_reason());
  BIO* bio = socket_bio(fd_.get());
  SSL_set_bio(tls_.get(), bio, bio);
  // The certificate must name the host, or its address.
  X509_VERIFY_PARAM* wanted = SSL_get0_param(tls_.get());
  const bool address = host_.find(':') != std::string::npos ||
                       host_.find_first_not_of("0123456789.") == std::string::npos;
  const bool set = address ? X509_VERIFY_PARAM_set1_ip_asc(wanted, host_.c_str()) == 1
                           : X509_VERIFY_PARAM_set1_host(wanted, host_.c_str(), 0) == 1 &&
                                 SSL_set_tlsext_host_name(tls_.get(), host_.c_str()) == 1;
  if (!set) throw Error(ErrorKind::internal, "no TLS: " + tls_reason());
  for (int result = 0; (result = SSL_connect(tls_.get())) != 1;) {
    if (awaits(result)) continue;
    const long verified = SSL_get_verify_result(tls_.get());
    if (verified != X509_V_OK)
      throw Error(ErrorKind::hosts,
                  fmt::format("the certificate of {} is refused: {}", host_,
                              X509_verify_cert_error_string(verified)),
                  fmt::format("authorities are taken from {}; a wrong clock refuses good "
                              "certificates, too; SSL_CERT_FILE names another file",
                              certificate_file()));
    fail_tls("speak TLS with");
  }
}

void Connection::fail_tls(const char* action) {
  throw Error(ErrorKind::again, fmt::format("cannot {} {}: {}", action, host_, tls_reason()));
}

bool Connection::awaits(int result) {
  const int wanted = SSL_get_error(tls_.get(), result);
  if (wanted != SSL_ERROR_WANT_READ && wanted != SSL_ERROR_WANT_WRITE) return false;
  await(wanted == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT);
  return true;
}

void Connection::await(short events) {
  pollfd entry{.fd = fd_.get(), .events = events, .revents = 0};
  const milliseconds time = patience();
  int ready = 0;
  do {
    ready = ::poll(&entry, 1, static_cast<int>(time.count()));
  } while (ready < 0 && errno == EINTR);
  if (ready > 0) return;
  throw Error(ErrorKind::again,
              fmt::format("{} has been silent for {} s", host_, time.count() / 1000),
              "HF_HUB_DOWNLOAD_TIMEOUT names another number of seconds");
}

void Connection::write(std::string_view bytes) {
  while (!bytes.empty()) {
    std::ptrdiff_t done = 0;
    if (tls_) {
      done = SSL_write(tls_.get(), bytes.data(), static_cast<int>(bytes.size()));
      if (done <= 0 && awaits(static_cast<int>(done))) continue;
      if (done <= 0) fail_tls("write to");
    } else {
      done = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (done < 0 && errno == EINTR) continue;
      if (done < 0 && errno == EAGAIN) {
        await(POLLOUT);
        continue;
      }
      if (done < 0)
        throw Error(ErrorKind::again,
                    fmt::format("cannot write to {}: {}", host_, std::strerror(errno)));
    }
    bytes.remove_prefix(static_cast<std::size_t>(done));
  }
}

std::size_t Connection::read(std::span<char> buffer) {
  while (true) {
    if (tls_) {
      const int got = SSL_read(tls_.get(), buffer.data(), static_cast<int>(buffer.size()));
      if (got > 0) return static_cast<std::size_t>(got);
      if (SSL_get_error(tls_.get(), got) == SSL_ERROR_ZERO_RETURN) return 0;
      if (!awaits(got)) fail_tls("read from");
    } else {
      const auto got = ::recv(fd_.get(), buffer.data(), buffer.size(), 0);
      if (got >= 0) return static_cast<std::size_t>(got);
      if (errno == EINTR) continue;
      if (errno != EAGAIN)
        throw Error(ErrorKind::again,
                    fmt::format("cannot read from {}: {}", host_, std::strerror(errno)));
      await(POLLIN);
    }
  }
}

}  // namespace dstrain::hub
