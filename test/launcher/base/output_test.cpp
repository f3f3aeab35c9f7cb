#include <fstream>
#include <sstream>
#include <thread>

#include "test/launcher/job.h"
#include "test/support/catch.h"

using namespace dstrain::launcher::test;
using dstrain::test::TempDir;
using Clock = std::chrono::steady_clock;

namespace {

std::string expected_lines(int rank, int count) {
  std::string text;
  for (int line = 0; line < count; ++line) {
    text += "rank " + std::to_string(rank) + " line " + std::to_string(line) + "\n";
  }
  return text;
}

}  // namespace

TEST_CASE("logs of 8 ranks with 10^4 lines each are complete and whole",
          "[launcher][output][alone]") {
  TempDir directory;
  Job job(directory, {"lines", "10000"}, {.ranks = 8});
  REQUIRE(job.wait() == 0);
  for (int rank = 0; rank < 8; ++rank) CHECK((job.log(rank) == expected_lines(rank, 10000)));
}

TEST_CASE("a console that nobody reads stops no rank", "[launcher][output][alone]") {
  TempDir directory;
  Job job(directory, {"lines", "300000", "print", "end"},
          {.ranks = 1, .console_to_pipe_unread = true});
  // The rank ends although its 6 MB never reach the console; the launcher then waits 5 s for the
  // reader and gives up.
  const auto start = Clock::now();
  REQUIRE(job.wait() == 0);
  CHECK(seconds_since(start) < 15.0);
  CHECK((job.log(0) == expected_lines(0, 300000) + "end\n"));
}

TEST_CASE("output of ranks cannot drive the terminal", "[launcher][output][alone]") {
  TempDir directory;
  Job job(directory, {"print", "a\x1b[2Jb\x07"}, {.ranks = 1});
  REQUIRE(job.wait() == 0);
  CHECK(contains(job.output(), "[rank 0] a\\x1b[2Jb\\x07\n"));
  CHECK(job.log(0) == "a\x1b[2Jb\x07\n");
}

TEST_CASE("reports of rank 0 reach the console, the last progress line always",
          "[launcher][output][alone]") {
  TempDir directory;
  Job job(directory,
          {"report", R"({"kind":"note","text":"evaluating"})", "report",
           R"({"kind":"progress","step":1,"text":"step 1"})", "report",
           R"({"kind":"progress","step":2,"text":"step 2"})", "report",
           R"({"kind":"progress","step":3,"text":"step 3"})"},
          {.ranks = 2});
  REQUIRE(job.wait() == 0);
  CHECK(contains(job.output(), "evaluating\nstep 1\nstep 3\n"));
}

TEST_CASE("closed stdin, no terminal and no HOME: ranks run and read an empty stdin",
          "[launcher][output][alone]") {
  TempDir directory;
  Job job(directory, {"read-stdin"}, {.ranks = 2, .environment = {"HOME="}, .closed_stdin = true});
  REQUIRE(job.wait() == 0);
  CHECK(contains(job.output(), "[rank 0] stdin gives 0\n"));
}

TEST_CASE("ranks get the job's environment beside the user's", "[launcher][output][alone]") {
  TempDir directory;
  const std::string odd = "a  b; $(id) 'x' \"y\" \xc3\xbc";
  Job job(directory,
          {"env", "RANK", "env", "LOCAL_RANK", "env", "WORLD_SIZE", "env", "LOCAL_WORLD_SIZE",
           "env", "MASTER_ADDR", "env", "ODD", "env", "OMP_NUM_THREADS", "print", odd},
          {.ranks = 2, .environment = {"ODD=" + odd, "OMP_NUM_THREADS=7", "RANK=99"}});
  REQUIRE(job.wait() == 0);
  CHECK(job.log(1) ==
        "RANK=1\nLOCAL_RANK=1\nWORLD_SIZE=2\nLOCAL_WORLD_SIZE=2\nMASTER_ADDR=127.0.0.1\nODD=" +
            odd + "\nOMP_NUM_THREADS=7\n" + odd + "\n");
}

TEST_CASE("secrets reach the ranks and nothing that is written", "[launcher][output][alone]") {
  TempDir directory;
  const std::string canary = "canary-0123456789";
  Job job(directory,
          {"env", "WANDB_API_KEY", "on", "1", "env", "WANDB_API_KEY", "fail", "3",
           "key canary-" + std::string("0123456789"), "exit", "3", "all", "sleep", "30000"},
          {.ranks = 2, .environment = {"WANDB_API_KEY=" + canary}});
  REQUIRE(job.wait() == 3);
  CHECK(contains(job.log(0), "WANDB_API_KEY=[secret]"));
  CHECK(!contains(job.output(), canary));
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory.path())) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path());
    std::stringstream content;
    content << file.rdbuf();
    // The rank's own command line held the text, so environment.json would, too: it is struck out
    // there as well.
    CHECK(!contains(content.str(), canary));
  }
}
