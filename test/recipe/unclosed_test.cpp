#include "engine/recipe/unclosed.h"

#include <string>

#include "engine/recipe/load.h"
#include "test/recipe/recipes.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

/// "3:7 \"" for an opening in line 3, column 7; "closed" for none.
std::string opening_in(const std::string& text) {
  const auto found = find_unclosed(text);
  if (!found) return "closed";
  int line = 1, column = 1;
  for (const char c : text.substr(0, found->at)) {
    line += c == '\n';
    column = c == '\n' ? 1 : column + 1;
  }
  return std::to_string(line) + ":" + std::to_string(column) + " " + found->opening;
}

}  // namespace

TEST_CASE("an open quote or bracket is found where it opens", "[recipe]") {
  CHECK(opening_in("a: \"x\nb: 1\n") == "1:4 \"");
  CHECK(opening_in("a: 1\nb: 'x\nc: 2") == "2:4 '");
  CHECK(opening_in("a: { b: \"x }\nc: { d: \"y\" }\n") == "1:9 \"");
  CHECK(opening_in("a: [1, 'x, 2]") == "1:8 '");
  CHECK(opening_in("a: [x,\"y]") == "1:7 \"");
  CHECK(opening_in("\"a: 1\n") == "1:1 \"");
  CHECK(opening_in("- \"a\n- b\"") == "1:3 \"");
  CHECK(opening_in("a: \"x\\\"\n\"") == "1:4 \"");
  CHECK(opening_in("a: 'it''s\n'") == "1:4 '");
  CHECK(opening_in("a: \"b\" \"c\n") == "1:8 \"");
  CHECK(opening_in("{\"a\":\"b\n}") == "1:6 \"");
  CHECK(opening_in("--- \"a\n") == "1:5 \"");
  CHECK(opening_in("? \"a\n: b\n") == "1:3 \"");
  CHECK(opening_in("a: \"x\r\nb: \"") == "1:4 \"");
  CHECK(opening_in("a: |\n  \"x\nb: \"y\n") == "3:4 \"");
  CHECK(opening_in("a: { b: 1\nc: { d: 2 }\n") == "1:4 {");
  CHECK(opening_in("a: [1, 2\n") == "1:4 [");
}

TEST_CASE("a quote or bracket inside a word, a comment or a block opens nothing", "[recipe]") {
  CHECK(opening_in("a: don't # \"really\nb: it's [not") == "closed");
  CHECK(opening_in("# \"x\na: 1 # [y\n") == "closed");
  CHECK(opening_in("a: x\"y\nb: {c: d'e, f: g}\n") == "closed");
  CHECK(opening_in("a: \"x # y\" # 'z\n") == "closed");
  CHECK(opening_in("a: 'x \" y'\nb: \"x ' y\"\n") == "closed");
  CHECK(opening_in("a: \"\\\\\"\nb: ''\nc: \"\"\n") == "closed");
  CHECK(opening_in("a: |\n  say \"\n  'x [\n\n  {\nb: 1\n") == "closed");
  CHECK(opening_in("a:\n  - >-\n    \"x\n  - y\n") == "closed");
  CHECK(opening_in("a: {b: [1, {c: 2}], d: \"}\"}\n") == "closed");
  CHECK(opening_in("a: [1, 2}\n") == "closed");  // the parser names the place
  CHECK(opening_in("time: 12:'30\n") == "closed");
}

TEST_CASE("an open quote is an error at the quote, wherever it would be closed", "[recipe]") {
  const std::string message = ": error: the quote that opens here is not closed in its line";
  // Up to the end of the text; the parser alone takes that for the closing quote.
  CHECK(test::error_of(test::small_recipe("memory: { recompute: none }\nrun2: \"x\n"))
            .starts_with("r.yaml:7:7" + message));
  CHECK(
      test::error_of("model: { name: vit-tiny }\ndata: { name: digits, path: \"here }\n"
                     "batch: { global: 64, micro: 16 }\noptimizer: { lr: 1 }\nrun: { epochs: 1 }\n")
          .starts_with("r.yaml:2:29" + message));
  CHECK(
      test::error_of("model:\n  name: vit-tiny\n  weights: 'w\ndata: { name: digits }\n"
                     "batch: { global: 64, micro: 16 }\noptimizer: { lr: 1 }\nrun: { epochs: 1 }\n")
          .starts_with("r.yaml:3:12" + message));
  CHECK(test::error_of("model: { name: \"vit-tiny }\ndata: { name: \"digits\" }\n")
            .starts_with("r.yaml:1:16" + message));
  CHECK(test::error_of("model: { name: vit-tiny\ndata: { name: digits }\n")
            .starts_with("r.yaml:1:8: error: the { that opens here is never closed"));
  try {
    (void)parse_recipe(test::small_recipe(), "r.yaml", {"run.output=\"x"});
    FAIL("accepted");
  } catch (const RecipeError& error) {
    CHECK(std::string(error.what()).starts_with("--set run.output=\"x" + message));
  }
}

}  // namespace dstrain
