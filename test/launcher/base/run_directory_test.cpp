#include "launcher/base/run_directory.h"

#include <fstream>
#include <set>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

using namespace dstrain;
using namespace dstrain::launcher;
namespace fs = std::filesystem;

namespace {

constexpr std::time_t kNow = 1795228531;  // 2026-11-21 02:35:31 UTC

fs::path make_run(const fs::path& output, const std::string& name, const std::string& step,
                  bool complete) {
  const fs::path checkpoint = output / name / "checkpoints" / step;
  fs::create_directories(checkpoint);
  if (complete) write_file_atomically(checkpoint / "MANIFEST.json", "{}");
  return output / name;
}

}  // namespace

TEST_CASE("a run directory is named after recipe, time and a short id, and never shared",
          "[launcher][run]") {
  dstrain::test::TempDir output;
  std::set<std::string> names;
  for (int i = 0; i < 20; ++i) {
    const auto run = open_run_directory(output / "deep/runs", "vit", resume_from("never"), kNow);
    CHECK(run.path.filename().string().starts_with("vit-20261121T023531Z-"));
    CHECK(fs::is_directory(run.path / "ranks"));
    CHECK(run.resume_from.empty());
    names.insert(run.path);
  }
  CHECK(names.size() == 20);
}

TEST_CASE("resume auto takes the newest run of this recipe with a complete checkpoint",
          "[launcher][run]") {
  dstrain::test::TempDir output;
  make_run(output.path(), "vit-20260101T000000Z-aaaaaa", "step-00000010", true);
  const auto wanted = make_run(output.path(), "vit-20260301T000000Z-000000", "step-00000010", true);
  make_run(output.path(), "vit-20260401T000000Z-ffffff", "step-00000010", false);
  make_run(output.path(), "vit-20260501T000000Z-ffffff", "other-00000010", true);
  make_run(output.path(), "vit-large-20260601T000000Z-ffffff", "step-00000010", true);
  make_run(output.path(), "vit-notes", "step-00000010", true);
  const auto run = open_run_directory(output.path(), "vit", resume_from("auto"), kNow);
  CHECK(run.path == wanted);
  CHECK(run.continued);
  CHECK(run.resume_from == wanted.string());
}

TEST_CASE("resume auto leaves out a run of a clock that was wrong, and says which",
          "[launcher][run]") {
  dstrain::test::TempDir output;
  const auto wanted = make_run(output.path(), "vit-20260301T000000Z-000000", "step-00000010", true);
  const auto future = make_run(output.path(), "vit-21000101T000000Z-000000", "step-00000010", true);
  {
    const auto run = open_run_directory(output.path(), "vit", resume_from("auto"), kNow);
    CHECK(run.path == wanted);
    CHECK(run.of_the_future == std::vector{future});
  }
  // A host's clock may be hours ahead.
  const auto ahead = make_run(output.path(), "vit-20261121T100000Z-000000", "step-00000010", true);
  CHECK(open_run_directory(output.path(), "vit", resume_from("auto"), kNow).path == ahead);
  CHECK(open_run_directory(output.path(), "vit", resume_from(future.string()), kNow).path ==
        future);
}

TEST_CASE("what a launcher that was killed left to be seen by other hosts goes with the next one",
          "[launcher][run]") {
  dstrain::test::TempDir output;
  const auto earlier = make_run(output.path(), "vit-20260301T000000Z-000000", "step-1", false);
  write_file_atomically(earlier / ".job-0123456789abcdef", "");
  write_file_atomically(earlier / ".jobs", "");
  const auto run = open_run_directory(output.path(), "vit", resume_from("auto"), kNow,
                                      "vit-20260301T000000Z-000000");
  CHECK(run.path == earlier);
  CHECK_FALSE(fs::exists(earlier / ".job-0123456789abcdef"));
  CHECK(fs::exists(earlier / ".jobs"));
}

TEST_CASE("resume auto without a checkpoint starts anew", "[launcher][run]") {
  dstrain::test::TempDir output;
  const auto run = open_run_directory(output / "runs", "vit", resume_from("auto"), kNow);
  CHECK(!run.continued);
  CHECK(run.resume_from.empty());
}

