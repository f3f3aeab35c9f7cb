#include <nlohmann/json.hpp>

#include "engine/recipe/describe.h"
#include "engine/recipe/load.h"
#include "engine/recipe/render.h"
#include "test/recipe/golden.h"

namespace dstrain {
namespace {

/// Collects what every described field must have.
class Habits final : public Visitor {
 public:
  int num_fields = 0;

 private:
  void enter(std::string_view name, std::string_view text) override { check(name, text); }
  void leave() override {}
  void visit_list(std::string_view name, const ListSlot& list, std::string_view text) override {
    check(name, text);
    list.describe_new(*this);
  }
  void visit(std::string_view name, const Slot&, const Field& about) override {
    ++num_fields;
    check(name, about.text);
  }
  static void check(std::string_view name, std::string_view text) {
    CAPTURE(std::string(name));
    REQUIRE_FALSE(text.empty());
    CHECK(text.back() == '.');
  }
};

}  // namespace

TEST_CASE("REFERENCE.md is what the schema renders", "[recipe][golden]") {
  test::compare_with_file(reference_markdown(), "recipes/REFERENCE.md");
}

TEST_CASE("recipe.schema.json is what the schema renders", "[recipe][golden]") {
  test::compare_with_file(json_schema(), "recipes/recipe.schema.json");
}

TEST_CASE("every field and section explains itself in a sentence", "[recipe]") {
  Recipe recipe;
  Habits habits;
  describe(recipe, habits);
  CHECK(habits.num_fields > 50);
}

TEST_CASE("the JSON schema says types, limits, defaults and what is required", "[recipe]") {
  const auto schema = nlohmann::json::parse(json_schema());
  CHECK(schema["required"] == nlohmann::json({"model", "data", "batch", "optimizer"}));
  CHECK(schema["additionalProperties"] == false);
  const auto& optimizer = schema["properties"]["optimizer"];
  CHECK(optimizer["properties"]["lr"]["exclusiveMinimum"] == 0);
  CHECK(optimizer["properties"]["betas"]["default"] == nlohmann::json({0.9, 0.999}));
  CHECK(optimizer["properties"]["betas"]["minItems"] == 2);
  CHECK(schema["properties"]["parallel"]["properties"]["zero"]["properties"]["stage"]["maximum"] ==
        3);
}

}  // namespace dstrain
