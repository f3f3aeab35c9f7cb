#include <cmath>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/base/error.h"
#include "engine/report/document.h"
#include "engine/report/svg.h"
#include "test/report/made_run.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain::report {
namespace {

using test::MadeRun;
using test::TempDir;

Report report_of(const std::vector<MadeRun>& runs, const TempDir& folder,
                 const PredictStep& predict = {}) {
  std::vector<RunData> data;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto path = folder / fmt::format("run{}", i);
    runs[i].write(path);
    data.push_back(read_run(path));
  }
  return make_report(std::move(data), predict);
}

std::vector<std::string> advice_ids(const RunFigures& run) {
  std::vector<std::string> ids;
  for (const Advice& advice : run.advice) ids.push_back(advice.id);
  return ids;
}

TEST_CASE("a run's figures are those of its steady steps") {
  const TempDir folder;
  const Report report =
      report_of({{.gather = [](int rank) { return rank == 0 ? 0.01 : 0.02; }}}, folder);
  const RunFigures& run = report.runs.at(0);
  CHECK(run.data.problems.empty());
  CHECK(run.num_steady == 90);
  CHECK(run.figures.value("step_s") == Approx(0.1));
  CHECK(run.figures.value("samples_per_s") == Approx(640));
  REQUIRE(run.figures["step_s"].interval);
  CHECK(run.figures["step_s"].interval->low == Approx(0.1));
  CHECK(run.figures.value("final_loss") == Approx(2));
  REQUIRE(run.split.size() == 2);
  for (const RankSplit& split : run.split) {
    double sum = 0;
    for (const double part : split.parts) sum += part;
    CHECK(sum == Approx(split.step_s));
  }
  CHECK(run.split[1].parts[static_cast<std::size_t>(Part::gather)] == Approx(0.02));
  REQUIRE(run.lost.size() == 1);
  CHECK(run.lost[0].seconds == Approx(0.015));
  CHECK(run.sentence == "640 samples/s, 100 ms a step; 15 % of a step: wait for gather.");
}

TEST_CASE("each advice fires on its numbers and is silent otherwise") {
  const TempDir quiet;
  CHECK(report_of({{}}, quiet).runs[0].advice.empty());
  const TempDir a;
  CHECK(advice_ids(report_of({{.data_wait_s = 0.004}}, a).runs[0]) ==
        std::vector<std::string>{"data-wait"});
  const TempDir b;
  CHECK(report_of({{.data_wait_s = 0.0025}}, b).runs[0].advice.empty());
  const TempDir c;
  CHECK(
      advice_ids(
          report_of({{.gather = [](int) { return 0.006; }, .reduce = [](int) { return 0.02; }}}, c)
              .runs[0]) == std::vector<std::string>{"exposed-reduce", "exposed-gather"});
  const TempDir d;
  CHECK(report_of({{.gather = [](int) { return 0.004; }}}, d).runs[0].advice.empty());
  const TempDir e;
  const Report slow =
      report_of({{.ranks = 3, .reduce = [](int rank) { return rank == 1 ? 0.0 : 0.04; }}}, e);
  REQUIRE(advice_ids(slow.runs[0]) == std::vector<std::string>{"straggler", "exposed-reduce"});
  CHECK(slow.runs[0].advice[0].finding.starts_with(
      "rank 1 is last in 100 of 100 steps; the others wait 40 %"));
}

TEST_CASE("rules of memory, clocks and values that are not finite hold to their limits") {
  RunFigures run;
  run.figures["memory_device"].value = 80e9;
  run.data.plan = {{"recompute", true}};
  run.figures["memory_peak"].value = 50e9;
  CHECK(advise(run, {}).at(0).id == "memory-free");
  run.figures["memory_peak"].value = 57e9;  // above 70 %
  CHECK(advise(run, {}).empty());
  run.gpus = {{.index = 0, .name = {}, .throttled = 0.04},
              {.index = 3, .name = {}, .throttled = 0.06}};
  REQUIRE(advise(run, {}).size() == 1);
  CHECK(advise(run, {})[0].finding.starts_with("GPU 3 lowered its clock in 6.0 %"));
  run.gpus.clear();
  run.data.steps.resize(200);
  run.figures["skipped_steps"].value = 2;
  CHECK(advise(run, {}).empty());
  run.figures["skipped_steps"].value = 3;
  CHECK(advise(run, {}).at(0).id == "not-finite");
}

