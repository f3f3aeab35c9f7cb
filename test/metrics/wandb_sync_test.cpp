#include "engine/metrics/wandb_sync.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <fstream>
#include <string>
#include <thread>

#include "engine/metrics/metrics.h"
#include "test/support/catch.h"
#include "test/support/files.h"
#include "test/support/temp_dir.h"

namespace fs = std::filesystem;
using namespace dstrain;
using namespace dstrain::test;
using std::chrono::milliseconds;

namespace {

/// A program `wandb` alone in PATH, and a key.
void install(const TempDir& dir, const std::string& script) {
  std::ofstream(dir / "wandb") << "#!/bin/sh\n" << script;
  ::chmod((dir / "wandb").c_str(), 0755);
  ::setenv("PATH", (dir.path().string() + ":/usr/bin:/bin").c_str(), 1);
  ::setenv("WANDB_API_KEY", "secret", 1);
}

}  // namespace

TEST_CASE("what keeps wandb from sending is said", "[metrics]") {
  const TempDir dir;
  ::setenv("PATH", dir.path().c_str(), 1);
  CHECK(WandbSync::obstacle() == "there is no program wandb in PATH");
  install(dir, "exit 0\n");
  CHECK(WandbSync::obstacle().empty());
  ::unsetenv("WANDB_API_KEY");
  ::setenv("HOME", dir.path().c_str(), 1);
  CHECK(WandbSync::obstacle().find("wandb login") != std::string::npos);
  std::ofstream(dir / ".netrc") << "machine api.wandb.ai\n  login user\n  password secret\n";
  CHECK(WandbSync::obstacle().empty());
  ::setenv("WANDB_BASE_URL", "https://wandb.example.org:8080/api", 1);
  CHECK_FALSE(WandbSync::obstacle().empty());
  ::unsetenv("WANDB_BASE_URL");
}

TEST_CASE("wandb sends a run while it is written", "[metrics]") {
  const TempDir dir;
  install(dir, "echo \"$@\"; echo oops >&2; exit 0\n");
  WandbSync sync(dir.path());
  CHECK(sync.finish(milliseconds(10000)).empty());
  CHECK(slurp(dir / "sync.log") == "beta sync --live " + dir.path().string() + "\noops\n");
}

TEST_CASE("what wandb says is bounded, without secrets, and its owner's alone", "[metrics]") {
  const TempDir dir;
  install(dir,
          "echo \"key $WANDB_API_KEY, pass $OTHER_PASSPHRASE, netrc hunter2hunter2\"\n"
          "yes 0123456789012345678901234567890123456789012345678901234567890 | head -c 3000000\n");
  ::setenv("WANDB_API_KEY", "wandb-\"quoted\"", 1);
  ::setenv("OTHER_PASSPHRASE", "open sesame", 1);
  ::setenv("HOME", dir.path().c_str(), 1);
  std::ofstream(dir / ".netrc")
      << "machine api.wandb.ai\n  login user\n  password hunter2hunter2\n";
  const mode_t before = ::umask(0);
  {
    WandbSync sync(dir.path());
    CHECK(sync.finish(milliseconds(20000)).empty());
  }
  ::umask(before);
  const std::string log = slurp(dir / "sync.log");
  CHECK(log.starts_with("key [secret], pass [secret], netrc [secret]\n0123456789"));
  CHECK(log.ends_with("\n[the rest is left out]\n"));
  CHECK(log.size() > BoundedLog::kMaxBytes - 100);
  CHECK(log.size() < BoundedLog::kMaxBytes + 100);
  CHECK(fs::status(dir / "sync.log").permissions() ==
        (fs::perms::owner_read | fs::perms::owner_write));
  ::unsetenv("OTHER_PASSPHRASE");
}

TEST_CASE("a wandb that fails or hangs is told of and left", "[metrics]") {
  const TempDir dir;
  install(dir, "exit 3\n");
  WandbSync failing(dir.path());
  CHECK(failing.finish(milliseconds(10000)).find("sync.log says why") != std::string::npos);
  // Its own children go with it.
  install(dir, "sleep 1000 & echo $! > " + (dir / "child").string() + "\nwait\n");
  std::string child;
  {
    WandbSync hanging(dir.path());
    CHECK(hanging.finish(milliseconds(300)).find("has not sent all") != std::string::npos);
    child = slurp(dir / "child");
  }
  child = child.substr(0, child.find('\n'));
  REQUIRE_FALSE(child.empty());
  const auto ended = [&] {
    const std::string status = slurp(fs::path("/proc") / child / "status");
    return status.empty() || status.find("State:\tZ") != std::string::npos;
  };
  // A busy machine may take a moment to end what was killed.
  for (int i = 0; i < 1000 && !ended(); ++i) std::this_thread::sleep_for(milliseconds(10));
  CHECK(ended());
}

TEST_CASE("a run that is sent ends when wandb has seen its last record", "[metrics]") {
  const TempDir dir;
  // Ends when the summary is there, which is written at the end of a run.
  install(dir,
          "while ! test -e \"$4\"/files/wandb-summary.json; do sleep 0.01; done\n"
          "echo sent > " +
              (dir / "sent").string() + "\n");
  MetricsOptions options{
      .metrics = dir / "metrics.jsonl", .events = dir / "events.jsonl", .tensorboard = {}};
  options.wandb = {.folder = dir / "offline", .online = true};
  {
    MetricsWriter writer(options);
    writer.step({.step = 1});
    writer.host({.time_s = 1.5, .gpus = {{.index = 0, .utilization = 97}}});
    CHECK(writer.flush());
    CHECK_FALSE(fs::exists(dir / "sent"));
  }
  CHECK(slurp(dir / "sent") == "sent\n");
}
