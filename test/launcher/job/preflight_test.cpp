#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "test/launcher/job.h"
#include "test/support/catch.h"

using namespace dstrain::launcher::test;
using dstrain::test::TempDir;

namespace {

namespace fs = std::filesystem;

/// A folder with the program, an engine library that it finds beside itself, and an ssh that runs
/// its command here, but for host b, which refuses.
struct Programs {
  explicit Programs(const TempDir& directory) : folder(directory / "programs") {
    fs::create_directory(folder);
    fs::copy_file(FAKE_DSTRAIN, folder / "dstrain");
    fs::copy_file(FAKE_ENGINE, folder / "libdstrain_engine.so");
    std::ofstream(folder / "ssh")
        << "#!/bin/sh\n"
           "while [ \"$1\" != -- ]; do shift; done\n"
           "if [ \"$2\" = b ]; then\n"
           "  echo 'ssh: connect to host b port 22: Connection refused' >&2\n"
           "  exit 255\n"
           "fi\n"
           "exec sh -c \"$3\"\n";
    fs::permissions(folder / "ssh", fs::perms::owner_all);
  }
  [[nodiscard]] JobOptions options(int ranks) const {
    return {.ranks = ranks,
            .environment = {"PATH=" + folder.string() + ":" + std::getenv("PATH")},
            .arguments = {"--hosts", "a:1,b:1,c:1", "--preflight"},
            .program = (folder / "dstrain").string()};
  }
  fs::path folder;
};

}  // namespace

TEST_CASE("a host that cannot be used is left out before the start, and a spare takes its place",
          "[launcher][preflight][alone]") {
  TempDir directory;
  const Programs programs(directory);
  Job job(directory, {"print", "hello"}, programs.options(2));
  CHECK(job.wait() == 0);
  CAPTURE(job.output());
  CHECK(contains(job.output(), "preflight: b is left out: "));
  CHECK(contains(job.output(), "Connection refused"));
  CHECK(contains(job.output(), "preflight: 2 of 3 hosts can be used"));
  CHECK(contains(job.output(), "2 ranks on a, c, run directory"));
  CHECK(contains(job.log(1), "hello"));
}

TEST_CASE("without a spare for a bad host the preflight ends the job before the start",
          "[launcher][preflight][alone]") {
  TempDir directory;
  const Programs programs(directory);
  Job job(directory, {"print", "hello"}, programs.options(3));
  CHECK(job.wait() == 69);
  CAPTURE(job.output());
  CHECK(contains(job.output(),
                 "preflight: 1 of 3 hosts cannot be used, and the others have 2 of 3 slots"));
  CHECK_FALSE(std::filesystem::exists(directory / "runs"));
}
