#include "engine/report/goodput.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>

#include "engine/report/document.h"
#include "test/report/made_run.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain::report {
namespace {

/// Writes events.jsonl: seconds from the begin, kind, step, further members as JSON.
class MadeEvents {
 public:
  MadeEvents& at(double seconds, const char* kind, int step, const std::string& more = "") {
    constexpr std::time_t kBegin = 1'700'000'000;
    const std::time_t time = kBegin + static_cast<std::time_t>(seconds);
    std::tm utc{};
    ::gmtime_r(&time, &utc);
    std::array<char, 32> text{};
    (void)std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
    lines_ += fmt::format(R"({{"kind":"{}","step":{},"time":"{}"{}{}}})", kind, step, text.data(),
                          more.empty() ? "" : ",", more) +
              "\n";
    return *this;
  }
  [[nodiscard]] const std::string& lines() const { return lines_; }

 private:
  std::string lines_;
};

RunData run_with(const test::TempDir& folder, const test::MadeRun& made, const MadeEvents& events) {
  const auto path = folder / "run";
  made.write(path);
  test::spit(path / "events.jsonl", events.lines());
  return read_run(path);
}

double seconds_of(const Goodput& goodput, std::string_view what) {
  for (const GoodputRow& row : goodput.rows) {
    if (row.what == what) return row.seconds;
  }
  FAIL("no row " << what);
  return 0;
}

/// Three starts: 100 s to the first step each; the first dies 50 s after its last checkpoint, the
/// second is lost with its host, the third ends.
MadeEvents three_starts() {
  MadeEvents events;
  events.at(0, "launched", 0, R"("start":0,"hosts":4,"ranks":8)")
      .at(90, "started", 0)
      .at(101, "first_step", 0, R"("load":"12.5","meet":"70.0")")
      .at(1101, "checkpoint_saved", 1000, R"("path":"x","stall_s":"2.000")")
      .at(1153, "failed", 1050, R"("failure":"signal","host":"h2","rank":5,"exit_code":137)")
      .at(1163, "launched", 1050)
      .at(1250, "resumed", 1000)
      .at(1264, "first_step", 1000)
      .at(1600, "replicas_equal", 1400, R"("what":"weights")")
      .at(1763, "checkpoint_saved", 1500, R"("path":"x","stall_s":"1.000")")
      .at(1765, "replicas_differ", 1505, R"("what":"weights","who":"rank 1 on h2")")
      .at(1770, "failed", 1506, R"("failure":"host","host":"h2","rank":-1,"exit_code":75)")
      .at(2370, "launched", 1506)
      .at(2460, "resumed", 1500)
      .at(2471, "first_step", 1500)
      .at(2980, "finished", 2000);
  return events;
}

}  // namespace

TEST_CASE("the wall time of a run with stops is split into rows that add up to it") {
  const test::TempDir folder;
  const RunData run = run_with(folder, {.steps = 2000, .ranks = 1, .step_s = 1.0}, three_starts());
  const auto goodput = goodput_of(run);
  REQUIRE(goodput);
  CHECK(run.problems.empty());
  CHECK(goodput->wall_s == Approx(2980));
  double sum = 0;
  for (const GoodputRow& row : goodput->rows) sum += row.seconds;
  CHECK(sum == Approx(2980).epsilon(0.01));
  CHECK(seconds_of(*goodput, "steps that count") == Approx(2000));
  CHECK(seconds_of(*goodput, "steps done again") == Approx(56));
  CHECK(seconds_of(*goodput, "starts") == Approx(100 + 100 + 100));
  CHECK(seconds_of(*goodput, "saves") == Approx(3));
  CHECK(seconds_of(*goodput, "down") == Approx(10 + 600));
  CHECK(seconds_of(*goodput, "other") == Approx(2980 - 2000 - 56 - 300 - 3 - 610));
  CHECK(goodput->share == Approx(2000.0 / 2980));
  CHECK(goodput->starts == 3);
  REQUIRE(goodput->stops.size() == 2);
  const Stop& first = goodput->stops[0];
  CHECK(first.kind == "signal");
  CHECK(first.host == "h2");
  CHECK(first.rank == 5);
  CHECK(first.lost_steps == 50);
  CHECK(first.down_s == Approx(1264 - 1153));
  CHECK(goodput->stops[1].kind == "host");
  CHECK(goodput->stops[1].rank == -1);
  CHECK(goodput->stops[1].lost_steps == 6);
  CHECK(goodput->twice == std::vector<std::string>{"h2"});
  CHECK(goodput->between_s == Approx((1153 + 607 + 610) / 2.0));
  // Two stops: chi-squared with 6 and 4 degrees is 12.59 and 0.711 (tables).
  CHECK(goodput->between_low_s == Approx(2 * 2370 / 12.592).epsilon(0.01));
  CHECK(goodput->between_high_s == Approx(2 * 2370 / 0.7107).epsilon(0.05));
}

