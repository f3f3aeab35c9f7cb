#include <sys/resource.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <map>

#include "engine/recipe/load.h"
#include "engine/recipe/tree.h"
#include "test/recipe/recipes.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

constexpr std::size_t kLimit = kMaxRecipeBytes;

std::string repeat(std::string_view text, std::size_t times) {
  std::string result;
  result.reserve(text.size() * times);
  for (std::size_t i = 0; i < times; ++i) result += text;
  return result;
}

/// Ten levels that each name the one before nine times: 9^10 values when unfolded.
std::string alias_bomb() {
  std::string text = "a0: &a0 x\n";
  for (int level = 1; level <= 10; ++level) {
    text += "a" + std::to_string(level) + ": &a" + std::to_string(level) + " [" +
            repeat("*a" + std::to_string(level - 1) + ", ", 9) + "]\n";
  }
  return text;
}

std::string many_keys(std::size_t bytes) {
  std::string text;
  for (int i = 0; text.size() + 20 < bytes; ++i) text += "key" + std::to_string(i) + ": 1\n";
  return text;
}

/// Fills up to the size limit.
std::string fill(std::string_view text) { return repeat(text, kLimit / text.size()); }

const std::map<std::string, std::function<std::string()>>& hostile_inputs() {
  static const std::map<std::string, std::function<std::string()>> inputs = {
      {"alias bomb", alias_bomb},
      {"alias cycle in a list", [] { return std::string("&a [*a]"); }},
      {"alias cycle in a map", [] { return std::string("a: &a {b: *a}"); }},
      {"undefined alias", [] { return std::string("a: *b"); }},
      {"alias as a key", [] { return std::string("a: &x y\n*x : z"); }},
      {"merge key", [] { return std::string("a: &x {b: 1}\nc: {<<: *x}"); }},
      {"deep flow lists", [] { return fill("["); }},
      {"deep flow maps", [] { return fill("{"); }},
      {"deep flow maps with keys", [] { return fill("{a: "); }},
      {"deep block lists", [] { return fill("- "); }},
      {"deep block keys", [] { return fill("? "); }},
      {"400 levels", [] { return repeat("[", 400) + repeat("]", 400); }},
      {"closing brackets", [] { return fill("]"); }},
      {"one long word", [] { return std::string(kLimit, 'a'); }},
      {"one long quoted text", [] { return "\"" + std::string(kLimit - 2, 'a') + "\""; }},
      {"an open quote", [] { return "a: \"" + std::string(kLimit - 5, 'a'); }},
      {"a long block scalar", [] { return "a: |\n" + fill("  x\n").substr(8); }},
      {"a folded scalar of empty lines", [] { return "a: >\n" + std::string(kLimit - 8, '\n'); }},
      {"a plain scalar over many lines", [] { return "a:" + fill("\n b").substr(3); }},
      {"a long comment", [] { return fill("#"); }},
      {"many comments", [] { return fill("#\n"); }},
      {"empty lines", [] { return fill("\n"); }},
      {"spaces", [] { return fill(" "); }},
      {"carriage returns", [] { return fill("\r"); }},
      {"many keys", [] { return many_keys(kLimit); }},
      {"keys up to the value limit", [] { return many_keys(24000); }},
      {"one long list", [] { return "a: [" + fill("1,").substr(8) + "]"; }},
      {"empty keys", [] { return fill(":\n"); }},
      {"colons", [] { return fill(":"); }},
      {"colons with spaces", [] { return fill(": "); }},
      {"commas", [] { return "[" + fill(",").substr(2) + "]"; }},
      {"pipes", [] { return fill("|\n"); }},
      {"anchors", [] { return fill("&a "); }},
      {"anchored list", [] { return "[" + fill("&a 1,").substr(8) + "]"; }},
      {"aliases", [] { return "[" + fill("*a,").substr(8) + "]"; }},
      {"tags", [] { return fill("!a "); }},
      {"a long tag", [] { return "!" + std::string(kLimit - 4, 'a') + " b"; }},
      {"a long anchor", [] { return "&" + std::string(kLimit - 4, 'a') + " b"; }},
      {"directives", [] { return fill("%TAG ! x\n"); }},
      {"documents", [] { return fill("---\n"); }},
      {"ends of documents", [] { return fill("...\n"); }},
      {"two documents", [] { return test::small_recipe() + "---\n" + test::small_recipe(); }},
      {"a long key", [] { return std::string(kLimit - 4, 'k') + ": 1"; }},
      {"a long quoted key", [] { return "\"" + std::string(kLimit - 6, 'k') + "\": 1"; }},
      {"escapes", [] { return "a: \"" + fill("\\x41").substr(8) + "\""; }},
      {"NUL", [] { return std::string("a: b\0c", 6); }},
      {"UTF-16",
       [] {
         return std::string(
             "\xFF\xFE"
             "a\0:\0",
             6);
       }},
      {"broken UTF-8", [] { return "a: " + fill("\xC3").substr(3); }},
      {"tabs", [] { return fill("\t"); }},
      {"tabs and comments", [] { return fill("\t#\n"); }},
      {"an indenting tab", [] { return std::string("model:\n\tname: vit-tiny\n"); }},
      {"one byte too much", [] { return std::string(kLimit + 1, '#'); }},
      {"64 MiB", [] { return std::string(kLimit * 256, 'a'); }},
      {"lines of a block scalar that look like comments",
       [] { return "a: |\n" + fill("  #\n").substr(8); }},
      {"brackets up to the content limit", [] { return std::string(65000, '['); }},
      {"braces up to the content limit", [] { return std::string(65000, '{'); }},
      {"keys in braces up to the content limit", [] { return repeat("{a: ", 16000); }},
      {"brackets among comments", [] { return repeat("[\n#aaa\n", 32000); }},
      {"anchors up to the content limit", [] { return "[" + repeat("&a 1,", 13000) + "]"; }},
      {"aliases up to the content limit", [] { return "[" + repeat("*a,", 21000) + "]"; }},
      {"word up to the content limit", [] { return std::string(65000, 'a'); }},
      {"words up to the content limit", [] { return "a:" + repeat("\n b", 21000); }},
      {"tags up to the content limit", [] { return repeat("!a ", 21000); }},
      {"escapes up to the content limit", [] { return "a: \"" + repeat("\\x41", 16000) + "\""; }},
      {"variables up to the content limit",
       [] { return "run: {output: \"" + repeat("${HOME:-x}", 6000) + "${\"}"; }},
      {"empty", [] { return std::string(); }},
      {"variables", [] { return "run: {output: \"" + fill("${HOME:-x}").substr(40) + "\"}"; }},
      {"dollars", [] { return "run: {output: \"" + fill("$").substr(40) + "\"}"; }},
  };
  return inputs;
}

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

