#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/models/weights.h"
#include "test/models/bind.h"
#include "test/models/small_model.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain {
namespace {

TEST_CASE("exported weights load again, element for element", "[models][weights]") {
  const test::TempDir folder;
  Model model = test::small_model(3);
  test::bind_parameters(model, *make_random_weights(11));
  const auto values = test::part_values(model, &Parameter::value);
  export_weights(folder / "out", model, test::reader_of(values), {});

  ModelConfig config;
  config.weights = (folder / "out").string();
  Model loaded = make_model(config, {});
  CHECK(loaded.classes == 3);
  CHECK(loaded.config_json == model.config_json);
  std::vector<std::string> notes;
  test::bind_parameters(loaded, *open_weights(folder / "out", loaded, 0, notes));
  CHECK(notes.empty());
  CHECK(test::part_values(loaded, &Parameter::value) == values);
}

TEST_CASE("an export beyond the size of a file is in shards", "[models][weights]") {
  const test::TempDir folder;
  Model model = make_model(test::small_qwen2_config(), {});
  test::bind_parameters(model, *make_random_weights(11));
  const auto values = test::part_values(model, &Parameter::value);
  const auto write = [&](std::uint64_t shard_bytes) {
    export_weights(folder.path(), model, test::reader_of(values), {.shard_bytes = shard_bytes});
  };
  const auto load = [&] {
    std::vector<std::string> notes;
    Model loaded = make_model(test::small_qwen2_config(), {});
    test::bind_parameters(loaded, *open_weights(folder.path(), loaded, 0, notes));
    CHECK(notes.empty());
    return test::part_values(loaded, &Parameter::value);
  };
  write(1 << 20);
  write(4000);
  CHECK_FALSE(std::filesystem::exists(folder / "model.safetensors"));
  // The table, 3,200 bytes, fills the first file alone.
  const nlohmann::json index =
      nlohmann::json::parse(read_file(folder / "model.safetensors.index.json"));
  CHECK(index["metadata"]["total_size"] ==
        4 * (50 * 16 + 2 * (32 * 16 + 16 * 16 + 3 * 24 * 16) + 2 * (32 + 32) + 16));
  CHECK(index["weight_map"].size() == values.size());
  const std::string first = index["weight_map"]["model.embed_tokens.weight"];
  CHECK(first.starts_with("model-00001-of-000"));
  std::uintmax_t largest = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder.path())) {
    if (file.path().extension() != ".safetensors") continue;
    std::uintmax_t bytes = 0;
    const SafetensorsFile shard(file.path());
    for (const auto& [name, entry] : shard.entries()) bytes += entry.end - entry.begin;
    largest = std::max(largest, bytes);
  }
  CHECK(largest <= 4000);
  CHECK(load() == values);
  write(1 << 20);
  CHECK_FALSE(std::filesystem::exists(folder / "model.safetensors.index.json"));
  CHECK(load() == values);
}

TEST_CASE("an export takes along what the tokenizer needs", "[models][weights]") {
  const test::TempDir from, to;
  write_file_atomically(from / "tokenizer.json", "{}");
  write_file_atomically(from / "merges.txt", "a b");
  write_file_atomically(from / "model.safetensors", "weights");
  CHECK(copy_tokenizer_files(from.path(), to.path()) ==
        std::vector<std::string>{"tokenizer.json", "merges.txt"});
  CHECK(read_file(to / "merges.txt") == "a b");
  CHECK_FALSE(std::filesystem::exists(to / "model.safetensors"));
  CHECK(copy_generation_file(from.path(), to.path()).empty());
  write_file_atomically(from / "generation_config.json", R"({"eos_token_id": [1, 2]})");
  CHECK(copy_generation_file(from.path(), to.path()).size() == 1);
  CHECK(read_file(to / "generation_config.json") == R"({"eos_token_id": [1, 2]})");
  CHECK(copy_tokenizer_files(to.path(), to.path()).empty());
}

TEST_CASE("an export says its dtype and refuses a value too few", "[models][weights]") {
  const test::TempDir folder;
  Model model = test::small_model(3);
  test::bind_parameters(model, *make_random_weights(11));
  auto values = test::part_values(model, &Parameter::value);
  export_weights(folder.path(), model, test::reader_of(values), {.dtype = DType::bf16});
  CHECK(read_file(folder / "config.json").find(R"("dtype": "bfloat16")") != std::string::npos);
  CHECK(SafetensorsFile(folder / "model.safetensors").entries().at("classifier.weight").dtype ==
        "BF16");
  values.at("vit.layernorm.bias").pop_back();
  CHECK_THROWS_WITH(export_weights(folder.path(), model, test::reader_of(values), {}),
                    Catch::Contains("tensor 'vit.layernorm.bias' has 15 values"));
}

}  // namespace
}  // namespace dstrain
