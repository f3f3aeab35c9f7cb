#include "test/launcher/job.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <memory>
#include <thread>

#include "engine/base/unique_fd.h"
#include "test/support/catch.h"

using namespace dstrain::launcher::test;
using dstrain::UniqueFd;
using dstrain::test::TempDir;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using Script = std::vector<std::string>;

namespace {

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

/// A copy of the controller's end of its connection to the agent; empty: the kernel does not give
/// it.
UniqueFd controllers_socket(pid_t controller) {
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, controller, 0)));
  for (int fd = 3; process && fd < 16; ++fd) {
    const std::string path = "/proc/" + std::to_string(controller) + "/fd/" + std::to_string(fd);
    std::error_code none;
    if (!contains(std::filesystem::read_symlink(path, none).string(), "socket:")) continue;
    return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), fd, 0)));
  }
  return UniqueFd();
}

}  // namespace

TEST_CASE("a job whose ranks end with 0 ends with 0 and leaves recipe, environment and logs",
          "[launcher][job][alone]") {
  TempDir directory;
  Job job(directory, {"print", "hello"}, {.ranks = 3});
  REQUIRE(job.wait() == 0);
  CHECK(contains(job.output(), "[rank 0] hello\n"));
  CHECK(!contains(job.output(), "[rank 1]"));
  for (int rank = 0; rank < 3; ++rank) CHECK(job.log(rank) == "hello\n");
  CHECK(std::filesystem::exists(job.run_directory() / "recipe.yaml"));
  CHECK(std::filesystem::exists(job.run_directory() / "environment.json"));
  CHECK(!std::filesystem::exists(job.run_directory() / "failure.json"));
  CHECK(job.alive().empty());
}

TEST_CASE("the job's exit code is the failed rank's code, or 128 + signal",
          "[launcher][job][alone]") {
  struct Row {
    Script script;
    int code;
    std::string kind;
  };
  const Row row = GENERATE(
      Row{{"on", "1", "exit", "3"}, 3, "exit"}, Row{{"on", "1", "exit", "255"}, 255, "exit"},
      Row{{"on", "1", "exit", "75"}, 75, "peer"}, Row{{"on", "1", "exit", "93"}, 93, "exit"},
      Row{{"on", "1", "enter", "3", "step", "fail", "64", "bad value", "exit", "64"}, 64, "error"},
      Row{{"on", "1", "signal", "9"}, 137, "signal"},
      Row{{"on", "1", "signal", "11"}, 139, "signal"},
      Row{{"on", "1", "signal", "6"}, 134, "signal"},
      Row{{"on", "1", "signal", "15"}, 143, "signal"});
  TempDir directory;
  Script script = row.script;
  script.insert(script.end(), {"all", "sleep", "30000"});
  Job job(directory, script, {.ranks = 3});
  CAPTURE(row.script);
  REQUIRE(job.wait() == row.code);
  const auto failure = job.failure();
  CHECK(failure["root"]["rank"] == 1);
  CHECK(failure["root"]["kind"] == row.kind);
  CHECK(failure["exit_code"] == row.code);
  CHECK(job.alive().empty());
}

TEST_CASE(
    "a recipe that a rank refuses before its first step leaves no run directory, and its "
    "error is told once",
    "[launcher][job][alone]") {
  const std::string code = GENERATE("64", "65", "69", "74");
  TempDir directory;
  Job job(directory,
          {"print", "before", "fail", code, "no such data", "print", "error: no such data", "print",
           "  hint: give a path", "exit", code},
          {.ranks = 2});
  CHECK(job.wait() == std::stoi(code));
  INFO(job.output());
  CHECK(std::filesystem::is_empty(directory / "runs"));
  CHECK(count(job.output(), "no such data") == 1);
  CHECK(count(job.output(), "hint: give a path") == 1);
  CHECK(job.alive().empty());
}

TEST_CASE("a run that has come to a step keeps its directory, whatever ends it",
          "[launcher][job][alone]") {
  TempDir directory;
  Job job(directory, {"enter", "0", "step", "fail", "65", "bad record", "exit", "65"},
          {.ranks = 1});
  CHECK(job.wait() == 65);
  CHECK(job.failure()["root"]["error"] == "bad record");
}

