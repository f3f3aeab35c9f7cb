#include "engine/infer/answer_score.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/base/json.h"
#include "engine/trace/input_stream.h"

namespace dstrain {
namespace {

TEST_CASE("answers are scored as SQuAD's official script does", "[infer]") {
  const nlohmann::json cases = parse_json(
      trace::read_text("test/golden/answer_scores.json.gz", std::size_t{16} << 20), "answer_scores.json.gz");
  REQUIRE(cases.size() == 2000);
  int right = 0;
  for (const nlohmann::json& one : cases) {
    const auto answer = one.at("answer").get<std::string>();
    CAPTURE(answer, one.at("right").dump());
    CHECK(normalised_answer(answer) == one.at("normalised").get<std::string>());
    const AnswerScore score =
        score_answer(answer, one.at("right").get<std::vector<std::string>>());
    CHECK(score.exact == one.at("exact").get<double>());
    CHECK(score.f1 == one.at("f1").get<double>());
    right += score.exact > 0 ? 1 : 0;
  }
  CHECK(right > 300);
}

}  // namespace
}  // namespace dstrain
