#include "test/recipe/golden.h"

#include <algorithm>
#include <sstream>
#include <vector>

#include "engine/recipe/load.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// Lines "# --set path=value" of the recipe are its overrides.
std::vector<std::string> overrides_in(const std::string& text) {
  constexpr std::string_view kMark = "# --set ";
  std::vector<std::string> overrides;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(kMark)) overrides.push_back(line.substr(kMark.size()));
  }
  return overrides;
}

std::string messages(const fs::path& path) {
  const std::string text = test::read_text(path);
  try {
    const LoadedRecipe loaded = parse_recipe(text, path.filename().string(), overrides_in(text));
    std::string warnings;
    for (const Diagnostic& warning : loaded.warnings) warnings += format(warning) + "\n";
    return warnings.empty() ? "ok\n" : warnings;
  } catch (const RecipeError& error) {
    return std::string(error.what()) + "\n";
  }
}

}  // namespace

TEST_CASE("each wrong recipe gives exactly the messages written beside it", "[recipe][golden]") {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator("test/golden/recipe/wrong")) {
    if (entry.path().extension() == ".yaml") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  REQUIRE(files.size() >= 30);
  for (fs::path file : files) {
    const std::string found = messages(file);
    CHECK(found != "ok\n");
    test::compare_with_file(found, file.replace_extension(".txt"));
  }
}

}  // namespace dstrain