TEST_CASE("starts and stops of a job are written into its events", "[launcher][job][alone]") {
  TempDir directory;
  Job job(directory, {"enter", "3", "step", "exit", "7"},
          {.ranks = 1, .arguments = {"--max-restarts", "1"}});
  CHECK(job.wait() == 7);
  std::ifstream file(job.run_directory() / "events.jsonl");
  std::vector<nlohmann::json> events;
  for (std::string line; std::getline(file, line);) events.push_back(nlohmann::json::parse(line));
  REQUIRE(events.size() == 4);
  for (const int i : {0, 2}) {
    CHECK(events.at(i)["kind"] == "launched");
    CHECK(events.at(i)["start"] == i / 2);
    CHECK(events.at(i)["hosts"] == 1);
    CHECK(events.at(i)["ranks"] == 1);
    const auto& failed = events.at(i + 1);
    CHECK(failed["kind"] == "failed");
    CHECK(failed["failure"] == "exit");
    CHECK(failed["rank"] == 0);
    CHECK(failed["step"] == 3);
    CHECK(failed["exit_code"] == 7);
    CHECK(failed["time"].get<std::string>().size() == 20);
  }
}

TEST_CASE(
    "a dead rank ends all others within a second and is named with step, action and last lines",
    "[launcher][job][alone]") {
  TempDir directory;
  Job job(directory,
          {"ignore-term", "on", "2", "enter", "17", "backward(layer.7), micro-batch 2", "print",
           "last words", "all", "print", "ready", "sleep", "30000"},
          {.ranks = 4});
  REQUIRE(job.prints("[rank 0] ready"));
  while (!contains(job.log(2), "ready")) std::this_thread::sleep_for(milliseconds(5));
  const auto start = Clock::now();
  for (const pid_t pid : job.alive()) {
    const std::string record = "RANK=2";
    std::ifstream file("/proc/" + std::to_string(pid) + "/environ");
    std::string entry;
    while (std::getline(file, entry, '\0')) {
      if (entry == record) ::kill(pid, SIGKILL);
    }
  }
  REQUIRE(job.wait() == 137);
  CHECK(seconds_since(start) < 1.0);
  const auto root = job.failure()["root"];
  CHECK(root["rank"] == 2);
  CHECK(root["signal"] == 9);
  CHECK(root["signal_name"] == "SIGKILL");
  CHECK(root["step"] == 17);
  CHECK(root["action"] == "backward(layer.7), micro-batch 2");
  CHECK(contains(job.output(),
                 "rank 2 failed at step 17 in backward(layer.7), micro-batch 2: killed by signal 9 "
                 "(SIGKILL), not sent by dstrain"));
  CHECK(contains(job.output(), "  | last words\n"));
  CHECK(contains(job.output(), "ranks 0-1, 3: ended by dstrain"));
  CHECK(job.alive().empty());
}

TEST_CASE("the rank that fails is blamed even when its peers' ends come first",
          "[launcher][job][root][alone]") {
  // Peers notice and end before the cause does: by exit 75 at once, or by a plain exit code while
  // the cause, which has recorded its error, is still on its way out.
  const int round = GENERATE(range(0, 25));
  const bool peers_say_so = GENERATE(true, false);
  const int cause = round % 4;
  const std::string rank = std::to_string(cause);
  const std::string delay = std::to_string(10 * (round % 8));
  Script script = {"on", rank};
  if (peers_say_so) {
    script.insert(script.end(), {"sleep", delay, "signal", "11"});
    for (int peer = 0; peer < 4; ++peer) {
      if (peer == cause) continue;
      script.insert(script.end(), {"on", std::to_string(peer), "fail", "75",
                                   "connection reset by peer", "exit", "75"});
    }
  } else {
    script.insert(script.end(),
                  {"fail", "3", "loss is not finite", "print", "x", "sleep", delay, "exit", "3"});
    for (int peer = 0; peer < 4; ++peer) {
      if (peer != cause)
        script.insert(script.end(), {"on", std::to_string(peer), "sleep", "30", "exit", "1"});
    }
  }
  TempDir directory;
  Job job(directory, script, {.ranks = 4});
  const int code = job.wait();
  CAPTURE(round, peers_say_so, job.output());
  CHECK(job.failure()["root"]["rank"] == cause);
  CHECK(code == (peers_say_so ? 139 : 3));
}

