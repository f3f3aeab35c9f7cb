/// Counts of classes that were taken for others: what follows from them, and their files.
#include "engine/report/confusion.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/base/error.h"
#include "engine/report/document.h"
#include "test/report/made_run.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain::report {
namespace {

using Catch::Matchers::Contains;
using test::MadeRun;
using test::TempDir;

/// The third class has no image, the fourth is never predicted.
Confusion example() {
  return {.names = {"otter", "seal, grey", "a \"b\"\nc", "fox"},
          .counts = {61, 23, 16, 0, 5, 95, 0, 0, 0, 0, 0, 0, 2, 1, 2, 0}};
}

TEST_CASE("figures of classes follow from the counts") {
  const std::vector<ClassFigures> figures = class_figures(example());
  REQUIRE(figures.size() == 4);
  CHECK(figures[0].images == 100);
  CHECK(figures[0].right == 61);
  CHECK(figures[0].recall == Approx(0.61));
  CHECK(figures[0].precision == Approx(61.0 / 68));
  CHECK(figures[0].f1 == Approx(2 * 61.0 / (100 + 68)));
  CHECK(figures[0].other == 1);
  CHECK(figures[0].as_other == 23);
  CHECK(std::isnan(figures[2].recall));
  CHECK(figures[2].precision == 0);
  CHECK(figures[3].recall == 0);
  CHECK(std::isnan(figures[3].precision));
  CHECK(figures[3].f1 == 0);
  CHECK(figures[3].other == 0);  // of equal counts the first
  const std::vector<ConfusedPair> pairs = most_confused(example(), 3);
  REQUIRE(pairs.size() == 3);
  CHECK(pairs[0].count == 23);
  CHECK((pairs[1].right == 0 && pairs[1].predicted == 2));
  CHECK((pairs[2].right == 1 && pairs[2].predicted == 0));
  CHECK(most_confused(example(), 100).size() == 6);
  const std::vector<std::string> worst = worst_classes(example(), 2);
  REQUIRE(worst.size() == 2);
  CHECK(worst[0] == "fox: 0 of 5 right, most often taken for otter (2)");
  CHECK(worst[1] == "otter: 61 of 100 right, most often taken for seal, grey (23)");
  CHECK(worst_classes({.names = {"a"}, .counts = {7}}, 5).empty());
}

TEST_CASE("counts are read as they were written, names with commas and quotes included") {
  const std::string csv = confusion_csv(example());
  CHECK_THAT(csv,
             Contains("class,otter,\"seal, grey\",\"a \"\"b\"\"\nc\",fox\notter,61,23,16,0\n"));
  const Confusion again = parse_confusion(csv, "confusion.csv");
  CHECK(again.names == example().names);
  CHECK(again.counts == example().counts);
  CHECK(classes_csv(example()) ==
        "class,images,right,recall,precision,f1,most_often_taken_for,times\n"
        "otter,100,61,0.61,0.897059,0.72619,\"seal, grey\",23\n"
        "\"seal, grey\",100,95,0.95,0.798319,0.86758,otter,5\n"
        "\"a \"\"b\"\"\nc\",0,0,,0,0,,\n"
        "fox,5,0,0,,0,otter,2\n");
}

TEST_CASE("a file of counts that is none is refused with its line") {
  const auto [csv, message] = GENERATE(table<std::string, std::string>({
      {"", "line 1: the header does not begin with 'class'"},
      {"class\n", "line 1: no class"},
      {"class,a,b\na,1,2\n", "1 rows, not one for each of 2 classes"},
      {"class,a,b\na,1,2\nc,1,2\n", "line 3: the row is not that of 'b'"},
      {"class,a,b\na,1,2\nb,1\n", "line 3: the row of 'b' has not 2 counts"},
      {"class,a,b\na,1,2,3\nb,1,1\n", "the row of 'a' has not 2 counts"},
      {"class,a\na,-1\n", "line 2: '-1' is no count"},
      {"class,a\na,1e3\n", "'1e3' is no count"},
      {"class,a\na,99999999999999999999\n", "is no count"},
      {"class,a\na,1\nb,1\n", "more rows than the 1 classes"},
      {"class,\"a\n", "a quoted name has no end"},
      {"class,\"a\"b\n", "text behind a quoted name"},
  }));
  CAPTURE(csv);
  CHECK_THROWS_WITH(parse_confusion(csv, "confusion.csv"), Contains(message));
}

TEST_CASE("a report shows which classes were confused") {
  const TempDir folder;
  const auto path = folder / "run";
  MadeRun{.steps = 20}.write(path);
  test::spit(path / "metrics.jsonl",
             test::slurp(path / "metrics.jsonl") +
                 R"({"kind":"evaluation","step":20,"loss":1,"accuracy":0.7,"samples":205})"
                 "\n");
  test::spit(path / "confusion.csv", confusion_csv(example()));
  Report report = make_report({read_run(path)}, {});
  CHECK(report.runs[0].data.problems.empty());
  const std::string text = document_text(make_document(report, false));
  CAPTURE(text);
  CHECK_THAT(text, Contains("taken for") && Contains("seal, grey") && Contains("confusion.csv"));
  const auto json = nlohmann::json::parse(report_json(report));
  const nlohmann::json& first = json["runs"][0]["confused"][0];
  CHECK(first["class"] == "otter");
  CHECK(first["taken_for"] == "seal, grey");
  CHECK(first["images"] == 23);
  CHECK_THAT(document_html(make_document(report, true)), Contains("Classes taken for others"));

  Confusion many{.names = {}, .counts = std::vector<std::int64_t>(101 * 101, 1)};
  for (int i = 0; i < 101; ++i) many.names.push_back(fmt::format("class {}", i));
  test::spit(path / "confusion.csv", confusion_csv(many));
  report = make_report({read_run(path)}, {});
  CHECK_THAT(document_html(make_document(report, true)), !Contains("Classes taken for others"));

  test::spit(path / "confusion.csv", "class,a\n");
  const RunData broken = read_run(path);
  REQUIRE(broken.problems.size() == 1);
  CHECK(broken.problems[0].file == "confusion.csv");
}

}  // namespace
}  // namespace dstrain::report
