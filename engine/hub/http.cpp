#include "engine/hub/http.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <thread>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/hub/connection.h"

namespace dstrain::hub {
namespace {

constexpr int kMaxRedirects = 5;

std::int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

bool is_passing(int status) {
  return status == 429 || status == 500 || (status >= 502 && status <= 504);
}

std::string request_text(const Url& url, const std::optional<Proxy>& proxy,
                         const std::string& token, std::int64_t from) {
  const bool whole_address = proxy && !url.tls;
  std::string text = fmt::format(
      "GET {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: dstrain\r\nAccept: */*\r\n"
      "Accept-Encoding: identity\r\nConnection: close\r\n",
      whole_address ? url.text() : url.target, url.host_header());
  if (whole_address && !proxy->authorization.empty())
    text += fmt::format("Proxy-Authorization: {}\r\n", proxy->authorization);
  if (!token.empty()) text += fmt::format("Authorization: Bearer {}\r\n", token);
  if (from > 0) text += fmt::format("Range: bytes={}-\r\n", from);
  return text + "\r\n";
}

/// One request, one answer.
std::unique_ptr<HttpResponse> ask_once(const Url& url, const std::string& token,
                                       std::int64_t from) {
  const std::optional<Proxy> proxy = proxy_for(url);
  auto connection = std::make_unique<Connection>(url, proxy);
  connection->write(request_text(url, proxy, token, from));
  std::string text;
  std::array<char, 4096> buffer;
  const std::int64_t deadline = now_ns() + std::chrono::nanoseconds(3 * patience()).count();
  while (true) {
    // A head as servers send it, or with line ends of one byte.
    const auto crlf = text.find("\r\n\r\n");
    const auto lf = text.find("\n\n");
    if (const auto end = std::min(crlf, lf); end != std::string::npos) {
      const std::size_t size = end + (crlf < lf ? 4 : 2);
      HttpHead head = parse_http_head(std::string_view(text).substr(0, size), url.host);
      text.erase(0, size);
      if (head.status >= 200)
        return std::make_unique<HttpResponse>(url, std::move(head), std::move(connection),
                                              std::move(text));
      continue;  // 100 to 199 announce the answer
    }
    if (text.size() > kMaxHeadBytes)
      throw Error(ErrorKind::data, fmt::format("{} sends headers without end", url.host));
    if (now_ns() > deadline)
      throw Error(ErrorKind::again, fmt::format("{} takes too long to answer", url.host));
    const std::size_t got = connection->read(buffer);
    if (got == 0)
      throw Error(ErrorKind::again, fmt::format("{} ended the connection unasked", url.host));
    text.append(buffer.data(), got);
  }
}

std::unique_ptr<HttpResponse> follow(const HttpRequest& request) {
  Url url = request.url;
  for (int redirects = 0;; ++redirects) {
    const bool own = url.origin() == request.url.origin();
    auto response = ask_once(url, own ? request.token : "", request.from);
    if (!is_redirect(response->status())) return response;
    const auto location = response->head().find("location");
    if (!location)
      throw Error(ErrorKind::data, fmt::format("{} answers {} without saying where to", url.host,
                                               response->status()));
    if (redirects >= kMaxRedirects)
      throw Error(ErrorKind::data, fmt::format("{} sends from address to address, more than {} "
                                               "times",
                                               request.url.host, kMaxRedirects));
    Url next = resolve_location(url, *location);
    if (url.tls && !next.tls)
      throw Error(ErrorKind::data, fmt::format("{} sends to {}, which is not encrypted", url.host,
                                               shown(next.origin(), 200)));
    url = std::move(next);
  }
}

}  // namespace

void pause_before_retry(int attempt, const std::optional<std::string>& retry_after) {
  constexpr int kMaxSeconds = 60;
  int seconds = 1 << std::min(attempt, 5);
  if (retry_after) {
    int asked = 0;
    const char* end = retry_after->data() + retry_after->size();
    if (std::from_chars(retry_after->data(), end, asked).ptr == end && asked >= 0)
      seconds = std::min(asked, kMaxSeconds);
  }
  std::this_thread::sleep_for(std::chrono::seconds(seconds));
}

std::unique_ptr<HttpResponse> http_get(const HttpRequest& request) {
  for (int attempt = 0;; ++attempt) {
    const bool last = attempt + 1 >= request.tries;
    std::optional<std::string> retry_after;
    try {
      auto response = follow(request);
      if (!is_passing(response->status())) return response;
      if (last)
        throw Error(ErrorKind::hosts,
                    fmt::format("{} answers {}, {} times", response->url().host, response->status(),
                                request.tries),
                    response->status() == 429
                        ? "too many requests were made from here; HF_TOKEN allows more"
                        : "try again later");
      if (const auto header = response->head().find("retry-after"))
        retry_after = std::string(*header);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::again) throw;
      if (last) throw Error(ErrorKind::hosts, error.what(), error.hint());
    }
    pause_before_retry(attempt, retry_after);
  }
}

