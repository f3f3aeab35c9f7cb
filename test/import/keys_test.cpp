#include <algorithm>
#include <set>
#include <sstream>

#include "engine/import/import_state.h"
#include "engine/import/key_rule.h"
#include "test/recipe/golden.h"

namespace dstrain::importing {

TEST_CASE("the table knows every key that DeepSpeed 0.19.8 reads or documents", "[import]") {
  std::istringstream lines(test::read_text("test/import/deepspeed_keys.txt"));
  int count = 0;
  for (std::string key; std::getline(lines, key);) {
    if (key.empty() || key[0] == '#') continue;
    ++count;
    CAPTURE(key);
    CHECK(find_rule(Table::deepspeed, key) != nullptr);
  }
  CHECK(count > 500);
}

TEST_CASE("the page of keys is what the table says", "[import]") {
  test::compare_with_file(keys_markdown(), "recipes/DEEPSPEED_KEYS.md");
}

TEST_CASE("what keys become are keys of a recipe or options of a launch", "[import]") {
  const auto known = recipe_keys();
  std::set<std::string, std::less<>> sections;
  for (const std::string& key : known) {
    for (std::size_t dot = key.find('.'); dot != std::string::npos; dot = key.find('.', dot + 1))
      sections.insert(key.substr(0, dot));
  }
  const auto check = [&](const KeyRule& rule) {
    std::istringstream targets{std::string(rule.target)};
    for (std::string target; std::getline(targets, target, ',');) {
      if (target[0] == ' ') target.erase(0, 1);
      CAPTURE(rule.path, target);
      CHECK((target.starts_with("--") || known.contains(target) || sections.contains(target)));
    }
  };
  for (const Table table : kTables) std::ranges::for_each(rules(table), check);
  std::ranges::for_each(deepspeed_zero_rules(), check);
}

TEST_CASE("a key without counterpart says why", "[import]") {
  for (const Table table : kTables) {
    for (const KeyRule& rule : rules(table)) {
      CAPTURE(rule.path);
      if (rule.fate == Fate::refused || rule.fate == Fate::changes) CHECK(!rule.reason.empty());
    }
  }
}

TEST_CASE("a rule of a section covers what is below it", "[import]") {
  CHECK(find_rule(Table::deepspeed, "compression_training.a.b.c") != nullptr);
  CHECK(find_rule(Table::deepspeed, "compression") == nullptr);
  CHECK(find_rule(Table::deepspeed, "zero_optimization.stag") == nullptr);
  CHECK(is_section(Table::deepspeed, "zero_optimization.offload_param"));
  CHECK(!is_section(Table::deepspeed, "zero_optimization.stage"));
}

}  // namespace dstrain::importing
