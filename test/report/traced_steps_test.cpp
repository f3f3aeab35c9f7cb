#include "engine/report/traced_steps.h"

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "engine/report/document.h"
#include "engine/trace/merge.h"
#include "engine/trace/trace_files.h"
#include "test/report/made_run.h"
#include "test/report/made_traces.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain::report {
namespace {

using test::MadeRun;
using test::MadeTraces;
using test::TempDir;

std::filesystem::path write_run(const TempDir& folder, const MadeRun& run = {}) {
  const auto path = folder / "run0";
  run.write(path);
  return path;
}

Report report_of(const std::filesystem::path& path, const PredictStep& predict = {}) {
  return make_report({read_run(path)}, predict);
}

const Advice* find_advice(const RunFigures& run, const std::string& id) {
  for (const Advice& advice : run.advice) {
    if (advice.id == id) return &advice;
  }
  return nullptr;
}

std::string problems(const RunData& run) {
  std::string all;
  for (const Problem& problem : run.problems) all += problem.file + ": " + problem.what + "\n";
  return all;
}

TEST_CASE("the figures of traced steps are in every format") {
  const TempDir folder;
  const auto path = write_run(folder);
  MadeTraces{}.write(path / "traces");
  Report report = report_of(path);
  const RunFigures& run = report.runs.at(0);
  CHECK(problems(run.data).empty());
  REQUIRE(run.data.traced);
  CHECK(run.data.traced->first_step == 4);
  CHECK(run.data.traced->last_step == 5);
  CHECK(run.data.timeline.step == 5);
  REQUIRE(run.data.traced->analysis.ranks.size() == 2);
  const trace::Breakdown& time = run.data.traced->analysis.ranks[0].all;
  CHECK(time.window == 19'000'000);
  CHECK(time.busy == 18'000'000);
  CHECK(time.compute == 10'000'000);
  CHECK(time.exposed_communication() == 8'000'000);

  const auto json = nlohmann::json::parse(report_json(report))["runs"][0]["traced"];
  CHECK(json["ranks"][1]["breakdown"]["compute_ns"] == 14'000'000);
  CHECK(json["collectives"]["rows"][0]["bus_bytes_per_s"] == Approx(4194304 / 0.002));
  CHECK(json["collectives"]["stragglers"][0]["cause"] == "compute");
  // The host comes to step 5 when the device has been idle for 1 ms.
  CHECK(json["path_kinds"][0]["kind"] == "(host)");
  CHECK(json["path_kinds"][0]["ns"] == 9'997'000);
  CHECK(json["path_kinds"][1]["kind"] == "forward");
  CHECK(json["path_kinds"][1]["ns"] == 6'000'000);
  CHECK(json["memory_steps"][1]["allocated_bytes"] == 501 << 20);
  CHECK(json["memory_steps"][1]["rank"] == 1);
  CHECK(json["memory_steps"][1]["planned_bytes"] == 500 << 20);

  const std::string html = document_html(make_document(report, true));
  CHECK(html.find("<h2>Traced steps</h2>") != std::string::npos);
  CHECK(html.find("data-figure=\"runs.0.traced.ranks.1.breakdown.compute_ns\" "
                  "data-value=\"14000000\"") != std::string::npos);
  CHECK(html.find("Time of the devices in traced steps") != std::string::npos);
  report.runs[0].data.path = "run0";
  const std::string text = document_markdown(make_document(report, false));
  const std::filesystem::path golden = "test/golden/report/traced.md";
  if (std::getenv("DSTRAIN_UPDATE_GOLDEN") != nullptr) test::spit(golden, text);
  CHECK(text == test::slurp(golden));
}

TEST_CASE("a terminal's table is cut where it may be, before it becomes blocks") {
  const std::string name = "void kernel<float, " + std::string(60, 'x') + ">";
  Document document = {
      .title = "t",
      .lead = "l",
      .sections = {{.title = "s",
                    .blocks = {Table{
                        .header = {"kernel", "time"}, .rows = {{{name}, {"12 ms"}}}, .cut = 0}}}}};
  CHECK(document_text(document, 40).find("\nvoid kernel<float, xxxxxxxxxxx...  12 ms\n") !=
        std::string::npos);
  CHECK(document_text(document, 20).find("    time: 12 ms\n") != std::string::npos);
  CHECK(document_markdown(document).find(std::string(60, 'x')) != std::string::npos);
}

TEST_CASE("a queue that is empty is the host's fault only if other steps agree") {
  const auto advice = [](std::int64_t idle_ns, double host_s, const std::string& recipe = {}) {
    const TempDir folder;
    const auto path = write_run(folder, {.recipe = recipe, .host_s = host_s});
    MadeTraces{.idle_ns = idle_ns}.write(path / "traces");
    int asked = 0;
    const Report report =
        report_of(path, [&](const RunFigures&, const std::vector<std::string>& overrides) {
          for (const std::string& change : overrides) asked += change.starts_with("batch.micro");
          return std::optional(0.1);
        });
    CHECK(asked == 0);
    const Advice* found = find_advice(report.runs[0], "host-bound");
    return found == nullptr ? std::nullopt : std::optional(*found);
  };
  const auto fired = advice(4'000'000, 0.08);
  REQUIRE(fired);
  CHECK(fired->finding ==
        "nothing is queued on the GPU in 18 % of the traced steps, and the host works 80 % of an "
        "untraced step");
  CHECK(fired->share == Approx(3'997.0 / 22'000).epsilon(1e-3));
  CHECK(fired->overrides.empty());  // 2 ranks x 32 are all of batch.global
  CHECK_FALSE(advice(1'000'000, 0.08));
  CHECK_FALSE(advice(4'000'000, 0.02));  // only the profiler made them slow
}

TEST_CASE("host-bound runs with room in batch.global get a larger batch.micro") {
  const TempDir folder;
  const auto path = write_run(folder, {.ranks = 1, .host_s = 0.08});
  MadeTraces{.idle_ns = 4'000'000}.write(path / "traces");
  std::filesystem::remove(path / "traces/rank1_trace.json");
  const Report report = report_of(path);
  const Advice* found = find_advice(report.runs[0], "host-bound");
  REQUIRE(found != nullptr);
  CHECK(found->overrides == std::vector<std::string>{"batch.micro=64"});
  CHECK(document_markdown(make_document(report, false)).find("; not predicted") !=
        std::string::npos);
}

TEST_CASE("calls of cudaMalloc behind step 3 are an advice with their steps") {
  const TempDir folder;
  const auto path = write_run(folder);
  MadeTraces{.grows = true}.write(path / "traces");
  const Report report = report_of(path);
  const Advice* found = find_advice(report.runs[0], "allocations");
  REQUIRE(found != nullptr);
  CHECK(found->finding ==
        "2 calls of cudaMalloc in step 5, each of which waits for the GPU; memory is fullest in "
        "forward(a), with 501.00 MiB");
  MadeTraces{}.write(path / "traces");
  const Report quiet = report_of(path);
  CHECK(find_advice(quiet.runs[0], "allocations") == nullptr);
}

TEST_CASE("a straggler's cause comes from the traces, its share from the timings") {
  const TempDir a;
  const auto timed = write_run(a, {.reduce = [](int rank) { return rank == 1 ? 0.0 : 0.04; }});
  MadeTraces{}.write(timed / "traces");
  const Report both = report_of(timed);
  const Advice* found = find_advice(both.runs[0], "straggler");
  REQUIRE(found != nullptr);
  CHECK(found->finding ==
        "rank 1 is last in 100 of 100 steps; the others wait 40 % of a step for it; cause in the "
        "traced steps: compute");
  CHECK(found->change.find("GPU") != std::string::npos);

  const TempDir b;
  const auto traced = write_run(b);
  MadeTraces{}.write(traced / "traces");
  const Report alone = report_of(traced);
  found = find_advice(alone.runs[0], "straggler");
  REQUIRE(found != nullptr);
  CHECK(found->finding ==
        "rank 1 came last to 2 of 2 traced collectives of data [0, 1]; the others waited 21 % of "
        "the window for it; cause: compute");
}

TEST_CASE("of several windows the last one that has traces is read") {
  const TempDir folder;
  const auto path = write_run(folder);
  MadeTraces{}.write(path / "traces/step-00000004");
  MadeTraces{.idle_ns = 3'000'000}.write(path / "traces/step-00000100");
  std::filesystem::create_directories(path / "traces/step-00000200");
  test::spit(path / "traces/step-00000200/rank0_trace.json.gz.part", "{");
  const RunData run = read_run(path);
  REQUIRE(run.traced);
  CHECK(run.traced->folder.filename() == "step-00000100");
  CHECK(run.traced->analysis.ranks[0].all.window == 21'000'000);
  CHECK(problems(run).empty());
}

TEST_CASE("a broken trace is named and the other ranks are analyzed") {
  const TempDir folder;
  const auto path = write_run(folder);
  MadeTraces{}.write(path / "traces");
  const std::string whole = test::slurp(path / "traces/rank1_trace.json");
  test::spit(path / "traces/rank1_trace.json", whole.substr(0, whole.size() / 2));
  RunData run = read_run(path);
  CAPTURE(problems(run));
  REQUIRE(run.traced);
  CHECK(run.traced->analysis.ranks.size() == 1);
  CHECK(problems(run).starts_with("traces/rank1_trace.json: "));
  CHECK(problems(run).find("left out of the traced steps") != std::string::npos);

  test::spit(path / "traces/rank0_trace.json", "no trace");
  run = read_run(path);
  CHECK_FALSE(run.traced);
  CHECK(run.problems.size() == 2);
  const Report report = make_report({std::move(run)}, {});
  CHECK(report.runs[0].figures.value("step_s") == Approx(0.1));
  CHECK(document_text(make_document(report, false)).find("traces/rank0_trace.json: ") !=
        std::string::npos);

  MadeTraces{}.write(path / "traces");
  test::spit(path / "traces/rank0_actions.json", "{\"actions\": 3}");
  run = read_run(path);
  CHECK_FALSE(run.traced);
  CHECK(problems(run).find("rank0_actions.json") != std::string::npos);
}

TEST_CASE("traces above 1 GiB together are left to dstrain trace analyze") {
  const TempDir folder;
  const auto path = write_run(folder);
  MadeTraces{}.write(path / "traces");
  std::filesystem::resize_file(path / "traces/rank1_trace.json", std::uintmax_t{1} << 30);
  const RunData run = read_run(path);
  CHECK_FALSE(run.traced);
  CHECK(run.timeline.events.empty());
  CHECK(problems(run).find("use dstrain trace analyze") != std::string::npos);
}

TEST_CASE("traces in trace.output are read if they name the run") {
  const TempDir folder;
  const auto elsewhere = folder / "profiles";
  const std::string recipe = fmt::format("trace: {{ steps: 2, output: {} }}\n", elsewhere.string());
  const auto path = write_run(folder, {.recipe = recipe});
  CHECK(problems(read_run(path)).find("no traces there") != std::string::npos);
  MadeTraces{}.write(elsewhere);
  CHECK(read_run(path).traced);
  CHECK(problems(read_run(path)).empty());
  MadeTraces{.run = "another"}.write(elsewhere);
  const RunData run = read_run(path);
  CHECK_FALSE(run.traced);
  CHECK(problems(run).find("is of the run another") != std::string::npos);

  const TempDir other;
  const RunData none = read_run(write_run(other, {.recipe = "trace: { steps: 2 }\n"}));
  CHECK(std::ranges::count(none.missing, "traces/rank0_trace.json") == 1);
}

TEST_CASE("the critical path over several hosts is that of the merged trace") {
  const TempDir folder;
  const auto path = write_run(folder);
  MadeTraces{.host_1 = "n1"}.write(path / "traces");
  test::spit(path / "clocks.jsonl",
             R"({"t_ns": 1700000000000000000, "host": "n1", "offset_ns": 0, "bound_ns": 1000})"
             "\n");
  RunData run = read_run(path);
  REQUIRE(run.traced);
  CHECK_FALSE(run.traced->analysis.path);
  REQUIRE(run.traced->analysis.notes.size() == 1);
  CHECK(run.traced->analysis.notes[0].starts_with("no critical path"));

  const std::vector<std::filesystem::path> sources = {path / "traces"};
  trace::MergeOptions options;
  options.output = path / "traces/merged_trace.json";
  (void)trace::merge_traces(trace::find_rank_traces(sources), options);
  run = read_run(path);
  CAPTURE(problems(run));
  REQUIRE(run.traced);
  REQUIRE(run.traced->analysis.path);
  CHECK(run.traced->analysis.ranks.size() == 2);
  test::spit(path / "traces/merged_trace.json", "{");
  run = read_run(path);
  REQUIRE(run.traced);
  CHECK_FALSE(run.traced->analysis.path);
  CHECK(problems(run).starts_with("traces/merged_trace.json: "));
}

TEST_CASE("CPU and memory of all hosts and the offsets of their clocks are told") {
  const TempDir folder;
  const auto path = write_run(folder);
  const std::string header = "# Elapsed time   CPU (%)     Real (MB)   Virtual (MB)\n";
  // The first sample of a start has nothing to be measured against.
  test::spit(path / "cpu.txt",
             header + "0.5 0 1000 2000\n1.5 100 2000 3000\n0.1 0 2000 3000\n1.1 300 3000 4000\n");
  test::spit(path / "cpu-n2.txt", header + "0.5 0 500 900\n1.5 50 500 900\n");
  test::spit(path / "memory-n2.csv",
             "timestamp, index, name, memory.used [MiB], memory.total [MiB]\n"
             "2025/05/22 09:42:33.587, 0, NVIDIA H100, 700, 81559\n"
             "2025/05/22 09:42:33.587, 1, NVIDIA H100, 900, 81559\n");
  test::spit(path / "clocks.jsonl",
             R"({"t_ns": 2, "host": "n2", "offset_ns": -1200, "bound_ns": 80000})"
             "\n"
             R"({"t_ns": 3, "host": "n2", "offset_ns": -1500, "bound_ns": 70000})"
             "\n"
             R"({"t_ns": 3, "host": "n2"})"
             "\n");
  const Report report = report_of(path);
  const RunFigures& run = report.runs[0];
  REQUIRE(run.hosts.size() == 2);
  CHECK(run.hosts[0].host == "first host");
  CHECK(run.hosts[0].cpu_mean == 200);
  CHECK(run.hosts[0].cpu_peak == 300);
  CHECK(run.hosts[0].memory_peak_mib == 3000);
  CHECK(run.hosts[1].host == "n2");
  CHECK(run.hosts[1].cpu_peak == 50);
  CHECK(run.hosts[1].gpu_peak_mib == 900);
  REQUIRE(run.data.clocks.size() == 1);
  CHECK(run.data.clocks[0].offset_ns == -1500);
  CHECK(problems(run.data).find("clocks.jsonl: 1 of 3 lines left out") != std::string::npos);
  const auto json = nlohmann::json::parse(report_json(report))["runs"][0];
  CHECK(json["hosts"][0]["cpu_mean_percent"] == 200);
  CHECK(json["clocks"][0]["bound_ns"] == 70000);
  const std::string text = document_text(make_document(report, false));
  CAPTURE(text);
  CHECK(text.find("first host  200 %     300 %     2000 MiB     3000 MiB") != std::string::npos);
  CHECK(text.find("-1.50 us") != std::string::npos);
  const std::string html = document_html(make_document(report, true));
  CHECK(html.find("CPU of all ranks of a host over time") != std::string::npos);
}

}  // namespace
}  // namespace dstrain::report
