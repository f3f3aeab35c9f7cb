#include "engine/weights/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/host_memory.h"
#include "engine/weights/safetensors_header.h"
#include "test/support/catch.h"
#include "test/support/hostile_json.h"
#include "test/support/mutate.h"
#include "test/support/temp_dir.h"

namespace dstrain {
namespace {

std::string length_word(std::uint64_t length) {
  std::string word(8, '\0');
  std::memcpy(word.data(), &length, sizeof(length));
  return word;
}

/// A file with this header and so many bytes of data.
std::string file_of(const std::string& header, std::size_t data_bytes) {
  return length_word(header.size()) + header + std::string(data_bytes, '\1');
}

std::string safetensors_error(const std::string& file) {
  try {
    (void)parse_safetensors(file, "w.safetensors");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::data);
    return error.what();
  }
  return "no error";
}

struct Broken {
  const char* header;
  std::size_t data_bytes;
  const char* error;
};

const Broken kBroken[] = {
    {R"([])", 0, "w.safetensors: the header does not begin with '{'"},
    {R"( {})", 0, "w.safetensors: the header does not begin with '{'"},
    {R"({"a")", 0, "w.safetensors: the header is not JSON at byte 13"},
    {R"({} x)", 0, "w.safetensors: the header is not JSON at byte 12"},
    {R"({})", 3, "w.safetensors: 3 bytes after the last tensor"},
    {R"({"a":7})", 0, "w.safetensors: 'a' is the number 7, not an object"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
     8, "w.safetensors: 'a' appears twice in the header"},
    {R"({"__metadata__":{},"__metadata__":{}})", 0,
     "w.safetensors: '__metadata__' appears twice in the header"},
    {R"({"__metadata__":{"k":"v","k":"w"}})", 0, "w.safetensors: __metadata__: 'k' appears twice"},
    {R"({"__metadata__":{"k":1}})", 0,
     "w.safetensors: __metadata__: 'k' is the number 1, not a string"},
    {R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4,
     "w.safetensors: tensor 'a': 'dtype' appears twice"},
    {R"({"a":{"dtype":"F32","shape":[1],"offsets":[0,4]}})", 4,
     "w.safetensors: tensor 'a': unknown field 'offsets'"},
    {R"({"a":{"dtype":"F32","shape":[1]}})", 4,
     "w.safetensors: tensor 'a': needs dtype, shape and data_offsets"},
    {R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", 4,
     "w.safetensors: tensor 'a': unknown dtype 'F31'"},
    {R"({"a":{"dtype":["F32"],"shape":[1],"data_offsets":[0,4]}})", 4,
     "w.safetensors: tensor 'a': 'dtype' is a list"},
    {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4,
     "w.safetensors: tensor 'a': 'shape' holds the negative number -1"},
    {R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4,
     "w.safetensors: tensor 'a': 'shape' holds the number 1.0"},
    {R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", 4,
     "w.safetensors: tensor 'a': 'shape' holds a list"},
    {R"({"a":{"dtype":"F32","shape":{"x":{}},"data_offsets":[0,4]}})", 4,
     "w.safetensors: tensor 'a': 'shape' is an object"},
    {R"({"a":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4]}})", 4,
     "w.safetensors: tensor 'a': a dim of 9223372036854775808 elements"},
    {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})", 4,
     "w.safetensors: tensor 'a': shape [4294967296, 4294967296] overflows"},
    {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4,
     "w.safetensors: tensor 'a': F32 x [2] is 64 bits, its data 4 bytes"},
    {R"({"a":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}})", 1,
     "w.safetensors: tensor 'a': F4 x [1] is 4 bits, its data 1 bytes"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4,
     "w.safetensors: tensor 'a': data_offsets has 1 numbers, not 2"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})", 4,
     "w.safetensors: tensor 'a': data_offsets [0, 8] do not lie in the 4 bytes of data"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4,
     "w.safetensors: tensor 'a': data_offsets [4, 0] do not lie in the 4 bytes of data"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
     6, "w.safetensors: tensor 'b': begins at byte 2 of the data, inside another tensor (4)"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
     12, "w.safetensors: tensor 'b': begins at byte 8 of the data, after a hole (4)"},
};

