#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/hub/http_head.h"
#include "engine/hub/url.h"

namespace dstrain::hub {

class Connection;

struct HttpRequest {
  Url url;
  std::string token = {};  ///< goes to the origin of `url` alone, whatever redirects say
  std::int64_t from = 0;   ///< first byte that is wanted
  int tries = 5;
};

/// An answer whose body is read as it comes.
class HttpResponse {
 public:
  HttpResponse(Url url, HttpHead head, std::unique_ptr<Connection> connection, std::string ahead);
  ~HttpResponse();
  HttpResponse(const HttpResponse&) = delete;
  HttpResponse& operator=(const HttpResponse&) = delete;

  [[nodiscard]] int status() const { return head_.status; }
  [[nodiscard]] const HttpHead& head() const { return head_; }
  [[nodiscard]] const Url& url() const { return url_; }  ///< behind all redirects

  /// At least one byte of the body; 0 at its end. Error{again} when it was cut, when the server is
  /// silent or sends next to nothing.
  [[nodiscard]] std::size_t read(std::span<char> buffer);

 private:
  [[nodiscard]] std::size_t read_raw(std::span<char> buffer);
  [[nodiscard]] std::string read_line();
  [[nodiscard]] bool next_chunk();
  void watch_rate(std::size_t bytes);

  Url url_;
  HttpHead head_;
  std::unique_ptr<Connection> connection_;
  std::string ahead_;  ///< read and not given yet
  bool chunked_ = false;
  std::int64_t left_ = -1;  ///< of the body, or of its chunk; -1: to the connection's end
  bool done_ = false;
  bool in_chunks_ = false;  ///< a chunk has been read
  std::int64_t window_bytes_ = 0;
  std::int64_t window_start_ns_ = 0;
};

/// Sends GET and follows redirects: at most 5, from https to https alone. Waits and tries again
/// where nobody answers, and for 429, 500 and 502 to 504; Error{hosts} after request.tries times.
/// Other statuses are the caller's.
[[nodiscard]] std::unique_ptr<HttpResponse> http_get(const HttpRequest& request);

/// A whole body of at most `limit` bytes, and its head.
struct HttpText {
  HttpHead head;
  std::string body;
};
[[nodiscard]] HttpText http_text(const HttpRequest& request, std::size_t limit);

/// Waits between tries: 1, 2, 4 s and so on, or as long as the server's Retry-After says, up to a
/// minute.
void pause_before_retry(int attempt, const std::optional<std::string>& retry_after);

}  // namespace dstrain::hub