HttpText http_text(const HttpRequest& request, std::size_t limit) {
  for (int attempt = 0;; ++attempt) {
    try {
      const auto response = http_get(request);
      HttpText text{.head = response->head(), .body = {}};
      std::array<char, 16384> buffer;
      while (const std::size_t got = response->read(buffer)) {
        if (text.body.size() + got > limit)
          throw Error(ErrorKind::data,
                      fmt::format("{} answers with more than {} bytes", request.url.host, limit));
        text.body.append(buffer.data(), got);
      }
      return text;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::again || attempt + 1 >= request.tries) throw;
    }
    pause_before_retry(attempt, std::nullopt);
  }
}

HttpResponse::HttpResponse(Url url, HttpHead head, std::unique_ptr<Connection> connection,
                           std::string ahead)
    : url_(std::move(url)),
      head_(std::move(head)),
      connection_(std::move(connection)),
      ahead_(std::move(ahead)),
      window_start_ns_(now_ns()) {
  if (const auto coding = head_.find("content-encoding"); coding && *coding != "identity")
    throw Error(ErrorKind::data, fmt::format("{} sends what nobody asked for, Content-Encoding: {}",
                                             url_.host, shown(*coding)));
  chunked_ = head_.is_chunked();
  left_ = chunked_ ? 0 : head_.content_length().value_or(-1);
  done_ = head_.status == 204 || head_.status == 304;
}

HttpResponse::~HttpResponse() = default;

std::size_t HttpResponse::read_raw(std::span<char> buffer) {
  if (ahead_.empty()) return connection_->read(buffer);
  const std::size_t size = std::min(buffer.size(), ahead_.size());
  std::copy_n(ahead_.data(), size, buffer.data());
  ahead_.erase(0, size);
  return size;
}

std::string HttpResponse::read_line() {
  constexpr std::size_t kMaxLine = 4096;
  std::array<char, 4096> buffer;
  while (true) {
    if (const auto end = ahead_.find('\n'); end != std::string::npos) {
      std::string line = ahead_.substr(0, end);
      ahead_.erase(0, end + 1);
      if (line.ends_with('\r')) line.pop_back();
      return line;
    }
    if (ahead_.size() > kMaxLine)
      throw Error(ErrorKind::data, fmt::format("{} sends chunks that are none", url_.host));
    const std::size_t got = connection_->read(buffer);
    if (got == 0) throw Error(ErrorKind::again, fmt::format("{} cut its answer", url_.host));
    ahead_.append(buffer.data(), got);
  }
}

/// Reads the line before a chunk. False behind the last one.
bool HttpResponse::next_chunk() {
  if (std::exchange(in_chunks_, true) && !read_line().empty())
    throw Error(ErrorKind::data, fmt::format("{} sends chunks that are none", url_.host));
  const auto size = parse_chunk_size(read_line());
  if (!size) throw Error(ErrorKind::data, fmt::format("{} sends chunks that are none", url_.host));
  left_ = *size;
  return left_ > 0;
}

/// Ends a transfer that a server keeps open with next to nothing.
void HttpResponse::watch_rate(std::size_t bytes) {
  constexpr std::int64_t kMinBytesPerSecond = 100;
  window_bytes_ += static_cast<std::int64_t>(bytes);
  const std::int64_t window = std::chrono::nanoseconds(6 * patience()).count();
  const std::int64_t now = now_ns();
  if (now - window_start_ns_ < window) return;
  if (window_bytes_ < kMinBytesPerSecond * (window / 1'000'000'000))
    throw Error(ErrorKind::again, fmt::format("{} sent {} bytes in {} s", url_.host, window_bytes_,
                                              window / 1'000'000'000));
  window_start_ns_ = now;
  window_bytes_ = 0;
}

std::size_t HttpResponse::read(std::span<char> buffer) {
  if (done_) return 0;
  if (left_ == 0) {
    done_ = !chunked_ || !next_chunk();
    if (done_) return 0;
  }
  if (left_ > 0 && static_cast<std::uint64_t>(left_) < buffer.size())
    buffer = buffer.first(static_cast<std::size_t>(left_));
  const std::size_t got = read_raw(buffer);
  if (got == 0 && left_ > 0)
    throw Error(ErrorKind::again, fmt::format("{} cut its answer", url_.host));
  if (got == 0) done_ = true;
  if (left_ > 0) left_ -= static_cast<std::int64_t>(got);
  watch_rate(got);
  return got;
}

}  // namespace dstrain::hub