TEST_CASE("a report says goodput and stops in words and in JSON") {
  const test::TempDir folder;
  std::vector<RunData> runs;
  runs.push_back(run_with(folder, {.steps = 2000, .ranks = 1, .step_s = 1.0}, three_starts()));
  const Report report = make_report(std::move(runs), {});
  const std::string text = document_text(make_document(report, false));
  CAPTURE(text);
  CHECK_THAT(text, Catch::Contains("Goodput 67 %"));
  CHECK_THAT(text, Catch::Contains("starts, 2 stops"));
  CHECK_THAT(text, Catch::Contains("Stopped the job twice or more: h2."));
  CHECK_THAT(text, Catch::Contains("stops by class"));
  CHECK_THAT(text, Catch::Contains("several hold 2 times, and differed 1 time."));
  const auto json = nlohmann::json::parse(report_json(report))["runs"][0]["goodput"];
  CHECK(json["share"].get<double>() == Approx(2000.0 / 2980));
  CHECK(json["stops"].size() == 2);
  CHECK(json["replicas_compared"] == 2);
  CHECK(json["replicas_differed"] == 1);
  CHECK(json["stops"][1]["rank"].is_null());
  CHECK(json["rows"][1]["what"] == "steps done again");
}

TEST_CASE("a start that leaves no word is a stop, and one that goes back costs what it goes back") {
  const test::TempDir folder;
  MadeEvents events;
  events.at(0, "started", 0)
      .at(10, "first_step", 0, R"("load":"5.000","meet":"4.000")")
      .at(60, "checkpoint_saved", 50)
      .at(100, "checkpoint_saved", 90)
      .at(200, "resumed", 90)
      .at(210, "first_step", 90)
      .at(220, "failed", 99, R"("failure":"exit","host":"h1","rank":0)")
      .at(300, "launched", 99)
      .at(305, "resumed", 50)  // the checkpoint of step 90 was broken
      .at(310, "first_step", 50)
      .at(360, "finished", 100);
  const auto goodput =
      goodput_of(run_with(folder, {.steps = 100, .ranks = 1, .step_s = 1.0}, events));
  REQUIRE(goodput);
  CHECK(goodput->wall_s == Approx(360));
  REQUIRE(goodput->stops.size() == 2);
  CHECK(goodput->stops[0].kind == "no word of its end");
  CHECK(goodput->stops[0].lost_steps == 40);
  CHECK(goodput->stops[1].kind == "exit");
  CHECK(goodput->stops[1].lost_steps == 9);
  CHECK(seconds_of(*goodput, "steps that count") == Approx(100));
  CHECK(seconds_of(*goodput, "steps done again") == Approx(40 + 9).margin(2));
}

TEST_CASE("a run that is asked to stop and goes on has no stop") {
  const test::TempDir folder;
  MadeEvents events;
  events.at(0, "launched", 0)
      .at(5, "started", 0)
      .at(10, "first_step", 0)
      .at(60, "stopped", 50)
      .at(1060, "launched", 0)
      .at(1065, "resumed", 50)
      .at(1070, "first_step", 50)
      .at(1120, "finished", 100);
  const auto goodput =
      goodput_of(run_with(folder, {.steps = 100, .ranks = 1, .step_s = 1.0}, events));
  REQUIRE(goodput);
  CHECK(goodput->stops.empty());
  CHECK_FALSE(std::isfinite(goodput->between_s));
  CHECK(seconds_of(*goodput, "down") == Approx(1000));
  CHECK(goodput->wall_s == Approx(1120));
}

TEST_CASE("events without a first step, with wrong times or texts for numbers tell nothing") {
  const test::TempDir folder;
  MadeEvents none;
  none.at(0, "started", 0);
  CHECK_FALSE(goodput_of(run_with(folder, {.steps = 5, .ranks = 1}, none)));
  RunData run;
  for (const char* time : {"", "yesterday", "2026-11-23T02:42:20", "9999999999-01-01T00:00:00Z"})
    run.events.push_back({.kind = "first_step", .step = 0, .time = time});
  CHECK_FALSE(goodput_of(run));
  run.events = {{.kind = "started", .step = 0, .time = "2026-11-23T02:42:20Z"},
                {.kind = "first_step",
                 .step = 0,
                 .time = "2026-11-23T02:42:25Z",
                 .fields = {{"load", "nan"}, {"meet", -1e300}, {"x", nullptr}}},
                {.kind = "failed",
                 .step = 3,
                 .time = "2026-11-23T02:42:30Z",
                 .fields = {{"failure", 3}, {"rank", "x"}, {"host", nullptr}}}};
  const auto goodput = goodput_of(run);
  REQUIRE(goodput);
  REQUIRE(goodput->stops.size() == 1);
  CHECK(goodput->stops[0].rank == -1);
  CHECK(goodput->wall_s == Approx(10));
}

}  // namespace dstrain::report
