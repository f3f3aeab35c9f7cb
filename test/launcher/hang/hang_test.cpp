#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "test/launcher/job.h"
#include "test/support/catch.h"

namespace dstrain::launcher::test {
namespace {

using Catch::Contains;
using Clock = std::chrono::steady_clock;
using dstrain::test::TempDir;

JobOptions ranks(int count, const char* timeout_s = "1") {
  return {.ranks = count, .arguments = {"--hang-timeout", timeout_s}};
}

/// Words after which every rank has entered `entered` collectives, but rank `odd` one less.
std::vector<std::string> all_but(int odd, int entered, const std::vector<std::string>& instead) {
  std::vector<std::string> script = {"section", "step", "enter", "7", "backward(layer.3)"};
  script.insert(script.end(), {"collective", std::to_string(entered - 1), "all_gather", "leave"});
  script.insert(script.end(), {"on", std::to_string(odd)});
  script.insert(script.end(), instead.begin(), instead.end());
  for (int rank = 0; rank < 4; ++rank) {
    if (rank == odd) continue;
    script.insert(script.end(), {"on", std::to_string(rank), "enter", "7", "norm", "collective",
                                 std::to_string(entered), "all_reduce", "sleep", "100000"});
  }
  return script;
}

pid_t pid_of(const Job& job, int rank) {
  for (const pid_t pid : job.alive()) {
    const std::filesystem::path folder = "/proc/" + std::to_string(pid);
    std::ifstream environment(folder / "environ", std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(environment), {}};
    if (('\0' + text).find('\0' + ("RANK=" + std::to_string(rank)) + '\0') != std::string::npos)
      return pid;
  }
  throw std::runtime_error("no such rank");
}

bool stack_has(const nlohmann::json& group, const std::string& part) {
  return group["stack"].dump().find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("an endless loop ends the job, named with its function and what others wait in",
          "[launcher][hang][alone][not_emulated]") {
  const TempDir directory;
  Job job(directory, all_but(2, 11, {"loop-forever"}), ranks(4));
  const int code = job.wait();
  INFO(job.output());
  CHECK(code == 75);
  const auto failure = job.failure();
  CHECK(failure["root"]["kind"] == "hang");
  CHECK(failure["root"]["rank"] == 2);
  CHECK(failure["root"]["step"] == 7);
  CHECK(failure["root"]["action"] == "backward(layer.3)");
  CHECK(failure["root"]["collective"] == "collective 10, all_gather(layer.3), 4 ranks");
  REQUIRE(failure["ranks"].size() == 2);
  CHECK(failure["ranks"][0]["ranks"] == std::vector{2});
  CHECK(stack_has(failure["ranks"][0], "loop_forever"));
  CHECK(failure["ranks"][1]["ranks"] == std::vector{0, 1, 3});
  CHECK_THAT(job.output(), Contains("rank 2 on") &&
                               Contains("hangs at step 7 in backward(layer.3)") &&
                               Contains("ranks 0-1, 3 wait in collective 11, all_reduce(norm)") &&
                               Contains("loop_forever"));
  CHECK(job.is_gone(std::chrono::seconds(2)));
}

TEST_CASE("a rank stopped by SIGSTOP is named, with the stack it was stopped in",
          "[launcher][hang][alone]") {
  const TempDir directory;
  JobOptions options = ranks(3);
  options.arguments.insert(options.arguments.end(), {"--tee", "1"});
  // All ranks make steps until one is stopped, the others then wait for it. Equal lines of several
  // ranks would be shown as one.
  Job job(directory,
          {"section", "step", "on", "1", "print", "started", "all", "progress", "20", "30",
           "collective", "5", "all_reduce", "sleep", "100000"},
          options);
  const bool started = job.prints("[rank 1] started");
  INFO(job.output());
  REQUIRE(started);
  const pid_t stopped = pid_of(job, 1);
  REQUIRE(::kill(stopped, SIGSTOP) == 0);
  const int code = job.wait();
  INFO(job.output());
  CHECK(code == 75);
  const auto failure = job.failure();
  CHECK(failure["root"]["kind"] == "hang");
  CHECK(failure["root"]["rank"] == 1);
  CHECK(failure["root"]["pid"] == stopped);
  CHECK(failure["ranks"][0]["states"][0]["process_state"] == "T");
  CHECK(stack_has(failure["ranks"][0], "main"));
  CHECK_THAT(job.output(), Contains("state T"));
  CHECK(job.is_gone(std::chrono::seconds(2)));
}

TEST_CASE("the limit is told once the plan is known", "[launcher][hang][alone]") {
  const TempDir directory;
  struct Row {
    const char* timeout;
    const char* told;
  };
  const Row row = GENERATE(Row{"auto", "no progress in a step for 120 s hangs"},
                           Row{"7", "no progress in a step for 7 s hangs"},
                           Row{"off", "hang are not looked for"});
  Job job(directory, {"plan", "12", "section", "step", "sleep", "30000"}, ranks(2, row.timeout));
  CHECK(job.prints(row.told));
  job.signal(SIGINT);
  job.signal(SIGINT);
  (void)job.wait();
  const std::string output = job.output();
  CHECK(output.find(row.told) == output.rfind(row.told));
}

TEST_CASE("a rank that skips an all-reduce and waits in the next collective is named",
          "[launcher][hang][alone]") {
  const TempDir directory;
  Job job(directory,
          all_but(3, 11,
                  {"enter", "8", "gather(layer.0)", "collective", "11", "all_gather", "sleep",
                   "100000"}),
          ranks(4));
  CHECK(job.wait() == 75);
  INFO(job.output());
  const auto failure = job.failure();
  CHECK(failure["root"]["kind"] == "hang");
  CHECK(failure["root"]["rank"] == 3);
  CHECK(failure["root"]["collective"] == "collective 11, all_gather(layer.0), 4 ranks");
}

TEST_CASE("a rank that reads a pipe which nobody writes is named with the pipe",
          "[launcher][hang][alone][not_emulated]") {
  const TempDir directory;
  const std::string fifo = (directory / "train.fifo").string();
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  Job job(directory, all_but(1, 4, {"enter", "7", "load", "fifo", fifo}), ranks(4));
  CHECK(job.wait() == 75);
  INFO(job.output());
  const auto failure = job.failure();
  CHECK(failure["root"]["rank"] == 1);
  CHECK(failure["root"]["action"] == "load");
  CHECK(stack_has(failure["ranks"][0], "openat(" + fifo + ")"));
  CHECK(stack_has(failure["ranks"][0], "read_fifo"));
}

TEST_CASE("a rank that the kernel holds does not keep the report waiting",
          "[launcher][hang][alone][not_emulated]") {
  const TempDir directory;
  Job job(directory, all_but(0, 4, {"enter", "7", "save", "vfork"}), ranks(4));
  const auto start = Clock::now();
  CHECK(job.wait() == 75);
  INFO(job.output());
  CHECK(seconds_since(start) < 12);
  const auto failure = job.failure();
  CHECK(failure["root"]["rank"] == 0);
  CHECK(failure["ranks"][0]["states"][0]["process_state"] == "D");
  CHECK(stack_has(failure["ranks"][0], "state D"));
}

TEST_CASE("a rank that has ended while the others wait is named", "[launcher][hang][alone]") {
  const TempDir directory;
  Job job(directory, all_but(1, 4, {"exit", "0"}), ranks(4));
  CHECK(job.wait() == 75);
  INFO(job.output());
  CHECK(job.failure()["root"]["rank"] == 1);
  CHECK_THAT(job.failure()["summary"].get<std::string>(),
             Contains("it has ended with exit code 0"));
}

TEST_CASE("ranks that move are no hang, however long the job, nor with detection off",
          "[launcher][hang][alone]") {
  const TempDir directory;
  const bool off = GENERATE(false, true);
  Job job(directory,
          off ? std::vector<std::string>{"sleep", "3000"}
              : std::vector<std::string>{"section", "step", "progress", "300", "10"},
          ranks(2, off ? "off" : "1"));
  CHECK(job.wait() == 0);
  INFO(job.output());
}

TEST_CASE("a rank that works much longer than the others is named on the console",
          "[launcher][straggler][alone]") {
  const TempDir directory;
  Job job(directory,
          {"section", "step", "on", "2", "steps", "90", "80", "on", "0", "steps", "30", "240", "on",
           "1", "steps", "30", "240"},
          {.ranks = 3});
  CHECK(job.wait() == 0);
  CHECK_THAT(job.output(), Contains("rank 2 on") && Contains("is slow: ") &&
                               Contains("x the median of the others"));
}

}  // namespace dstrain::launcher::test