TEST_CASE("waits inside norm and update are no part of them, nor of what computes") {
  RunData data;
  std::vector<TimingRow>& rows = data.ranks.emplace_back().rows;
  for (int step = 1; step <= 100; ++step) {
    rows.push_back({.step = step,
                    .step_s = 1,
                    .forward_s = 0.2,
                    .backward_s = 0.4,
                    .norm_s = 0.2,
                    .update_s = 0.2,
                    .wait_gather_s = 0.1,
                    .wait_reduce_s = 0.18,
                    .waits_in_norm_s = 0.15,
                    .waits_in_update_s = 0.1});
  }
  const RunFigures run = run_figures(std::move(data));
  REQUIRE(run.split.size() == 1);
  const auto part = [&](Part of) { return run.split[0].parts[static_cast<std::size_t>(of)]; };
  CHECK(part(Part::norm) == Approx(0.05));
  CHECK(part(Part::update) == Approx(0.1));
  CHECK(part(Part::gather) == Approx(0.1));
  CHECK(part(Part::reduce) == Approx(0.18));
  CHECK(part(Part::compute) == Approx(0.57));  // 0.03 of the waits lie in forward and backward
  // Without ZeRO both waits are for gradients.
  const std::vector<Advice> advice = advise(run, {});
  REQUIRE(advice.size() == 1);
  CHECK(advice[0].id == "exposed-reduce");
  CHECK(advice[0].share == Approx(0.28));
}

TEST_CASE("advice about waits for samples knows image files") {
  RunFigures run;
  run.data.ranks.emplace_back().rows.resize(50, {.step_s = 1, .data_wait_s = 0.5});
  const auto change = [&](std::map<std::string, std::string> settings) {
    run.data.settings.assign(settings.begin(), settings.end());
    const std::vector<Advice> advice = advise(run, {});
    REQUIRE(advice.size() == 1);
    REQUIRE(advice[0].id == "data-wait");
    return advice[0].change;
  };
  const auto says = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  CHECK(says(change({{"data.name", "squad"}}), "pack short texts"));
  CHECK(!says(change({{"data.name", "food101"}}), "decode"));  // no GPU
  run.gpus = {{.index = 0, .name = {}}};
  CHECK(says(change({{"data.name", "food101"}, {"data.decode", "auto"}}), "data.decode: gpu"));
  CHECK(!says(change({{"data.name", "food101"}, {"data.decode", "gpu"}}), "decode"));
  CHECK(!says(change({{"data.name", "images"}, {"data.pack", "pixels"}}), "decode"));
  CHECK(!says(change({{"data.name", "digits"}}), "decode"));
}

TEST_CASE("a prediction is asked for the run and for the change") {
  const TempDir folder;
  std::vector<std::vector<std::string>> asked;
  const Report report =
      report_of({{.gather = [](int) { return 0.01; }}}, folder,
                [&](const RunFigures&, const std::vector<std::string>& overrides) {
                  asked.push_back(overrides);
                  return std::optional(overrides.empty() ? 0.2 : 0.15);
                });
  REQUIRE(report.runs[0].advice.size() == 1);
  CHECK(report.runs[0].advice[0].predicted_change == Approx(-0.25));
  CHECK(asked == std::vector<std::vector<std::string>>{{}, {"parallel.zero.stage=0"}});
  CHECK(document_text(make_document(report, false)).find("predicted: a step 25 % shorter") !=
        std::string::npos);
}

TEST_CASE("advice that the plan sees no gain in says so") {
  const TempDir folder;
  const Report report = report_of({{.gather = [](int) { return 0.01; }}}, folder,
                                  [](const RunFigures&, const std::vector<std::string>& overrides) {
                                    return std::optional(overrides.empty() ? 0.2 : 0.21);
                                  });
  CHECK(document_markdown(make_document(report, false)).find("the plan predicts no gain") !=
        std::string::npos);
}

