#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>

#include "engine/base/error.h"
#include "engine/hub/http_head.h"
#include "engine/hub/url.h"

namespace dstrain::hub {
namespace {

TEST_CASE("addresses are read and written alike", "[hub]") {
  const Url url = parse_url("https://Huggingface.co/a/b?x=1#y", "test");
  CHECK(url.tls);
  CHECK(url.host == "huggingface.co");
  CHECK(url.port == 443);
  CHECK(url.text() == "https://huggingface.co/a/b?x=1");
  CHECK(parse_url("http://[::1]:80", "test").text() == "http://[::1]/");
  CHECK(parse_url("http://h:81/a b\xc3", "test").text() == "http://h:81/a%20b%C3");
}

TEST_CASE("what is no address is refused", "[hub]") {
  for (const std::string& text :
       {std::string(), std::string("ftp://a"), std::string("https:a"), std::string("https://"),
        std::string("https://user:password@host/"), std::string("https://a:0"),
        std::string("https://a:65536"), std::string("https://a:1x"), std::string("https://a b"),
        std::string("https://a\r\nX: y"), std::string("https://[::1"),
        std::string("https://a/") + std::string(9000, 'a')})
    CHECK_THROWS_AS(parse_url(text, "test"), Error);
  try {
    (void)parse_url("https://user:password@host/", "test");
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find("password") == std::string::npos);
  }
}

TEST_CASE("a redirect may be whole, of a host, of a path", "[hub]") {
  const Url from = parse_url("https://a:8443/x/y?z", "test");
  CHECK(resolve_location(from, "https://b/c").text() == "https://b/c");
  CHECK(resolve_location(from, "//b/c").text() == "https://b/c");
  CHECK(resolve_location(from, "/c?d=e:f").text() == "https://a:8443/c?d=e:f");
  CHECK(resolve_location(from, "c").text() == "https://a:8443/x/c");
  CHECK_THROWS_AS(resolve_location(from, "file:///etc/passwd"), Error);
  CHECK_THROWS_AS(resolve_location(from, "javascript:x"), Error);
}

TEST_CASE("a proxy holds for its scheme, but for the hosts of no_proxy", "[hub]") {
  for (const char* name :
       {"HTTPS_PROXY", "HTTP_PROXY", "http_proxy", "all_proxy", "ALL_PROXY", "NO_PROXY"})
    ::unsetenv(name);
  ::setenv("https_proxy", "http://user:p%40ss@proxy.example:3128/", 1);
  ::setenv("no_proxy", "localhost, .corp.example,*.other.example, plain.example:444", 1);
  const auto proxy = proxy_for(parse_url("https://huggingface.co", "test"));
  REQUIRE(proxy);
  CHECK(proxy->url.text() == "http://proxy.example:3128/");
  CHECK(proxy->authorization == "Basic dXNlcjpwQHNz");
  CHECK_FALSE(proxy_for(parse_url("http://huggingface.co", "test")));
  for (const char* direct : {"https://localhost", "https://a.corp.example", "https://corp.example",
                             "https://b.other.example", "https://plain.example:444"})
    CHECK_FALSE(proxy_for(parse_url(direct, "test")));
  for (const char* through : {"https://notcorp.example", "https://plain.example"})
    CHECK(proxy_for(parse_url(through, "test")));
  ::setenv("https_proxy", "socks5://proxy:1", 1);
  CHECK_THROWS_AS(proxy_for(parse_url("https://huggingface.co", "test")), Error);
  ::unsetenv("https_proxy");
  ::unsetenv("no_proxy");
}

TEST_CASE("heads of answers are read", "[hub]") {
  const HttpHead head = parse_http_head(
      "HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\nX-A:  b c \r\nCONTENT-RANGE: bytes "
      "2-6/9\r\n\r\n",
      "host");
  CHECK(head.status == 206);
  CHECK(head.content_length() == 5);
  CHECK(head.find("x-a") == "b c");
  CHECK_FALSE(head.is_chunked());
  const auto range = parse_content_range(*head.find("content-range"));
  REQUIRE(range);
  CHECK(range->first == 2);
  CHECK(range->size == 9);
}

TEST_CASE("heads that no server sends are refused", "[hub]") {
  for (const char* text :
       {"", "\r\n", "HTTP/1.1\r\n\r\n", "HTTP/1.1 20 OK\r\n\r\n", "HTTP/1.1 2000\r\n\r\n",
        "HTTP/2 200 OK\r\n\r\n", "SSH-2.0-OpenSSH\r\n\r\n", "HTTP/1.1 200 OK\r\nA\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: b\r\n c: d\r\n\r\n", "HTTP/1.1 200 OK\r\nA b: c\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: \x1b[2J\r\n\r\n", "HTTP/1.1 200 OK\r\nA: b\r\n"})
    CHECK_THROWS_AS(parse_http_head(text, "host"), Error);
  std::string many = "HTTP/1.1 200 OK\r\n";
  for (int i = 0; i < 300; ++i) many += "A: b\r\n";
  CHECK_THROWS_AS(parse_http_head(many + "\r\n", "host"), Error);
  for (const char* length : {"-1", "+1", "1 1", "0x5", "99999999999999999999", ""}) {
    const HttpHead head = parse_http_head(
        std::string("HTTP/1.1 200 OK\r\nContent-Length: ") + length + "\r\n\r\n", "host");
    CHECK_THROWS_AS(head.content_length(), Error);
  }
  CHECK_THROWS_AS(
      parse_http_head("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "host")
          .content_length(),
      Error);
  CHECK_THROWS_AS(
      parse_http_head("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "host")
          .is_chunked(),
      Error);
}

TEST_CASE("ranges, chunks and links are read whole or not at all", "[hub]") {
  for (const char* text : {"", "bytes", "bytes 1-0/5", "bytes 0-5/5", "bytes -1/5", "bytes a-b/c",
                           "bytes */5", "items 0-1/2"})
    CHECK_FALSE(parse_content_range(text));
  CHECK(parse_content_range("bytes 0-4/*")->size == -1);
  CHECK(parse_chunk_size("1a;x=y") == 26);
  for (const char* line : {"", "-1", "g", "1 2", "ffffffffffffffffff"})
    CHECK_FALSE(parse_chunk_size(line));
  CHECK(next_link(R"(<https://h/a?b>; rel="prev", </c>; rel="next")") == "/c");
  CHECK_FALSE(next_link("<https://h>; rel=\"last\""));
  CHECK_FALSE(next_link("<"));
}

}  // namespace
}  // namespace dstrain::hub
