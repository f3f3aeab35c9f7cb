#include "launcher/hang/stacks.h"

#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <thread>

#include "launcher/hang/kernel_state.h"
#include "launcher/job/rank_process.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain::launcher {
namespace {

using Clock = std::chrono::steady_clock;
using Catch::Contains;
using std::chrono::milliseconds;

constexpr milliseconds kLimit{5000};

/// A fake_rank started as the agent starts one.
class Started {
 public:
  explicit Started(std::vector<std::string> script) {
    script.insert(script.begin(), FAKE_RANK);
    rank_ = start_rank({.command = std::move(script), .environment = {}});
  }
  ~Started() {
    ::kill(-pid(), SIGKILL);
    ::waitpid(pid(), nullptr, 0);
  }
  Started(const Started&) = delete;
  Started& operator=(const Started&) = delete;

  [[nodiscard]] pid_t pid() const { return rank_.pid; }
  /// Waits until the rank has recorded an action; then it goes on to what the test is about.
  void wait_until_entered(int actions = 1) const {
    const auto deadline = Clock::now() + std::chrono::seconds(10);
    while (rank_.record.get().progress < actions) {
      REQUIRE(Clock::now() < deadline);
      std::this_thread::sleep_for(milliseconds(2));
    }
    std::this_thread::sleep_for(milliseconds(50));
  }
  void wait_for_state(char state) const {
    const auto deadline = Clock::now() + std::chrono::seconds(10);
    while (process_state(pid()) != state) {
      REQUIRE(Clock::now() < deadline);
      std::this_thread::sleep_for(milliseconds(2));
    }
  }

 private:
  RankProcess rank_;
};

std::string take(pid_t process, milliseconds limit = kLimit) {
  StackTaker taker(process, limit);
  while (!taker.advance(Clock::now())) {
    pollfd news{taker.fd(), POLLIN, 0};
    ::poll(&news, 1, 20);
  }
  std::string text = taker.text();
  while (::waitpid(-1, nullptr, WNOHANG) > 0) {
  }
  return text;
}

}  // namespace

TEST_CASE("the stack of an endless loop names its function, then its callers",
          "[stacks][not_emulated]") {
  const Started rank({"enter", "1", "work", "loop-forever"});
  rank.wait_until_entered();
  const std::string text = take(rank.pid());
  INFO(text);
  const auto loop = text.find("loop_forever");
  const auto main = text.find("\nmain");
  REQUIRE(loop != std::string::npos);
  REQUIRE(main != std::string::npos);
  REQUIRE(loop < main);
  REQUIRE(process_state(rank.pid()) == 'R');
}

TEST_CASE("a rank stopped by SIGSTOP shows its stack and stays stopped", "[stacks][not_emulated]") {
  const Started rank({"enter", "1", "work", "loop-forever"});
  rank.wait_until_entered();
  ::kill(rank.pid(), SIGSTOP);
  rank.wait_for_state('T');
  const std::string text = take(rank.pid());
  INFO(text);
  REQUIRE_THAT(text, Contains("loop_forever") && Contains("state T"));
  // Between the end of tracing and the stop that libdw repeats it runs for a moment.
  rank.wait_for_state('T');
  ::kill(rank.pid(), SIGCONT);
  rank.wait_for_state('R');
}

TEST_CASE("a rank that waits for a pipe shows the pipe's path", "[stacks][not_emulated]") {
  const dstrain::test::TempDir directory;
  const std::string fifo = (directory / "train.fifo").string();
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  const Started rank({"enter", "1", "load", "fifo", fifo});
  rank.wait_until_entered();
  const std::string text = take(rank.pid());
  INFO(text);
  REQUIRE_THAT(text, Contains("[kernel] openat(" + fifo + ")") && Contains("read_fifo"));
}

