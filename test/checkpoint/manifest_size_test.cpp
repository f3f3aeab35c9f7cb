#include <fmt/format.h>

#include <ctime>

#include "engine/base/error.h"
#include "engine/checkpoint/checkpoint_boxes.h"
#include "test/support/catch.h"
#include "test/support/hostile_json.h"

namespace dstrain {
namespace {

/// One file, and tensors of four elements one after the other in it.
Manifest manifest_of(std::int64_t tensors) {
  Manifest manifest;
  manifest.state.world_size = 1;
  manifest.files.push_back({"rank0000.safetensors", 16 * tensors, std::string(32, '0')});
  for (std::int64_t i = 0; i < tensors; ++i) {
    manifest.tensors.push_back(
        {.name = fmt::format("layers.{}.experts.weight", i),
         .shape = {2, 2},
         .boxes = {{.file = 0, .rows = {0, 2}, .columns = {0, 2}, .offset = 16 * i}}});
  }
  return manifest;
}

/// One tensor whose every column is cut at another row, so that a row meets as many boxes as there
/// are columns.
Manifest staggered_manifest(std::int64_t columns) {
  const std::int64_t rows = columns + 1;
  Manifest manifest;
  manifest.state.world_size = 1;
  manifest.files.push_back({"rank0000.safetensors", 4 * rows * columns, std::string(32, '0')});
  StoredTensor tensor{.name = "w", .shape = {rows, columns}, .boxes = {}};
  for (std::int64_t i = 0; i < columns; ++i) {
    tensor.boxes.push_back({.file = 0, .rows = {0, i + 1}, .columns = {i, i + 1}, .offset = 0});
    tensor.boxes.push_back({.file = 0, .rows = {i + 1, rows}, .columns = {i, i + 1}, .offset = 0});
  }
  manifest.tensors.push_back(std::move(tensor));
  return manifest;
}

double seconds_to_read(const Manifest& written) {
  const std::string text = manifest_text(written);
  const std::clock_t begin = std::clock();
  const StoredBoxes boxes(parse_manifest(text, "MANIFEST.json"), "MANIFEST.json");
  CHECK(boxes.tensors().size() == written.tensors.size());
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

TEST_CASE("a manifest of 300,000 tensors is read in time that grows with their number",
          "[checkpoint]") {
  const double few = seconds_to_read(manifest_of(75'000));
  const double many = seconds_to_read(manifest_of(300'000));
  CAPTURE(few, many);
  CHECK(many < 10 * few + 0.5);  // four times as many; quadratic would be 16 times
  CHECK(many < 20);
}

TEST_CASE("a tensor of 200,000 boxes is checked in time that grows with their number",
          "[checkpoint]") {
  const double few = seconds_to_read(staggered_manifest(25'000));
  const double many = seconds_to_read(staggered_manifest(100'000));
  CAPTURE(few, many);
  CHECK(many < 10 * few + 0.5);
  CHECK(many < 20);
}

TEST_CASE("hostile JSON with a right hash is no manifest", "[checkpoint][hostile]") {
  const std::string good = manifest_text(manifest_of(1));
  const auto tail = good.substr(good.rfind(",\n\"hash\""));
  for (const test::HostileJson& hostile : test::hostile_json()) {
    CAPTURE(hostile.name);
    FileHash hash;
    hash.update(std::as_bytes(std::span(hostile.text)));
    const std::string text = hostile.text + ",\n\"hash\": \"" + hash.hex() + "\"}\n";
    REQUIRE(text.size() == hostile.text.size() + tail.size());
    try {
      (void)parse_manifest(text, "MANIFEST.json");
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::checkpoint);
      CHECK(std::string(error.what()).starts_with("MANIFEST.json"));
    }
  }
}

}  // namespace
}  // namespace dstrain
