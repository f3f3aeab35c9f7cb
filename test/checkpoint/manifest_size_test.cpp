#include <fmt/format.h>

#include <ctime>

#include "engine/base/error.h"
#include "engine/checkpoint/checkpoint_manifest.h"
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
    manifest.tensors.push_back({.name = fmt::format("layers.{}.experts.weight", i),
                                .shape = {2, 2},
                                .slices = {{.file = 0, .range = {0, 4}, .offset = 16 * i}}});
  }
  return manifest;
}

double seconds_to_read(std::int64_t tensors) {
  const std::string text = manifest_text(manifest_of(tensors));
  const std::clock_t begin = std::clock();
  Manifest manifest = parse_manifest(text, "MANIFEST.json");
  check_coverage(manifest, "MANIFEST.json");
  CHECK(std::ssize(manifest.tensors) == tensors);
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

TEST_CASE("a manifest of 300,000 tensors is read in time that grows with their number",
          "[checkpoint]") {
  const double few = seconds_to_read(75'000), many = seconds_to_read(300'000);
  CAPTURE(few, many);
  CHECK(many < 10 * few + 0.5);  // four times as many; quadratic would be 16 times
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