TEST_CASE("a broken safetensors header is refused with its rule", "[models][safetensors]") {
  for (const Broken& broken : kBroken) {
    CAPTURE(broken.header);
    CHECK(safetensors_error(file_of(broken.header, broken.data_bytes)) == broken.error);
  }
}

TEST_CASE("a broken safetensors length is refused with its rule", "[models][safetensors]") {
  CHECK(safetensors_error("1234567") ==
        "w.safetensors: 7 bytes are too few for a safetensors file");
  CHECK(safetensors_error(length_word(std::uint64_t{1} << 63) + "{}") ==
        "w.safetensors: a header of 9223372036854775808 bytes, more than the 100000000 allowed");
  CHECK(safetensors_error(length_word(3) + "{}") ==
        "w.safetensors: a header of 3 bytes, but the file ends 2 bytes after its length");
  CHECK(safetensors_error(length_word(0)) == "w.safetensors: the header does not begin with '{'");
}

TEST_CASE("deep nesting ends at the first level too many", "[models][safetensors]") {
  const std::string deep = R"({"a":{"shape":)" + std::string(1'000'000, '[');
  CHECK(safetensors_error(file_of(deep, 0)) == "w.safetensors: tensor 'a': 'shape' holds a list");
}

TEST_CASE("a zero byte does not hide the rest of the header", "[models][safetensors]") {
  CHECK(safetensors_error(file_of(std::string("{}\0[", 4), 0)) ==
        "w.safetensors: the header is not JSON at byte 10");
}

TEST_CASE("hostile headers are refused, each with the file's name",
          "[models][safetensors][hostile]") {
  for (const test::HostileJson& hostile : test::hostile_json()) {
    CAPTURE(hostile.name);
    const std::string error = safetensors_error(file_of(hostile.text, 0));
    CHECK(error.starts_with("w.safetensors: "));
    CHECK(error.size() < 1000);
  }
  CHECK(safetensors_error(file_of("{\"" + std::string(50'000'000, 'n') + "\": 1}", 0)).size() <
        1000);
}

TEST_CASE("mutated files are read or refused", "[models][safetensors][hostile]") {
  std::mt19937 random(3);
  const std::string seed = file_of(
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"b":{"dtype":"I64","shape":[],"data_offsets":[8,16]}})",
      16);
  REQUIRE(safetensors_error(seed) == "no error");
  int refused = 0;
  for (int i = 0; i < 5000; ++i)
    refused += safetensors_error(test::mutated(seed, random)) == "no error" ? 0 : 1;
  CHECK(refused > 2500);
}

TEST_CASE("every truncation of a good file is refused", "[models][safetensors]") {
  const std::string file = file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
  REQUIRE(safetensors_error(file) == "no error");
  for (std::size_t size = 0; size < file.size(); ++size)
    CHECK(safetensors_error(file.substr(0, size)) != "no error");
}