TEST_CASE("asked once to stop, the ranks finish: 0 for a person, 75 for a scheduler",
          "[launcher][job][alone]") {
  const int number = GENERATE(SIGINT, SIGHUP, SIGTERM, SIGUSR1);
  TempDir directory;
  Job job(directory,
          {"checkpoint", "00000007", "finish-on-term", "print", "ready", "sleep", "30000"},
          {.ranks = 2});
  REQUIRE(job.prints("[rank 0] ready"));
  while (!contains(job.log(1), "ready")) std::this_thread::sleep_for(milliseconds(5));
  job.signal(number);
  REQUIRE(job.wait() == (number == SIGTERM || number == SIGUSR1 ? 75 : 0));
  CHECK(contains(job.output(), "finishing this step, saving, ending"));
  CHECK(contains(job.output(), "stopped as asked; go on with --resume "));
  CHECK(!std::filesystem::exists(job.run_directory() / "failure.json"));
}

TEST_CASE("ranks that end well without a checkpoint were done, whoever asked them to stop",
          "[launcher][job][alone]") {
  TempDir directory;
  Job job(directory, {"finish-on-term", "print", "ready", "sleep", "30000"}, {.ranks = 2});
  REQUIRE(job.prints("[rank 0] ready"));
  while (!contains(job.log(1), "ready")) std::this_thread::sleep_for(milliseconds(5));
  job.signal(SIGTERM);
  REQUIRE(job.wait() == 0);
  CHECK(contains(job.output(), "the ranks were done; they saved no checkpoint"));
  CHECK(!contains(job.output(), "--resume"));
}

TEST_CASE("a scheduler's signal to all processes is one request, whoever has it first",
          "[launcher][job][alone]") {
  TempDir directory;
  Job job(directory,
          {"checkpoint", "00000007", "ignore-term", "print", "ready", "until",
           (directory.path() / "go").string(), "exit", "0"},
          {.ranks = 2});
  REQUIRE(job.prints("[rank 0] ready"));
  while (!contains(job.log(1), "ready")) std::this_thread::sleep_for(milliseconds(5));
  ::kill(job.agent(), SIGTERM);
  REQUIRE(job.prints("finishing this step, saving, ending"));
  job.signal(SIGTERM);
  std::this_thread::sleep_for(milliseconds(300));
  std::ofstream(directory.path() / "go").flush();
  REQUIRE(job.wait() == 75);
  CHECK(!contains(job.output(), "ending now"));
}

TEST_CASE("asked to stop, a save that fails is 74 whatever the signal", "[launcher][job][alone]") {
  const int number = GENERATE(SIGINT, SIGTERM);
  TempDir directory;
  Job job(directory,
          {"ignore-term", "print", "ready", "until", (directory.path() / "go").string(), "fail",
           "74", "disk full", "exit", "74"},
          {.ranks = 2});
  REQUIRE(job.prints("[rank 0] ready"));
  while (!contains(job.log(1), "ready")) std::this_thread::sleep_for(milliseconds(5));
  job.signal(number);
  REQUIRE(job.prints("finishing this step, saving, ending"));
  std::ofstream(directory.path() / "go").flush();
  REQUIRE(job.wait() == 74);
  CHECK(!contains(job.output(), "--resume"));
}

TEST_CASE("Ctrl-C before a rank can save ends with 130 and is no failure",
          "[launcher][job][alone]") {
  TempDir directory;
  Job job(directory, {"print", "ready", "sleep", "30000"}, {.ranks = 2});
  REQUIRE(job.prints("[rank 0] ready"));
  job.signal(SIGINT);
  REQUIRE(job.wait() == 130);
  CHECK(contains(job.output(), "ended by SIGINT before the ranks could save"));
  CHECK(!std::filesystem::exists(job.run_directory() / "failure.json"));
  CHECK(job.alive().empty());
}

TEST_CASE("Ctrl-C twice ends ranks that ignore SIGTERM or are stopped",
          "[launcher][job][alone][not_emulated]") {
  TempDir directory;
  Job job(directory,
          {"ignore-term", "daemon", "child", "print", "ready", "on", "1", "signal", "19", "all",
           "sleep", "30000"},
          {.ranks = 2});
  REQUIRE(job.prints("[rank 0] ready"));
  job.signal(SIGINT);
  REQUIRE(job.prints("once more ends at once"));
  const auto start = Clock::now();
  job.signal(SIGINT);
  REQUIRE(job.wait() == 130);
  CHECK(seconds_since(start) < 2.0);
  CHECK(job.alive().empty());
}