std::string verdict(const std::vector<MadeRun>& runs) {
  const TempDir folder;
  const Report report = report_of(runs, folder);
  REQUIRE(report.variants.size() == 2);
  return report.variants[1].verdict;
}

TEST_CASE("a variant is faster only if the interval, the gain and the loss say so") {
  const MadeRun base = {};
  const auto test = [](double step_s, double loss = 2) {
    return MadeRun{.step_s = step_s, .loss = loss, .recipe = "memory: { recompute: blocks }\n"};
  };
  CHECK(verdict({base, test(0.05)}) == "one run each: drift of the machine not covered");
  CHECK(verdict({base, test(0.05), test(0.05), base}) == "2 runs each: too few for an interval");
  CHECK(verdict({base, test(0.05), test(0.051), base, base, test(0.052)}) == "faster");
  CHECK(verdict({base, test(0.2), test(0.21), base, base, test(0.2)}) == "slower");
  CHECK(verdict({base, test(0.0995), test(0.0996), base, base, test(0.0995)}) ==
        "no difference shown");
  CHECK(verdict({base, test(0.05), test(0.15), base, base, test(0.08)}) == "no difference shown");
  CHECK(verdict({base, test(0.05, 2.1), test(0.05, 2.1), base, base, test(0.05, 2.1)})
            .starts_with("loss parity failed"));
}

TEST_CASE("figures that no run can measure leave the rest of a report as it is") {
  const TempDir folder;
  const auto path = folder / "run";
  MadeRun{.ranks = 1}.write(path);
  for (const std::string number : {"1e308", "-1e308", "1e101"}) {
    CAPTURE(number);
    const auto far = [&](const std::string& line) {
      std::string text = line;
      for (auto at = text.find('#'); at != std::string::npos; at = text.find('#'))
        text.replace(at, 1, number);
      return text;
    };
    for (int step = 102; step < 110; ++step) {
      test::spit(path / "metrics.jsonl",
                 test::slurp(path / "metrics.jsonl") + R"({"kind":"step","step":)" +
                     std::to_string(step) +
                     far(R"(,"loss":#,"lr":#,"step_s":#,"samples_per_s":#})") + "\n");
    }
    test::spit(path / "ranks/rank0000.jsonl",
               test::slurp(path / "ranks/rank0000.jsonl") +
                   far(R"({"step":102,"step_s":#,"forward_s":#,"calls":{"x":[#,#]}})") + "\n");
    const Report report = make_report({read_run(path)}, {});
    CHECK(report.runs[0].figures.value("step_s") == Approx(0.1));
    for (const bool html : {false, true}) {
      const Document document = make_document(report, html);
      CHECK(document_html(document).size() + document_text(document).size() > 1000);
    }
    CHECK(report_json(report).find("\"step_s\"") != std::string::npos);
  }
}

TEST_CASE("what is broken or missing in a run is named and the rest is read") {
  const TempDir folder;
  const auto path = folder / "run";
  MadeRun{.ranks = 3}.write(path);
  std::string metrics = test::slurp(path / "metrics.jsonl");
  test::spit(path / "metrics.jsonl",
             metrics +
                 R"({"kind":"step","step":101,"loss":"nan","step_s":"inf","samples_per_s":null})"
                 "\n"
                 "[1,2]\n\xff\xfe\n{\"kind\":\"step\",\"step\":1e400}\n{\"kind\":\"step\",\"st");
  std::filesystem::remove(path / "ranks/rank0001.jsonl");
  test::spit(path / "ranks/rank0007.jsonl", "{}\n");
  test::spit(path / "ranks/rank0002.jsonl", R"({"step":3,"step_s":"nan"})"
                                            "\n"
                                            R"({"step":-1,"step_s":1})"
                                            "\n");
  test::spit(path / "plan.json", "{\"memory\":");
  test::spit(path / "gpu.csv",
             "timestamp, index, name, memory.used [MiB], memory.total [MiB]\n"
             "2025/05/22 09:42:33.587, 0, Tesla V100-SXM2-32GB, 1, 32768\n2025/05/22 09:42:34");
  const Report report = make_report({read_run(path)}, {});
  const RunFigures& run = report.runs[0];
  CHECK(run.data.steps.size() == 101);
  CHECK(run.figures.value("not_finite") == 1);
  CHECK(run.figures.value("step_s") == Approx(0.1));
  CHECK(run.data.ranks.size() == 1);
  REQUIRE(run.gpus.size() == 1);
  CHECK(run.gpus[0].peak_mib == 1);
  const std::string text = document_text(make_document(report, false));
  CAPTURE(text);
  CHECK(text.find("metrics.jsonl: 4 of 105 lines left out") != std::string::npos);
  CHECK(text.find("no timings of rank 1") != std::string::npos);
  CHECK(text.find("ranks/rank0007.jsonl: left out: the run has 3 ranks") != std::string::npos);
  CHECK(text.find("ranks/rank0002.jsonl: 2 of 2 lines left out") != std::string::npos);
  CHECK(text.find("plan.json") != std::string::npos);
  CHECK(text.find("gpu.csv: 1 lines left out") != std::string::npos);
  CHECK_FALSE(document_html(make_document(report, true)).empty());
  CHECK(nlohmann::json::parse(report_json(report))["runs"][0]["not_finite"] == 1);

  const TempDir empty;
  CHECK_THROWS_AS(read_run(empty.path()), Error);
}