TEST_CASE("what the writer writes the reader reads", "[models][safetensors]") {
  const test::TempDir folder;
  const auto path = folder / "w.safetensors";
  const std::vector<float> wide = {1.5f,   -2.25f, std::numeric_limits<float>::max(),
                                   1e-40f, 0.1f,   3};
  const std::vector<float> narrow = {1, -0.5f, 2.5f};
  write_safetensors(
      path,
      {{.name = "z \"quoted\"", .shape = {2, 3}, .dtype = DType::f32, .values = wide},
       {.name = "half", .shape = {3}, .dtype = DType::f16, .values = narrow},
       {.name = "brain", .shape = {3, 1}, .dtype = DType::bf16, .values = narrow},
       {.name = "empty", .shape = {0, 4}, .dtype = DType::f32, .values = {}},
       {.name = "scalar", .shape = {}, .dtype = DType::f32, .values = std::span(wide).first(1)}},
      {{"format", "pt"}});
  const SafetensorsFile file(path);
  CHECK(file.metadata() == std::map<std::string, std::string>{{"format", "pt"}});
  CHECK(file.entries().size() == 5);
  CHECK(file.entries().at("brain").dtype == "BF16");
  CHECK(file.entries().at("brain").shape == std::vector<std::int64_t>{3, 1});
  std::vector<float> back(6);
  file.read("z \"quoted\"", 0, back);
  CHECK(back == wide);
  std::vector<float> part(2);
  file.read("z \"quoted\"", 3, part);
  CHECK(part == std::vector<float>{1e-40f, 0.1f});
  std::vector<float> three(3);
  file.read("half", 0, three);
  CHECK(three == narrow);
  file.read("brain", 1, part);
  CHECK(part == std::vector<float>{-0.5f, 2.5f});
  file.read("empty", 0, {});
  CHECK_THROWS_WITH(file.read("scalar", 0, part), Catch::Contains("which has 1"));
  CHECK_THROWS_WITH(file.read("other", 0, part), path.string() + ": no tensor 'other'");
}

TEST_CASE("a file that was read does not stay in the process's memory", "[models][safetensors]") {
  const test::TempDir dir;
  constexpr std::size_t kValues = 64 << 20, kPiece = 1 << 20;
  const std::vector<SafetensorsTensor> tensors = {
      {.name = "w", .shape = {kValues}, .dtype = DType::f32, .values = {}}};
  const std::string header = safetensors_header(tensors, {});
  const auto path = dir.path() / "zeros.safetensors";
  write_file_atomically(path, header);
  std::filesystem::resize_file(path, header.size() + kValues * sizeof(float));
  const SafetensorsFile file(path);
  std::vector<float> values(kPiece);
  const std::int64_t before = host_resident_bytes();
  std::int64_t max = 0;
  for (std::size_t begin = 0; begin < kValues; begin += kPiece) {
    file.read("w", static_cast<std::int64_t>(begin), values);
    max = std::max(max, host_resident_bytes() - before);
  }
  CHECK(max > 0);
  CHECK(max < std::int64_t{32} << 20);
}

TEST_CASE("a value that is not finite is named with file, tensor and place",
          "[models][safetensors]") {
  const test::TempDir folder;
  const auto path = folder / "w.safetensors";
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  const float value =
      GENERATE(std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
               -std::numeric_limits<float>::infinity());
  CAPTURE(safetensors_name(dtype), value);
  std::vector<float> values(10'000, 1.0f);
  values[9'000] = value;
  write_safetensors(path,
                    {{.name = "layer.w", .shape = {10'000}, .dtype = dtype, .values = values}}, {});
  const SafetensorsFile file(path);
  std::vector<float> out(5'000);
  file.read("layer.w", 0, out);
  CHECK_THROWS_WITH(
      file.read("layer.w", 5'000, out),
      fmt::format("{}: tensor 'layer.w' holds {} at element 9000", path.string(), value));
}

TEST_CASE("a dtype that dstrain does not use is listed and not read", "[models][safetensors]") {
  const test::TempDir folder;
  const auto path = folder / "w.safetensors";
  const std::string content =
      file_of(R"({"n":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}})", 8);
  write_file_atomically(path, content);
  const SafetensorsFile file(path);
  CHECK(file.entries().at("n").dtype == "I64");
  std::vector<float> out(1);
  CHECK_THROWS_WITH(file.read("n", 0, out), path.string() + ": tensor 'n' is I64");
}

TEST_CASE("a failed write leaves the old file and nothing beside it", "[models][safetensors]") {
  const test::TempDir folder;
  const auto path = folder / "w.safetensors";
  write_file_atomically(path, "old");
  const std::vector<float> values = {1};
  CHECK_THROWS_AS(write_safetensors(path, {{.name = "a", .shape = {2}, .values = values}}, {}),
                  Error);
  CHECK(read_file(path) == "old");
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()),
                      std::filesystem::directory_iterator()) == 1);
}

}  // namespace
}  // namespace dstrain