TEST_CASE("daemonised grandchildren and children of a rank end with the job",
          "[launcher][job][alone][not_emulated]") {
  TempDir directory;
  Job job(directory, {"daemon", "child", "print", "done"}, {.ranks = 2});
  REQUIRE(job.wait() == 0);
  CHECK(contains(job.output(), "that the ranks had left behind"));
  CHECK(job.alive().empty());
}

TEST_CASE("an agent that cannot go on with its ranks leaves their logs and says so",
          "[launcher][job]") {
  TempDir directory;
  Job job(directory, {"print", "hello", "sleep", "60000"}, {.ranks = 2});
  REQUIRE(job.prints("hello"));
  const UniqueFd line = controllers_socket(job.pid());
  if (!line) {
    WARN("this machine lets no process take another one's descriptors: not tested");
    return;
  }
  const std::vector<char> garbage(64, '\xff');
  REQUIRE(::write(line.get(), garbage.data(), garbage.size()) == 64);
  CHECK(job.wait() == 70);
  CAPTURE(job.output());
  CHECK(contains(job.output(), "cannot go on"));
  CHECK(contains(job.log(0), "hello"));
  CHECK(job.failure()["root"]["kind"] == "agent");
  CHECK(job.is_gone(milliseconds(5000)));
}

TEST_CASE("a program that cannot be run is named", "[launcher][job]") {
  TempDir directory;
  Job job(directory, {}, {.ranks = 2, .command = {"/no/such/program"}});
  REQUIRE(job.wait() == 127);
  CHECK(contains(job.output(), "cannot run /no/such/program: No such file or directory"));
}

TEST_CASE("eight jobs at once do not collide, and each holds its own rendezvous port",
          "[launcher][job][alone]") {
  TempDir directories[8];
  std::vector<std::unique_ptr<Job>> jobs;
  for (auto& directory : directories) {
    jobs.push_back(std::make_unique<Job>(directory, Script{"connect", "print", "met"},
                                         JobOptions{.ranks = 3}));
  }
  for (const auto& job : jobs) {
    CHECK(job->wait() == 0);
    CHECK(contains(job->output(), "[rank 0] met"));
  }
}

TEST_CASE("a failure of one job leaves another one alone", "[launcher][job][alone]") {
  TempDir first;
  TempDir second;
  Job survivor(first, {"print", "ready", "sleep", "1500", "print", "went on"}, {.ranks = 2});
  REQUIRE(survivor.prints("ready"));
  Job failing(second, {"on", "1", "exit", "3", "all", "sleep", "30000"}, {.ranks = 2});
  CHECK(failing.wait() == 3);
  CHECK(survivor.wait() == 0);
  CHECK(contains(survivor.output(), "went on"));
}

TEST_CASE("four ranks run their first line within half a second",
          "[launcher][job][alone][not_emulated]") {
  TempDir directory;
  const auto start = Clock::now();
  Job job(directory, {"print", "first line"}, {.ranks = 4});
  REQUIRE(job.prints("[rank 0] first line"));
  CHECK(seconds_since(start) < 0.5);
  CHECK(job.wait() == 0);
}

TEST_CASE("the report repeats a rank's last words without their backtrace, the log has all",
          "[launcher][job][alone]") {
  TempDir directory;
  Script script = {"on", "1", "print", "CUDA out of memory"};
  for (int frame = 0; frame < 60; ++frame)
    script.insert(script.end(), {"print", "frame #" + std::to_string(frame) + ": at::add"});
  script.insert(script.end(), {"exit", "3"});
  Job job(directory, script);
  REQUIRE(job.wait() == 3);
  CHECK(job.failure()["last_lines"] == std::vector<std::string>{"CUDA out of memory"});
  CHECK(contains(job.output(), "  | CUDA out of memory\n"));
  CHECK(!contains(job.output(), "frame #"));
  CHECK(contains(job.log(1), "frame #59: at::add\n"));
}
