#include "engine/infer/math_answer.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "engine/base/json.h"
#include "engine/trace/input_stream.h"

namespace dstrain {
namespace {

TEST_CASE("answers of MetaMathQA are right where its authors' scripts say so", "[infer]") {
  const nlohmann::json cases =
      parse_json(trace::read_text("test/golden/math_answers.json.gz", std::size_t{16} << 20),
                 "math_answers.json.gz");
  REQUIRE(cases.size() == 1600);
  int right = 0;
  for (const nlohmann::json& one : cases) {
    const auto answer = one.at("answer").get<std::string>();
    const auto gold = one.at("gold").get<std::string>();
    CAPTURE(answer, gold);
    if (one.at("rule") == "gsm") {
      const auto number = [&](const char* key) {
        return one.at(key).is_null() ? std::nullopt : std::optional(one.at(key).get<double>());
      };
      const auto found = gsm_answer(answer), wanted = gsm_answer(gold);
      CHECK(found == number("found"));
      CHECK(wanted == number("wanted"));
      CHECK((found && found == wanted) == one.at("right").get<bool>());
    } else {
      const auto text = [&](const char* key) {
        return one.at(key).is_null() ? std::nullopt : std::optional(one.at(key).get<std::string>());
      };
      const auto found = math_answer(answer), wanted = math_answer(gold);
      CHECK(found == text("found"));
      CHECK(wanted == text("wanted"));
      CHECK((found && wanted && are_equal_math(*found, *wanted)) == one.at("right").get<bool>());
    }
    right += one.at("right").get<bool>() ? 1 : 0;
  }
  CHECK(right > 400);
}

}  // namespace
}  // namespace dstrain