TEST_CASE("resume takes a run directory, a checkpoint, and nothing else", "[launcher][run]") {
  dstrain::test::TempDir output;
  const auto earlier =
      make_run(output.path(), "vit-20260101T000000Z-aaaaaa", "step-00000010", true);
  {
    const auto run = open_run_directory(output.path(), "vit", resume_from(earlier.string()), kNow);
    CHECK(run.path == earlier);
    REQUIRE_THROWS_WITH(
        open_run_directory(output.path(), "vit", resume_from(earlier.string()), kNow),
        earlier.string() + " is in use by another job");
  }
  const auto checkpoint = earlier / "checkpoints" / "step-00000010";
  const auto branch =
      open_run_directory(output.path(), "vit", resume_from(checkpoint.string()), kNow);
  CHECK(branch.path != earlier);
  CHECK(branch.resume_from == checkpoint.string());
  REQUIRE_THROWS_WITH(
      open_run_directory(output.path(), "vit", resume_from(output.path().string()), kNow),
      "--resume " + output.path().string() + ": holds no complete checkpoint");
}

TEST_CASE("a named run starts from what --resume names, and goes on from its own checkpoints",
          "[launcher][run]") {
  dstrain::test::TempDir output;
  const auto earlier =
      make_run(output.path(), "vit-20260101T000000Z-aaaaaa", "step-00000010", true);
  const auto checkpoint = earlier / "checkpoints" / "step-00000010";
  const auto open = [&](const fs::path& from, const char* name) {
    return open_run_directory(output.path(), "vit", resume_from(from.string()), kNow, name);
  };
  const auto chosen = choose_run(output.path(), "vit", resume_from("never"), kNow, "again");
  CHECK(chosen.path == output / "again");
  CHECK(!fs::exists(chosen.path));
  for (const auto& from : {earlier, checkpoint}) {
    const auto run = open(from, "again");
    CHECK(run.path == output / "again");
    CHECK(!run.continued);
    CHECK(run.resume_from == from.string());
  }
  // Put back into the queue after a save.
  make_run(output.path(), "again", "step-00000020", true);
  const auto run = open(checkpoint, "again");
  CHECK(run.continued);
  CHECK(run.resume_from == (output / "again").string());
  CHECK(run.left_aside == checkpoint.string());
  const auto itself = open(earlier, "vit-20260101T000000Z-aaaaaa");
  CHECK(itself.path == earlier);
  CHECK(itself.left_aside.empty());
  REQUIRE_THROWS_WITH(open(checkpoint, "vit-20260101T000000Z-aaaaaa"),
                      "--run-name vit-20260101T000000Z-aaaaaa: --resume " + checkpoint.string() +
                          " is a checkpoint of that run itself");
}

TEST_CASE("an output folder that cannot be made is a usage error with a way out",
          "[launcher][run]") {
  try {
    (void)open_run_directory("/proc/no/runs", "vit", resume_from("never"), kNow);
    FAIL("made a folder in /proc");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    CHECK(error.hint() == "choose a folder that can be written, with --set run.output=DIR");
  }
}

TEST_CASE("what an earlier part wrote is kept", "[launcher][run]") {
  dstrain::test::TempDir directory;
  for (const char* content : {"first", "second"}) {
    write_file_atomically(directory / "failure.json", content);
    keep_previous(directory / "failure.json");
  }
  keep_previous(directory / "failure.json");
  CHECK(!fs::exists(directory / "failure.json"));
  CHECK(read_file(directory / "failure.1.json") == "first");
  CHECK(read_file(directory / "failure.2.json") == "second");
}

TEST_CASE("what to resume from is read as it is written", "[launcher][run]") {
  CHECK(resume_from("").mode == Resume::Mode::never);
  CHECK(resume_from("never").mode == Resume::Mode::never);
  CHECK(resume_from("auto").mode == Resume::Mode::newest);
  CHECK(resume_from("runs/vit").path == "runs/vit");
  CHECK(resume_from("./auto").mode == Resume::Mode::path);
}
