/// What stands in a report: evaluations, what is compared with what, durations, names, odd numbers.
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/report/document.h"
#include "engine/report/kernel_name.h"
#include "engine/report/svg.h"
#include "test/report/made_run.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain::report {
namespace {

using Catch::Matchers::Contains;
using test::MadeRun;
using test::TempDir;

Report two_reports(const TempDir& folder, const MadeRun& base, const MadeRun& other,
                   const std::string& from = "", const std::string& to = "") {
  std::vector<RunData> data;
  for (const MadeRun& run : {base, other}) {
    const auto path = folder / fmt::format("run{}", data.size());
    run.write(path);
    if (!data.empty() && !from.empty()) {
      std::string recipe = test::slurp(path / "recipe.yaml");
      REQUIRE(recipe.find(from) != std::string::npos);
      test::spit(path / "recipe.yaml", recipe.replace(recipe.find(from), from.size(), to));
    }
    data.push_back(read_run(path));
    CHECK(data.back().problems.empty());
  }
  return make_report(std::move(data), {});
}

std::string all_formats(const Report& report) {
  return document_text(make_document(report, false)) +
         document_markdown(make_document(report, false)) +
         document_html(make_document(report, true)) + report_json(report);
}

TEST_CASE("each evaluation is told, beside the training loss before it") {
  const TempDir folder;
  const auto path = folder / "run";
  MadeRun{.steps = 20}.write(path);
  std::string metrics = test::slurp(path / "metrics.jsonl");
  for (const int step : {10, 20})
    metrics += fmt::format(
        R"({{"kind":"evaluation","step":{},"epoch":{},"loss":{},"accuracy":0.{},"top5":null,)"
        R"("samples":300,"seconds":1.5}})"
        "\n",
        step, step / 10, 3.0 - step / 10, step);
  metrics += R"({"kind":"step","step":15,"loss":7,"samples_per_s":640,"step_s":0.1})"
             "\n";
  test::spit(path / "metrics.jsonl", metrics);
  const Report report = make_report({read_run(path)}, {});
  const std::string text = document_text(make_document(report, false));
  CAPTURE(text);
  CHECK_THAT(text, Contains("Evaluations\n-----------\n"));
  CHECK_THAT(text, Contains("after step  epoch  training loss before  loss  accuracy  took"));
  CHECK_THAT(text, Contains("10          1      2                     2     10 %      1.50 s  200"));
  CHECK_THAT(text, Contains("20          2      2.5                   1     20 %      1.50 s  200"));
  CHECK(text.find("top 5") == std::string::npos);
  const auto rows = nlohmann::json::parse(report_json(report))["runs"][0]["evaluations"];
  REQUIRE(rows.size() == 2);
  CHECK(rows[1]["training_loss"] == 2.5);
  CHECK(rows[1]["top5"].is_null());
}

TEST_CASE("runs of another model, or of other samples, are not compared") {
  struct Other {
    std::string from, to, words;
  };
  for (const Other& other : {Other{"layers: 4", "layers: 2", "model.layers"},
                             Other{"width: 128", "width: 256", "model.width"},
                             Other{"name: digits", "name: cifar10, path: /data", "data.name"}}) {
    CAPTURE(other.to);
    const TempDir folder;
    const Report report = two_reports(folder, {}, {.step_s = 0.05}, other.from, other.to);
    REQUIRE(report.variants.size() == 2);
    const Variant& variant = report.variants[1];
    CHECK(variant.verdict == "not compared: another " + other.words);
    CHECK(std::isnan(variant.speed.value));
    CHECK_FALSE(variant.parity.known);
    CHECK(variant.samples_per_s == Approx(1280));
    const std::string text = document_text(make_document(report, false));
    CHECK_THAT(text, Contains("not compared: another " + other.words + "."));
    CHECK(text.find("x beside the baseline") == std::string::npos);
    CHECK(nlohmann::json::parse(report_json(report))["variants"][1]["speed"].is_null());
  }
  // The same model and samples, and data of another place: the speed alone.
  const TempDir folder;
  const Report moved = two_reports(folder, {}, {.step_s = 0.05, .loss = 3}, "name: digits",
                                   "name: digits, workers: 3");
  REQUIRE(moved.variants.size() == 2);
  CHECK_THAT(moved.variants[1].verdict, Contains("loss parity failed"));
  const TempDir elsewhere;
  const Report subset = two_reports(elsewhere, {}, {.step_s = 0.05, .loss = 3}, "name: digits",
                                    "name: digits, subset: 100");
  REQUIRE(subset.variants.size() == 2);
  CHECK(subset.variants[1].speed.value == Approx(2));
  CHECK_FALSE(subset.variants[1].parity.known);
}

TEST_CASE("numbers that no step has are left out by name, and end no report") {
  for (const char* number : {"1e308", "1.7e308", "-1e308", "5e-324", "1e19", "-1", "\"inf\"",
                             "\"nan\"", "null", "99999999999999999999999999"}) {
    CAPTURE(number);
    const TempDir folder;
    const auto path = folder / "run";
    MadeRun{.steps = 40}.write(path);
    for (const char* file : {"metrics.jsonl", "ranks/rank0000.jsonl"}) {
      std::string text = test::slurp(path / file);
      for (const char* key : {"step_s", "samples_per_s", "loss", "memory_bytes", "forward_s",
                              "backward_s", "norm_s", "gather", "exposed_comm_s", "peak"}) {
        const std::string name = fmt::format("\"{}\":", key);
        for (std::size_t at = text.find(name); at != std::string::npos; at = text.find(name, at)) {
          at += name.size();
          text.replace(at, text.find_first_of(",}", at) - at, number);
        }
      }
      test::spit(path / file, text);
    }
    const Report report = make_report({read_run(path)}, {});
    std::string all;
    REQUIRE_NOTHROW(all = all_formats(report));
    CHECK(all.find(" nan") == std::string::npos);
    CHECK_THAT(all, !Contains("-inf"));
    if (std::string_view(number) == "1e308")
      CHECK_THAT(all, Contains("ranks/rank0000.jsonl: 40 of 40 lines left out"));
  }
}

TEST_CASE("tables say whether they show means or medians") {
  const TempDir folder;
  const auto path = folder / "run";
  MadeRun{}.write(path);
  const Report report = make_report({read_run(path)}, {});
  const std::string html = document_html(make_document(report, true));
  for (const char* words : {">step, median<", ">samples/s, median<", ">step, mean<"})
    CHECK_THAT(html, Contains(words));
  CHECK_THAT(document_text(make_document(report, false)), Contains("step, median"));
}

TEST_CASE("kernels have their short names, and their whole ones at the pointer") {
  CHECK(kernel_words("void at::native::vectorized_elementwise_kernel<4, "
                     "at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int, "
                     "at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)") ==
        "vectorized_elementwise_kernel<4, CUDAFunctor_add<float>, array<char*, 3ul> >");
  CHECK(kernel_words("void dstrain::(anonymous namespace)::rms_norm_kernel(dstrain::RmsNorm)") ==
        "rms_norm_kernel");
  CHECK(kernel_words("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)") ==
        "ncclDevKernel_AllGather_RING_LL");
  for (const char* same : {"Memcpy HtoD (Pinned -> Device)", "nvjet_tst_128x64_64x8_NNT", "", "()",
                           "::", "a::b::", "f)", "(f", "<<<"})
    CHECK_FALSE(kernel_words(same).size() > std::string_view(same).size());
  CHECK(kernel_words("Memcpy HtoD (Pinned -> Device)") == "Memcpy HtoD (Pinned -> Device)");
  CHECK(without_middle("0123456789abcdef", 10) == "01234...ef");
  CHECK(without_middle("0123456789", 10) == "0123456789");
  Document document = {.title = "t", .lead = "l", .sections = {{.title = "s", .blocks = {}}}};
  document.sections[0].blocks = {
      Table{{"kernel"}, {{{.text = "f<...>", .whole = "void f<\"int\">()"}}}}};
  CHECK_THAT(document_html(document),
             Contains("<td title=\"void f&lt;&quot;int&quot;&gt;()\">f&lt;...&gt;</td>"));
}

TEST_CASE("durations are drawn for one value, many and none") {
  CHECK(draw_durations({}).empty());
  DurationChart chart = {.title = "t", .description = "d", .rows = {}};
  chart.rows.push_back({.name = "one",
                        .from_s = 1e-5,
                        .to_s = 1e-5,
                        .counts = {3},
                        .quantiles_s = {1e-5, 1e-5, 1e-5, 1e-5, 1e-5}});
  chart.rows.push_back({.name = "many",
                        .from_s = 1e-9,
                        .to_s = 200,
                        .counts = std::vector<std::int64_t>(24, 7),
                        .quantiles_s = {1e-9, 1e-6, 1e-3, 1, 100}});
  chart.rows.push_back({.name = "zero", .from_s = 1e-9, .to_s = 1e-9, .counts = {1}});
  const std::string svg = draw_durations(chart);
  CHECK_THAT(svg, Contains(">3 of 3 took 10.0 us to 10.0 us<"));
  CHECK_THAT(svg, Contains("median 1.00 ms"));
  CHECK(svg.find("nan") == std::string::npos);
  CHECK(svg.find("inf") == std::string::npos);
}

}  // namespace
}  // namespace dstrain::report
