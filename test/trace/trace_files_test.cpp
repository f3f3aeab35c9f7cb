#include "engine/trace/trace_files.h"

#include <sys/stat.h>
#include <zstd.h>

#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/trace/analysis.h"
#include "test/support/catch.h"
#include "test/support/files.h"
#include "test/support/temp_dir.h"
#include "test/trace/made_trace.h"

using namespace dstrain;
using namespace dstrain::trace;
using dstrain::test::MadeTrace;
using dstrain::test::slurp;
using dstrain::test::spit;
using dstrain::test::TempDir;

namespace {

namespace fs = std::filesystem;

std::string made_text(int rank, int num_ranks = 1, const std::string& run = "made") {
  MadeTrace made(rank, num_ranks, "n0", run);
  made.kernel("k", 7, 1000, 500, 1);
  return made.text();
}

TracePaths find(const std::vector<fs::path>& sources, TraceUse use) {
  return find_traces(sources, use);
}

std::string refusal(const fs::path& source, TraceUse use) {
  try {
    (void)find({source}, use);
  } catch (const Error& error) {
    return std::string(error.what()) + " / " + error.hint();
  }
  return "";
}

}  // namespace

TEST_CASE("of a folder count the traces of ranks, else the merged one to analyze", "[trace]") {
  const TempDir dir;
  spit(dir / "merged_trace.json", made_text(0));
  REQUIRE(find({dir.path()}, TraceUse::analyze).files == std::vector{dir / "merged_trace.json"});
  REQUIRE(refusal(dir.path(), TraceUse::merge).find("no trace in") != std::string::npos);

  spit(dir / "rank1_trace.json.zst", "");
  spit(dir / "rank0_trace.json", made_text(0));
  spit(dir / "rank0_actions.json", "{}");
  spit(dir / "rank2_trace.json.gz.part", "");
  spit(dir / "notes.json", "{}");
  const std::vector ranks = {dir / "rank0_trace.json", dir / "rank1_trace.json.zst"};
  REQUIRE(find({dir.path()}, TraceUse::analyze).files == ranks);
  REQUIRE(find({dir.path()}, TraceUse::merge).files == ranks);
  REQUIRE(refusal(dir / "nothing", TraceUse::merge).find("nothing: no such file") !=
          std::string::npos);
}

TEST_CASE("of several windows the newest is analyzed, and merging asks for one", "[trace]") {
  const TempDir dir;
  const fs::path traces = dir / "traces";
  for (const char* window : {"step-00000004", "step-00000104", "step-00000204"}) {
    fs::create_directories(traces / window);
    if (std::string(window) != "step-00000204")
      spit(traces / window / "rank0_trace.json", made_text(0));
  }
  const TracePaths found = find({dir.path()}, TraceUse::analyze);
  REQUIRE(found.files == std::vector{traces / "step-00000104" / "rank0_trace.json"});
  REQUIRE(found.run == dir.path());
  REQUIRE(found.notes ==
          std::vector<std::string>{traces.string() + " holds 2 windows of traces: only the newest "
                                                     "is read, step-00000104"});
  REQUIRE(analyze({traces}, {}).notes == found.notes);
  REQUIRE(
      refusal(dir.path(), TraceUse::merge).find("name one of them: step-00000004, step-00000104") !=
      std::string::npos);

  fs::remove_all(traces / "step-00000004");
  REQUIRE(find({traces}, TraceUse::merge).files == found.files);
  REQUIRE(find({traces}, TraceUse::analyze).notes.empty());
}

TEST_CASE("traces of a run are found in the folder that its recipe names", "[trace]") {
  const TempDir dir;
  const fs::path run = dir / "run", output = dir / "logs";
  fs::create_directories(run / "traces");
  fs::create_directories(output);
  spit(run / "recipe.yaml",
       slurp("recipes/quickstart.yaml") + "trace: { steps: 1, output: " + output.string() + " }\n");
  REQUIRE(refusal(run, TraceUse::analyze).find("no trace in " + (run / "traces").string()) !=
          std::string::npos);

  for (int rank = 0; rank < 2; ++rank)
    spit(output / ("rank" + std::to_string(rank) + "_trace.json"), made_text(rank, 2, "run"));
  spit(run / "clocks.jsonl", "");
  const TraceSources sources = find_rank_traces(std::vector{run});
  REQUIRE(sources.files.size() == 2);
  REQUIRE(sources.folder == output);
  REQUIRE(sources.clocks == run / "clocks.jsonl");
  REQUIRE(sources.notes.empty());
  REQUIRE(traces_of_run(run) == output);

  spit(output / "rank0_trace.json", made_text(0, 2, "later"));
  const TracePaths found = find({run}, TraceUse::analyze);
  REQUIRE(found.notes.size() == 1);
  REQUIRE(found.notes[0].find("is a trace of run later, which wrote to the same folder") !=
          std::string::npos);

  // Traces in the run itself come first.
  spit(run / "traces" / "rank0_trace.json", made_text(0));
  REQUIRE(find({run}, TraceUse::analyze).files == std::vector{run / "traces" / "rank0_trace.json"});

  fs::remove(run / "traces" / "rank0_trace.json");
  spit(run / "recipe.yaml", "no: recipe\n");
  REQUIRE(traces_of_run(run) == run / "traces");
}

TEST_CASE("a trace in zstd is analyzed like the plain one", "[trace]") {
  const TempDir dir;
  const std::string text = made_text(0);
  spit(dir / "rank0_trace.json", text);
  std::string packed(::ZSTD_compressBound(text.size()), '\0');
  packed.resize(::ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 1));
  const TempDir other;
  spit(other / "rank0_trace.json.zst", packed);
  const auto figures = [](const TempDir& source) {
    auto json = to_json(analyze({source.path()}, {}));
    json["ranks"][0].erase("file");
    return json;
  };
  REQUIRE(figures(dir)["ranks"].size() == 1);
  REQUIRE(figures(other) == figures(dir));
}

TEST_CASE("a FIFO is refused as a trace without waiting for its writer", "[trace]") {
  const TempDir dir;
  REQUIRE(::mkfifo((dir / "rank0_trace.json").c_str(), 0600) == 0);
  std::string said;
  try {
    (void)find_rank_traces(std::vector{dir / "rank0_trace.json"});
  } catch (const Error& error) {
    said = error.what();
  }
  REQUIRE(said.find("it is a FIFO") != std::string::npos);
}
