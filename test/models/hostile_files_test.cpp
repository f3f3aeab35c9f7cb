#include <functional>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/models/model.h"
#include "engine/models/peft.h"
#include "engine/models/weights.h"
#include "engine/weights/weight_folder.h"
#include "test/models/small_model.h"
#include "test/support/catch.h"
#include "test/support/hostile_json.h"
#include "test/support/temp_dir.h"

/// The JSON files of a model's folder, made to hurt: each ends in Error{data} with file and line.
namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// Every hostile text in the place of `file`, and what `read` says of it.
void check_all(const fs::path& file, const std::function<void()>& read) {
  const auto check = [&](const std::string& content, const std::string& begin) {
    write_file_atomically(file, content);
    std::string message = "no error";
    try {
      read();
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::data);
      message = error.what();
    }
    CHECK(message.starts_with(begin));
    CHECK(message.size() < 10'000);
  };
  for (const test::HostileJson& hostile : test::hostile_json()) {
    CAPTURE(file.filename().string(), hostile.name);
    check(hostile.text, file.string() + ":");
  }
  for (const char* value : {"[1]", "\"text\"", "3", "null"})
    check(value, file.string() + ": holds ");
  // Deep, yet within what is read: copied, compared and shown all the same.
  const std::string deep = std::string(90, '[') + std::string(90, ']');
  check("{\"model_type\": " + deep + ", \"weight_map\": " + deep + ", \"r\": " + deep +
            ", \"peft_type\": \"" + std::string(5'000'000, 'x') + "\"}",
        file.string());
}

TEST_CASE("hostile config.json, index and adapter_config.json are refused by name",
          "[models][hostile]") {
  const test::TempDir folder;
  ModelConfig config;
  config.weights = folder.path().string();
  check_all(folder / "config.json", [&] { (void)make_model(config, {.classes = 10}); });
  check_all(folder / "model.safetensors.index.json",
            [&] { const WeightFolder weights(folder.path()); });
  write_safetensors(folder / "adapter_model.safetensors", {}, {});
  const Model model = test::small_model(10);
  check_all(folder / "adapter_config.json",
            [&] { (void)open_adapter(folder.path(), model, LoraConfig{}, nullptr); });
}

TEST_CASE("an index that leads out of its folder or nowhere is refused", "[models][hostile]") {
  const test::TempDir folder;
  const auto message_of = [&](const std::string& file) -> std::string {
    write_file_atomically(folder / "model.safetensors.index.json",
                          "{\"weight_map\": {\"t\": " + file + "}}");
    try {
      const WeightFolder weights(folder.path());
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::data);
      return error.what();
    }
    return "no error";
  };
  for (const char* file : {"\"../x\"", "\"/etc/passwd\"", "\"..\"", "1", "null", "[]"})
    CHECK(message_of(file).find("is no file name of this folder") != std::string::npos);
  CHECK(message_of("\"absent.safetensors\"").find("No such file") != std::string::npos);
  CHECK(message_of("\"" + std::string(5000, 'n') + "\"").find("longer than the system takes") !=
        std::string::npos);
  fs::create_symlink("circle.safetensors", folder / "circle.safetensors");
  CHECK(message_of("\"circle.safetensors\"").find("lead in a circle") != std::string::npos);
}

}  // namespace
}  // namespace dstrain
