#include <signal.h>
#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>
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

TEST_CASE("a console that nobody reads stops no rank", "[launcher][output][not_emulated]") {
  TempDir directory;
  Job job(directory, {"lines", "300000", "print", "end"},
          {.ranks = 1, .console_to_pipe_unread = true});
  // The rank ends although its 6 MB never reach the console; the launcher then waits 5 s for the
  // reader and gives up.
  const auto start = Clock::now();
  REQUIRE(job.wait() == 0);
  CHECK(seconds_since(start) < 30.0);
  CHECK((job.log(0) == expected_lines(0, 300000) + "end\n"));
}

TEST_CASE("output of ranks cannot drive the terminal", "[launcher][output]") {
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

TEST_CASE("the last progress of ranks that stop early stands above what they say of the whole",
          "[launcher][output][alone]") {
  TempDir directory;
  Job job(directory,
          {"report", R"({"kind":"progress","step":1,"steps":9,"text":"step 1"})", "report",
           R"({"kind":"progress","step":2,"steps":9,"text":"step 2"})", "report",
           R"({"kind":"end"})", "report", R"({"kind":"note","text":"stopped after 2 steps"})"},
          {.ranks = 1});
  REQUIRE(job.wait() == 0);
  CHECK(contains(job.output(), "step 1\nstep 2\nstopped after 2 steps\n"));
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

TEST_CASE("what a torchrun or a rank around the launcher was told does not reach the ranks",
          "[launcher][output][alone]") {
  TempDir directory;
  Job job(
      directory,
      {"env", "TORCHELASTIC_USE_AGENT_STORE", "env", "TORCHELASTIC_RUN_ID", "env", "GROUP_RANK",
       "env", "ROLE_WORLD_SIZE", "env", "DSTRAIN_MASTER_FD", "env", "DSTRAIN_REPORT_FD", "env",
       "DSTRAIN_ATTEMPT", "env", "TORCH_NCCL_ASYNC_ERROR_HANDLING"},
      {.ranks = 2,
       .environment = {"TORCHELASTIC_USE_AGENT_STORE=True", "TORCHELASTIC_RUN_ID=x", "GROUP_RANK=5",
                       "ROLE_WORLD_SIZE=9", "DSTRAIN_MASTER_FD=77", "DSTRAIN_REPORT_FD=78",
                       "DSTRAIN_ATTEMPT=79", "DSTRAIN_JOB_SECRET=" + std::string(64, 'a'),
                       "TORCH_NCCL_ASYNC_ERROR_HANDLING=1"}});
  REQUIRE(job.wait() == 0);
  CHECK(job.log(1) ==
        "TORCHELASTIC_USE_AGENT_STORE=(unset)\nTORCHELASTIC_RUN_ID=(unset)\nGROUP_RANK=(unset)\n"
        "ROLE_WORLD_SIZE=(unset)\nDSTRAIN_MASTER_FD=(unset)\nDSTRAIN_REPORT_FD=(unset)\n"
        "DSTRAIN_ATTEMPT=0\n"
        "TORCH_NCCL_ASYNC_ERROR_HANDLING=1\n");
}

TEST_CASE("a log that is no file stops nobody and is named", "[launcher][output][alone]") {
  TempDir directory;
  const auto ranks = directory / "runs" / "mine" / "ranks";
  std::filesystem::create_directories(ranks);
  const auto fifo = ranks / "rank0000.log", link = ranks / "rank0001.log";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  std::filesystem::create_symlink(directory / "elsewhere", link);
  Job job(directory, {"print", "hello"}, {.ranks = 2, .arguments = {"--run-name", "mine"}});
  REQUIRE(job.wait() == 0);
  CHECK(contains(job.output(), "[rank 0] hello\n"));
  CHECK(contains(job.output(), "cannot write " + fifo.string() + ": it is a FIFO (pipe)"));
  CHECK(contains(job.output(), "cannot write " + link.string() + ": it is a symbolic link"));
  CHECK_FALSE(std::filesystem::exists(directory / "elsewhere"));
}

TEST_CASE("environment.json holds no secret, and is its owner's alone under every umask",
          "[launcher][output][alone]") {
  TempDir directory;
  const std::string odd = "odd \"value\" \\ with\ttab";
  const mode_t before = ::umask(0);
  Job job(directory, {"env", "FOO", "env", "NCCL_AUTH"},
          {.ranks = 1,
           .environment = {"NCCL_AUTH=abc", "CUDA_PASSPHRASE=" + odd, "DSTRAIN_BEARER=x\ny",
                           "NCCL_DEBUG=WARN", "NCCL_SOCKET_NAME=" + odd},
           .arguments = {"--env", "FOO=value-of-foo", "--env=BAR=value-of-bar", "--tee", "0"}});
  ::umask(before);
  REQUIRE(job.wait() == 0);
  CHECK(contains(job.log(0), "FOO=value-of-foo\n"));
  const auto path = job.run_directory() / "environment.json";
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file);
  const auto& variables = json["variables"];
  for (const char* name : {"NCCL_AUTH", "CUDA_PASSPHRASE", "DSTRAIN_BEARER", "NCCL_SOCKET_NAME"}) {
    CAPTURE(name);
    CHECK(variables[name] == "[secret]");
  }
  CHECK(variables["NCCL_DEBUG"] == "WARN");
  const std::string words = json["command_line"].dump();
  CHECK(contains(words, R"("--env","FOO=[secret]","--env=BAR=[secret]","--tee","0")"));
  CHECK(std::filesystem::status(path).permissions() ==
        (std::filesystem::perms::owner_read | std::filesystem::perms::owner_write));
}

TEST_CASE("a launcher that is killed leaves nothing in the run directory but the run's files",
          "[launcher][output][alone][not_emulated]") {
  TempDir directory;
  Job job(directory, {"print", "ready", "sleep", "60000"}, {.ranks = 1});
  REQUIRE(job.prints("ready"));
  job.signal(SIGKILL);
  REQUIRE(job.is_gone(std::chrono::seconds(5)));
  for (const auto& entry : std::filesystem::directory_iterator(job.run_directory()))
    CHECK_FALSE(entry.path().filename().string().starts_with('.'));
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
