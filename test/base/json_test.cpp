#include "engine/base/json.h"

#include "engine/base/file.h"
#include "test/support/catch.h"
#include "test/support/hostile_json.h"
#include "test/support/temp_dir.h"

namespace dstrain {
namespace {

/// What a person sees; every error must be of the kind asked for.
std::string json_error(const std::string& text, const JsonLimits& limits = {}) {
  try {
    (void)parse_json(text, "f.json", limits);
  } catch (const Error& error) {
    CHECK(error.kind() == limits.kind);
    return error.what();
  }
  return "no error";
}

TEST_CASE("good JSON is read as it stands", "[json]") {
  const auto json = parse_json(
      "\xef\xbb\xbf{\"b\": [1, -2, 3.5, 18446744073709551615, true, null], \"a\": {\"\": "
      "\"\\u00e9\"}, \"b\": 7}",
      "f.json");
  CHECK(json == nlohmann::json{{"a", {{"", "é"}}}, {"b", 7}});
  CHECK(parse_json("3", "f.json") == 3);
  // The range of double, and whole numbers beyond 64 bits, which become one.
  CHECK(parse_json("1.7976931348623157e308", "f.json").get<double>() == 1.7976931348623157e308);
  CHECK(parse_json("123456789012345678901234567890", "f.json").get<double>() ==
        1.2345678901234568e29);
}

TEST_CASE("hostile JSON ends in an error that names file, line and column", "[json]") {
  for (const test::HostileJson& hostile : test::hostile_json()) {
    CAPTURE(hostile.name);
    const std::string error = json_error(hostile.text, {.kind = ErrorKind::checkpoint});
    CHECK(error.starts_with("f.json:"));
    CHECK(error.size() < 300);
    CHECK(json_or_null(hostile.text).is_null());
  }
  CHECK(json_error("{\n \"a\": 1e999\n}") ==
        "f.json:2:11: not JSON: a number beyond the range of double");
  CHECK(json_error("{\"a\": 1,\n\n  \"b\" 2}") ==
        "f.json:3:7: not JSON: syntax error while parsing object separator - unexpected number "
        "literal; expected ':'");
  CHECK(json_error("[\n" + std::string(200, '[')) == "f.json:2:100: nested more than 100 deep");
}

TEST_CASE("JSON is held to its limits", "[json]") {
  CHECK(json_error("[[1]]", {.depth = 2}) == "no error");
  CHECK(json_error("[[[1]]]", {.depth = 2}) == "f.json:1:3: nested more than 2 deep");
  CHECK(json_error("[1, 2]", {.values = 3}) == "no error");
  CHECK(json_error("[1, 2, 3]", {.values = 3}) == "f.json:1:9: more than 3 values");
  CHECK(json_error("[1, 2]", {.bytes = 6}) == "no error");
  CHECK(json_error("[1, 2]", {.bytes = 5}) ==
        "f.json:1:1: 6 bytes of JSON, more than the 5 allowed");
  CHECK(json_error("{\"a\": {\"a\": 1}, \"b\": 1}", {.unique_keys = true}) == "no error");
  CHECK(json_error("{\"a\": 1, \"a\": 1}", {.unique_keys = true}) ==
        "f.json:1:12: the key 'a' is there twice");
  // 4,000,000 empty objects of 3 bytes would take half a gigabyte.
  CHECK(json_error("[{}" + test::repeated(",{}", 4'000'000) + "]") ==
        "f.json:1:5999999: more than 2000000 values");
}

TEST_CASE("a file must hold an object", "[json]") {
  const test::TempDir folder;
  const auto path = folder / "c.json";
  write_file_atomically(path, "[1]");
  CHECK_THROWS_WITH(read_json_object(path), path.string() + ": holds array, not an object");
  write_file_atomically(path, "{\"a\": 1}");
  CHECK(read_json_object(path).at("a") == 1);
  CHECK_THROWS_WITH(read_json_object(path, {.bytes = 4}), Catch::Contains("8 bytes, more than"));
}

TEST_CASE("what a message shows of a value is short and valid", "[json]") {
  CHECK(shown_text("text") == "text");
  CHECK(shown_text("aé", 2) == "a...");
  CHECK(shown_json(std::string(1000, 'x')).size() < 250);
  CHECK(shown_json(nlohmann::json(std::vector<int>(1000, 1))) == "a list of 1000 values");
  CHECK(json_text(nlohmann::json{{"path", "a\xff"}}) == "{\"path\":\"a\xef\xbf\xbd\"}");
}

}  // namespace
}  // namespace dstrain
