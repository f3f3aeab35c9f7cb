#include <algorithm>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "engine/recipe/load.h"
#include "test/recipe/golden.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// The recipes of the tree and the wrong ones beside their messages.
std::vector<std::string> recipes() {
  std::vector<fs::path> files;
  for (const char* folder : {"recipes", "test/golden/recipe/wrong"}) {
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.path().extension() == ".yaml") files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  std::vector<std::string> texts;
  for (const fs::path& file : files) texts.push_back(test::read_text(file));
  return texts;
}

/// An error that names something, or a recipe that reads back as itself.
bool is_sound(const std::string& text) {
  try {
    const LoadedRecipe loaded = parse_recipe(text, "r.yaml");
    return parse_recipe(resolved_yaml(loaded), "again.yaml").recipe == loaded.recipe;
  } catch (const RecipeError& error) {
    return !error.diagnostics().empty();
  }
}

}  // namespace

TEST_CASE("recipes with a few characters changed are refused or read back as themselves",
          "[recipe][hostile]") {
  const std::vector<std::string> texts = recipes();
  REQUIRE(texts.size() > 50);
  const std::vector<std::string> pieces = {"\"",
                                           "'",
                                           "{",
                                           "}",
                                           "[",
                                           "]",
                                           ":",
                                           ": ",
                                           ",",
                                           "\n",
                                           "\n  ",
                                           "#",
                                           " #",
                                           "- ",
                                           "? ",
                                           "|",
                                           ">",
                                           "&a ",
                                           "*a",
                                           "!t ",
                                           "%",
                                           "@",
                                           "`",
                                           "\t",
                                           "\\",
                                           "\r",
                                           "---",
                                           "...",
                                           "<<",
                                           "~",
                                           "$",
                                           "${",
                                           "${HOME}",
                                           "}",
                                           "0x",
                                           "1e",
                                           ".inf",
                                           "-",
                                           "null",
                                           "\x01",
                                           "\x7f",
                                           "\xc2\x85",
                                           "\xe2\x80\xa8",
                                           "\xff",
                                           "\xef\xbb\xbf",
                                           "9999999999999999999"};
  std::mt19937 random(20260101);
  const auto below = [&](std::size_t count) { return random() % std::max<std::size_t>(count, 1); };
  for (int round = 0; round < 4000; ++round) {
    std::string text = texts[below(texts.size())];
    const std::string other = texts[below(texts.size())];
    for (std::size_t change = 0; change <= below(3); ++change) {
      const std::size_t at = below(text.size() + 1);
      switch (below(4)) {
        case 0:
          text.insert(at, pieces[below(pieces.size())]);
          break;
        case 1:
          text.erase(at, 1 + below(4));
          break;
        case 2:
          text.replace(at, 1, pieces[below(pieces.size())]);
          break;
        default:
          text.insert(at, other, below(other.size()), below(40));
      }
    }
    CAPTURE(round, text);
    REQUIRE(is_sound(text));
  }
}

TEST_CASE("a quote that is put before a value and not closed is named with its place",
          "[recipe][hostile]") {
  int tried = 0;
  for (const std::string& text : recipes()) {
    if (text.find('\r') != std::string::npos) continue;
    try {
      (void)parse_recipe(text, "r.yaml");
    } catch (const RecipeError&) {
      continue;  // wrong in another way
    }
    int line = 1;
    std::size_t start = 0;
    for (std::size_t at = 0; at + 2 < text.size(); ++at) {
      if (text[at] == '\n') ++line, start = at + 1;
      const std::string_view rest =
          std::string_view(text).substr(at, std::min(text.find('\n', at), text.size()) - at);
      const bool comment = text[text.find_first_not_of(' ', start)] == '#';
      if (comment || !rest.starts_with(": ") || rest.find('#') != rest.npos) continue;
      if (rest[2] == '"' || rest.find('"') != rest.npos) continue;  // it would close there
      std::string wrong = text;
      wrong.insert(at + 2, "\"");
      CAPTURE(wrong);
      try {
        (void)parse_recipe(wrong, "r.yaml");
        FAIL("accepted");
      } catch (const RecipeError& error) {
        REQUIRE(error.diagnostics().size() == 1);
        CHECK(error.diagnostics()[0].line == line);
        CHECK(error.diagnostics()[0].column == static_cast<int>(at + 3 - start));
      }
      ++tried;
    }
  }
  CHECK(tried > 300);
}

}  // namespace dstrain
