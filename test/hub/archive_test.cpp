#include "engine/hub/archive.h"

#include <fmt/format.h>
#include <zlib.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <string>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "test/support/temp_dir.h"

namespace dstrain::hub {
namespace {

namespace fs = std::filesystem;
constexpr std::int64_t kMax = 1 << 20;

std::string header(const std::string& path, char type, std::size_t size,
                   const std::string& link = "") {
  std::string block(kTarBlock, '\0');
  const auto put = [&](std::size_t at, const std::string& text) {
    block.replace(at, text.size(), text);
  };
  put(0, path);
  put(100, "0004755");  // setuid, which nothing keeps
  put(124, fmt::format("{:011o}", size));
  block[156] = type;
  put(157, link);
  put(257, "ustar");
  put(263, "00");
  put(148, "        ");
  unsigned sum = 0;
  for (const char c : block) sum += static_cast<unsigned char>(c);
  put(148, fmt::format("{:06o}", sum));
  block[154] = '\0';
  return block;
}

std::string file(const std::string& path, const std::string& content) {
  std::string text = header(path, '0', content.size()) + content;
  text.resize((text.size() + kTarBlock - 1) / kTarBlock * kTarBlock);
  return text;
}

const std::string kEnd(2 * kTarBlock, '\0');

std::string gzip(const std::string& text) {
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

/// Empty, or what unpacking says.
std::string unpacked(const test::TempDir& folder, const std::string& bytes) {
  write_file_atomically(folder / "a.tar.gz", bytes);
  fs::create_directories(folder / "in/to");
  try {
    unpack(folder / "a.tar.gz", folder / "in/to", kMax);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST_CASE("an archive of files and folders is unpacked", "[hub]") {
  const test::TempDir folder;
  const std::string large(100'001, 'x');
  CHECK(unpacked(folder, gzip(header("./", '5', 0) + header("d/", '5', 0) + file("d/a", "hello") +
                              file("d/e/b", large) + file("./c", "") + kEnd))
            .empty());
  CHECK(read_file(folder / "in/to/d/a") == "hello");
  CHECK(read_file(folder / "in/to/d/e/b") == large);
  CHECK(read_file(folder / "in/to/c").empty());
  CHECK((fs::status(folder / "in/to/d/a").permissions() & fs::perms::set_uid) == fs::perms::none);
}

TEST_CASE("an archive with anything else, or leading elsewhere, is refused", "[hub]") {
  const test::TempDir folder;
  for (const char type : {'1', '2', '3', '4', '6', '7', 'L', 'K', 'S'}) {
    CAPTURE(type);
    CHECK(unpacked(folder, gzip(header("a", type, 0, "/etc/passwd") + kEnd))
              .find("neither a file nor a folder") != std::string::npos);
  }
  for (const char* path : {"../escaped", "/tmp/escaped", "a/../../escaped", "a//b", "a\nb", ""}) {
    CAPTURE(path);
    CHECK(unpacked(folder, gzip(file(path, "x") + kEnd)).find("the path") != std::string::npos);
  }
  CHECK_FALSE(unpacked(folder, gzip(header("../escaped", '5', 0) + kEnd)).empty());
  CHECK_FALSE(fs::exists(folder / "escaped"));
  CHECK_FALSE(fs::exists(folder / "in/escaped"));
}

TEST_CASE("pax records of times are passed over, those of other paths and sizes refused", "[hub]") {
  const test::TempDir folder;
  const auto records = [](const std::string& text, char type) {
    std::string entry = file("PaxHeader/a", text);
    return entry.replace(0, kTarBlock, header("PaxHeader/a", type, text.size()));
  };
  CHECK(unpacked(folder,
                 gzip(records("20 comment=of all\n", 'g') +
                      records("30 mtime=1400000000.123456789\n", 'x') + file("a", "hello") + kEnd))
            .empty());
  CHECK(read_file(folder / "in/to/a") == "hello");
  CHECK_FALSE(fs::exists(folder / "in/to/PaxHeader"));
  for (const char* text : {"22 path=../../escaped\n", "12 size=100\n", "20 linkpath=/etc/x\n"}) {
    CAPTURE(text);
    fs::remove_all(folder / "in");
    CHECK(unpacked(folder, gzip(records(text, 'x') + file("a", "hello") + kEnd)).find("pax") !=
          std::string::npos);
  }
  CHECK_FALSE(unpacked(folder, gzip(records(std::string(70'000, 'a'), 'x') + file("b", "x") + kEnd))
                  .empty());
}

TEST_CASE("a broken archive, and one that holds too much, end in an error", "[hub]") {
  const test::TempDir folder;
  const std::string good = gzip(file("a", std::string(5000, 'a')) + kEnd);
  for (std::size_t size = 0; size < good.size(); size += 7) {
    fs::remove_all(folder / "in");
    CHECK_FALSE(unpacked(folder, good.substr(0, size)).empty());
  }
  CHECK(unpacked(folder, "hello").find("no gzip") != std::string::npos);
  CHECK(unpacked(folder, gzip(std::string(600, 'x'))).find("no tar") != std::string::npos);
  CHECK(unpacked(folder, gzip(file("b", "x"))).find("cut off") != std::string::npos);
  CHECK(unpacked(folder, gzip(header("b", '0', kMax + 1) + kEnd)).find("more than it should") !=
        std::string::npos);
  fs::remove_all(folder / "in");
  CHECK_FALSE(unpacked(folder, gzip(file("b", "x") + file("b", "y") + kEnd)).empty());
}

}  // namespace
}  // namespace dstrain::hub
