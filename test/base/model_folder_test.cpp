#include "engine/base/model_folder.h"

#include <filesystem>
#include <fstream>

#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

TEST_CASE("a folder that is no model says what it is and what would do", "[base]") {
  const test::TempDir root;
  const auto folder_with = [&](const char* name, const std::vector<fs::path>& files) {
    for (const fs::path& file : files) {
      fs::create_directories((root / name / file).parent_path());
      std::ofstream(root / name / file) << "x";
    }
    return root / name;
  };
  const auto starts = [](const fs::path& path, std::string_view words) {
    CAPTURE(hint_for_model_folder(path));
    CHECK(hint_for_model_folder(path).starts_with(words));
  };
  starts(folder_with("run", {"recipe.yaml", "checkpoints/step-00000001/MANIFEST.json"}),
         "it is a run of dstrain: `dstrain checkpoint export ");
  starts(root / "run/checkpoints/step-00000001", "it is a checkpoint of dstrain");
  starts(folder_with("adapter", {"adapter_config.json"}), "it is an adapter: lora.weights");
  starts(folder_with("models--a--b", {"snapshots/0/config.json"}), "it is of the cache");
  starts("Qwen/Qwen2.5-0.5B", "there is no such folder: `dstrain fetch Qwen/Qwen2.5-0.5B`");
  starts("models/Qwen2.5-0.5B",
         "there is no such folder: `dstrain fetch OWNER/Qwen2.5-0.5B --to models/Qwen2.5-0.5B`");
  starts("hf://Qwen/Qwen2.5-0.5B", "the Hub's cache does not have it: `dstrain fetch hf://Qwen/");
  CHECK(hint_for_model_folder(folder_with("empty", {"notes.txt"})).empty());
  for (const char* name : {"", "models", "/models/missing", "./a", "a/b/c", "~/a"})
    CHECK(hint_for_model_folder(name).empty());
}

}  // namespace
}  // namespace dstrain