long peak_kib() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

bool is_sanitized() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#else
  return false;
#endif
}

}  // namespace

TEST_CASE("hostile text gives an error within 0.1 s and 50 MB", "[recipe][hostile][not_emulated]") {
  for (const auto& [name, make] : hostile_inputs()) {
    CAPTURE(name);
    const std::string text = make();
    const long before_kib = peak_kib();
    // The best of three: a busy machine must not fail the test.
    double took = 1e9;
    for (int attempt = 0; attempt < 3 && took >= 0.1; ++attempt) {
      const double start = cpu_seconds();
      CHECK_THROWS_AS(parse_recipe(text, "hostile.yaml"), RecipeError);
      took = std::min(took, cpu_seconds() - start);
    }
    if (is_sanitized()) continue;  // instrumented code is slower and larger by a factor
    CHECK(took < 0.1);
    CHECK(peak_kib() - before_kib < 50 * 1024);
  }
}

TEST_CASE("hostile overrides give an error", "[recipe][hostile]") {
  for (const auto& [name, make] : hostile_inputs()) {
    CAPTURE(name);
    CHECK_THROWS_AS(parse_recipe(test::small_recipe(), "r.yaml", {"batch.global=" + make()}),
                    RecipeError);
    CHECK_THROWS_AS(parse_recipe(test::small_recipe(), "r.yaml", {make()}), RecipeError);
  }
  CHECK_THROWS_AS(parse_recipe(test::small_recipe(), "r.yaml", {repeat("a.", 100000) + "a=1"}),
                  RecipeError);
}

TEST_CASE("a message stays readable whatever the file holds", "[recipe][hostile]") {
  for (const auto& [name, make] : hostile_inputs()) {
    CAPTURE(name);
    try {
      (void)parse_recipe(make(), "hostile.yaml");
    } catch (const RecipeError& error) {
      CHECK(std::string_view(error.what()).size() < 20000);
    }
  }
}

}  // namespace dstrain