TEST_CASE("a rank that the kernel holds is shown as /proc tells it, at once",
          "[stacks][not_emulated]") {
  const Started rank({"enter", "1", "save", "vfork"});
  rank.wait_until_entered();
  rank.wait_for_state('D');
  const auto start = Clock::now();
  const std::string text = take(rank.pid());
  INFO(text);
  REQUIRE_THAT(text, Contains("[kernel] state D"));
  REQUIRE(Clock::now() - start < milliseconds(2500));
}

TEST_CASE("without libdw and tools there is still what /proc tells", "[stacks]") {
  // A limit that is over before anything can be traced.
  const Started rank({"enter", "1", "work", "sleep", "100000"});
  rank.wait_until_entered();
  StackTaker taker(rank.pid(), milliseconds(1));
  std::this_thread::sleep_for(milliseconds(1));
  REQUIRE(taker.advance(Clock::now()));
  REQUIRE(taker.fd() == -1);
  rank.wait_for_state('S');
}

TEST_CASE("a process that is gone has no stack and costs no time", "[stacks]") {
  const auto start = Clock::now();
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  REQUIRE(take(child).empty());
  REQUIRE(Clock::now() - start < milliseconds(2000));
}

TEST_CASE("what eu-stack and gdb print becomes frames of threads", "[stacks]") {
  const auto elfutils = parse_stacks(
      "PID 12 - process\nTID 12:\n#0  0x00007f6af7729aec pselect\n#1  0x000056172e6ca094 - 1 "
      "shtimer_select(int)\nTID 13:\n#0  0x00007f6af7729aec\n");
  REQUIRE(elfutils.size() == 2);
  REQUIRE(elfutils[0].thread == 12);
  REQUIRE(elfutils[0].frames == std::vector<std::string>{"pselect", "shtimer_select(int)"});
  REQUIRE(elfutils[1].frames.empty());
  const auto gdb = parse_stacks(
      "[New LWP 15]\nThread 2 (Thread 0x7f (LWP 15) \"loader\"):\n#0  0x00007f12 in read () from "
      "/lib/libc.so.6\n#1  main (argc=1) at x.cpp:3\n");
  REQUIRE(gdb.size() == 1);
  REQUIRE(gdb[0].thread == 15);
  REQUIRE(gdb[0].frames ==
          std::vector<std::string>{"read () from /lib/libc.so.6", "main (argc=1) at x.cpp:3"});
}

TEST_CASE("threads of our own are shown, equal ones once, those of libraries are counted",
          "[stacks]") {
  const std::vector<ThreadStack> threads = {
      {.thread = 7, .name = "rank", .kernel = "futex() in futex_wait", .frames = {"wait", "main"}},
      {.thread = 8, .name = "loader", .frames = {"wait", "dstrain::Loader::work()"}},
      {.thread = 9, .name = "loader", .frames = {"wait", "dstrain::Loader::work()"}},
      {.thread = 10,
       .name = "saver",
       .kernel = "fsync(5: /ckpt)",
       .frames = {"fsync", "dstrain::Save"}},
      {.thread = 11, .name = "pool", .frames = {"wait", "gomp"}}};
  REQUIRE(to_text(7, threads) ==
          "[kernel] futex() in futex_wait\nwait\nmain\n"
          "-- thread saver\n[kernel] fsync(5: /ckpt)\nfsync\ndstrain::Save\n"
          "-- 2 threads loader\nwait\ndstrain::Loader::work()\n"
          "-- 1 threads of libraries\n");
}

TEST_CASE("frames without names of one library are one line", "[stacks]") {
  const ThreadStack rank = {
      .thread = 7,
      .name = "rank",
      .frames = {"?? in libcuda.so", "?? in libcuda.so", "cuLaunchKernel in libcuda.so",
                 "?? in libcuda.so", "?? in rank", "main"}};
  REQUIRE(to_text(7, {rank}) ==
          "?? in libcuda.so\ncuLaunchKernel in libcuda.so\n?? in libcuda.so\n?? in rank\nmain\n");
}

}  // namespace dstrain::launcher