TEST_CASE("a hostile name does nothing in any format") {
  const std::string name = "<img src=x onerror=alert(1)>|`*\x1b[31m\n# x";
  CHECK(escape_html("<a href=\"x\" title='y'>&") ==
        "&lt;a href=&quot;x&quot; title=&#39;y&#39;&gt;&amp;");
  Document document = {.title = name, .lead = name, .sections = {{.title = name, .blocks = {}}}};
  document.sections[0].blocks = {Paragraph{name}, List{{name}}, Table{{name}, {{{name, name, 1}}}},
                                 Bars{name, {{name, 1}}}};
  const std::string html = document_html(document);
  CHECK(html.find("<img") == std::string::npos);
  CHECK(html.find('\x1b') == std::string::npos);
  const std::string markdown = document_markdown(document);
  CHECK(markdown.find("<img") == std::string::npos);
  CHECK(markdown.find("\n# x") == std::string::npos);
  CHECK(markdown.find('\x1b') == std::string::npos);
  CHECK(document_text(document).find('\x1b') == std::string::npos);
}

TEST_CASE("the ticks of an axis are round and cover it") {
  for (const auto& [low, high] :
       {std::pair(0.0, 1.0), {3.0, 3.7}, {-5.0, 1234.0}, {1e-9, 3e-9}, {-2e6, -1e6}}) {
    const std::vector<double> ticks = axis_ticks(low, high, 5);
    CHECK(ticks.size() >= 3);
    CHECK(ticks.size() <= 12);
    CHECK(ticks.front() <= low + 1e-12);
    CHECK(ticks.back() >= high - (high - low) * 1e-9);
  }
}

TEST_CASE("an axis over numbers that have no round ones near has its ends for ticks") {
  CHECK(axis_ticks(0, 5e-324, 5) == std::vector<double>{0, 5e-324});
  CHECK(axis_ticks(-1.7e308, 1.7e308, 5) == std::vector<double>{-1.7e308, 1.7e308});
  CHECK(axis_ticks(2, 2, 5) == std::vector<double>{2});
}

TEST_CASE("Markdown is that of test/golden/report") {
  const TempDir folder;
  Report report = report_of({{.gather = [](int rank) { return rank == 0 ? 0.01 : 0.02; }},
                             {.step_s = 0.08, .recipe = "memory: { recompute: blocks }\n"}},
                            folder);
  for (RunFigures& run : report.runs) run.data.path = run.label;
  const std::string text = document_markdown(make_document(report, false));
  const std::filesystem::path golden = "test/golden/report/two_runs.md";
  if (std::getenv("DSTRAIN_UPDATE_GOLDEN") != nullptr) {
    std::filesystem::create_directories(golden.parent_path());
    test::spit(golden, text);
  }
  CHECK(text == test::slurp(golden));
}

}  // namespace
}  // namespace dstrain::report
