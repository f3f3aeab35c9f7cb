#include "test/recipe/golden.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "engine/import/import.h"
#include "engine/recipe/load.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// The files of a case; options.txt holds lines "--ranks 8", "--set K=V", "--accept KEY",
/// "--model NAME", "--command LINE".
importing::ImportOptions options_in(const fs::path& folder) {
  importing::ImportOptions options;
  const auto name = [&](const char* file) { return fs::exists(folder / file) ? file : ""; };
  options.deepspeed = name("ds_config.json");
  options.trainer = name("args.json");
  options.accelerate = name("accelerate.yaml");
  options.sbatch = name("job.sbatch");
  options.open = [folder](const std::string& file) { return test::read_text(folder / file); };
  std::istringstream lines(test::read_text(folder / "options.txt"));
  for (std::string line; std::getline(lines, line);) {
    const std::string option = line.substr(0, line.find(' '));
    const std::string value = line.substr(line.find(' ') + 1);
    if (option == "--ranks") options.ranks = std::stoi(value);
    if (option == "--set") options.settings.push_back(value);
    if (option == "--accept") options.accepted.push_back(value);
    if (option == "--model") options.model = value;
    if (option == "--command") options.command = value;
  }
  return options;
}

}  // namespace

TEST_CASE("each case of an import gives the recipe and the report, or the messages, beside it",
          "[import][golden]") {
  std::vector<fs::path> folders;
  for (const auto& entry : fs::directory_iterator("test/golden/import")) {
    if (entry.is_directory()) folders.push_back(entry.path());
  }
  std::ranges::sort(folders);
  REQUIRE(folders.size() >= 14);
  for (const fs::path& folder : folders) {
    CAPTURE(folder.string());
    try {
      const importing::Imported imported = importing::import_settings(options_in(folder));
      CHECK(!fs::exists(folder / "errors.txt"));
      test::compare_with_file(imported.recipe, folder / "recipe.yaml");
      test::compare_with_file(importing::report_markdown(imported, "recipe.yaml"),
                              folder / "report.md");
      if (imported.unsaid.empty()) (void)load_recipe(folder / "recipe.yaml");
    } catch (const RecipeError& error) {
      CHECK(!fs::exists(folder / "recipe.yaml"));
      test::compare_with_file(std::string(error.what()) + "\n", folder / "errors.txt");
    }
  }
}

}  // namespace dstrain
