#include "engine/base/run_layout.h"

#include <set>

#include "engine/base/error.h"
#include "test/support/catch.h"
#include "test/support/files.h"
#include "test/support/temp_dir.h"

namespace fs = std::filesystem;
using namespace dstrain;
using namespace dstrain::test;

namespace {
constexpr std::time_t kNow = 1'795'228'531;  // 2026-11-21 02:35:31 UTC
}

TEST_CASE("a run directory is new each time and found by its checkpoints folder", "[run]") {
  const TempDir dir;
  std::set<fs::path> made;
  for (int i = 0; i < 20; ++i) made.insert(make_dated_directory(dir / "deep/runs", "tiny", kNow));
  REQUIRE(made.size() == 20);
  const RunLayout run(*made.begin());
  const std::string name = run.root().filename().string();
  REQUIRE(name.starts_with("tiny-20261121T023531Z-"));
  REQUIRE(time_in_name(name, "tiny") == "20261121T023531Z");
  run.make_folders();
  REQUIRE(find_checkpoints_folder(run.root()) == run.checkpoints());
  REQUIRE(find_checkpoints_folder(run.checkpoints()) == run.checkpoints());
  REQUIRE(RunLayout::around(run.checkpoints() / checkpoint_name(7)).root() == run.root());
  REQUIRE(run.rank_log(12) == run.root() / "ranks/rank0012.log");
  REQUIRE_THROWS_AS(find_checkpoints_folder(dir / "none"), Error);
  spit(dir / "file", "");
  REQUIRE_THROWS_AS(make_dated_directory(dir / "file", "tiny", kNow), Error);
  REQUIRE_THROWS_AS(RunLayout(dir / "file").make_folders(), Error);
}

TEST_CASE("only a name that a run was given has a time", "[run]") {
  CHECK(time_in_name("tiny-20261121T023531Z-0a1b2c", "tiny") == "20261121T023531Z");
  for (const char* name :
       {"tiny", "tiny-large-20261121T023531Z-0a1b2c", "tiny-20261121T023531Z-0a1b2g",
        "tiny-20261121 023531Z-0a1b2c", "tiny-20261121T023531Z-0a1b2c.1"}) {
    CAPTURE(name);
    CHECK(time_in_name(name, "tiny").empty());
  }
}

TEST_CASE("a step has one checkpoint name", "[run]") {
  for (const std::int64_t step : {0L, 7L, 99'999'999L, 100'000'000L, 999'999'999'999'999'999L}) {
    CAPTURE(step);
    CHECK(parse_checkpoint_name(checkpoint_name(step)) == step);
    CHECK(parse_checkpoint_name("runs/x/" + checkpoint_name(step) + "/") == step);
    CHECK(is_temporary_checkpoint(temporary_checkpoint_name(step, "a1")));
    CHECK(!parse_checkpoint_name(temporary_checkpoint_name(step, "a1")));
    CHECK(!is_temporary_checkpoint(checkpoint_name(step)));
  }
  for (const char* name : {"step-", "step-7", "step-+0000007", "step--0000007", "step-000000007",
                           "step-0000000x", "step-1000000000000000000", "Step-00000007", ""}) {
    CAPTURE(name);
    CHECK(!parse_checkpoint_name(name));
  }
}

TEST_CASE("a checkpoint is complete when its manifest is a file", "[run]") {
  const TempDir dir;
  const fs::path checkpoint = dir / checkpoint_name(1);
  CHECK(!is_checkpoint(checkpoint));
  fs::create_directories(checkpoint / run_file::kManifest);
  CHECK(!is_checkpoint(checkpoint));
  fs::remove(checkpoint / run_file::kManifest);
  spit(checkpoint / run_file::kManifest, "{}");
  CHECK(is_checkpoint(checkpoint));
}
