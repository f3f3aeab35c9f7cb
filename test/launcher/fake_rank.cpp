// A rank for tests of the launcher: carries out its arguments from left to right.
// - on R ACTION...: carry out the actions up to the next `all` only as rank R
// - in G: of these ranks only those of the job's start G, counted from 0
// - all: from here on every rank
// - sleep MS: restarted after signals
// - until PATH: waits for a file
// - meet: waits until every rank of this start has come here
// - exit N | signal N | ignore-term | finish-on-term
// - print TEXT | lines N | env NAME | read-stdin
// - enter STEP ACTION | fail CODE TEXT | section NAME: the rank record
// - plan SECONDS: what plan.json says of a step
// - progress MS COUNT: COUNT actions, each of MS milliseconds
// - steps MS COUNT: the same as training steps, without any waiting
// - collective N TEXT: enters collectives until it has entered N, with TEXT as their operation
// - leave: leaves the last collective
// - loop-forever: in a function of that name
// - fifo PATH: reads a pipe, which blocks while it has no writer
// - vfork: waits in the kernel (state D) for ever
// - allocate MIB: memory that it writes to and keeps
// - report TEXT: one line into the report pipe
// - arguments: prints what the launcher has appended
// - checkpoint STEP: what the launcher takes for a complete one
// - daemon: a grandchild in a session of its own that ignores SIGTERM and never ends
// - child: a child in this process group that never ends
// - connect: rank 0 accepts on the inherited socket, the others connect to it
// Behind the recipe `--measure FILE`, the measurement of a preflight: nothing of all that, but rank
// 0 writes FAKE_RATES into the file, or the same rates for hosts of one rank each;
// FAKE_RATES=fail:R fails on rank R.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/job_environment.h"
#include "engine/base/rank_record.h"
#include "engine/base/run_layout.h"

namespace {

namespace env = dstrain::job_environment;

int number(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? -1 : std::atoi(text);
}

void say(const std::string& text) {
  [[maybe_unused]] const auto written = ::write(STDOUT_FILENO, text.data(), text.size());
}

[[noreturn]] void sleep_for_ever() {
  while (true) ::pause();
}

/// Returns when the daemon is there, in a session of its own.
void daemonise() {
  if (const pid_t between = ::fork(); between != 0) {
    ::waitpid(between, nullptr, 0);
    return;
  }
  ::setsid();
  ::signal(SIGTERM, SIG_IGN);
  if (::fork() == 0) sleep_for_ever();
  ::_exit(0);
}

void finish(int) { ::_exit(0); }

/// The words from the recipe on.
std::string appended(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    if (text.empty() && !word.ends_with("/recipe.yaml")) continue;
    text += (text.empty() ? "" : " ") + word;
  }
  return text;
}

void wait_for(const std::filesystem::path& path) {
  while (!std::filesystem::exists(path)) std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

/// By files in the run directory, which works over hosts without any help of the launcher.
void meet(int rank) {
  const auto name = [](int of) {
    return std::filesystem::path(std::getenv(env::kRunDirectory)) /
           ("met-" + std::string(std::getenv(env::kAttempt)) + "-" + std::to_string(of));
  };
  std::ofstream(name(rank)).flush();
  for (int other = 0; other < number(env::kWorldSize); ++other) wait_for(name(other));
}

void write_checkpoint(const std::string& step) {
  const std::filesystem::path folder =
      dstrain::RunLayout(std::getenv(env::kRunDirectory)).checkpoints() /
      dstrain::checkpoint_name(std::stoll(step));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "MANIFEST.json") << "{}\n";
}

/// Has a name that a stack shows.
[[noreturn]] __attribute__((noinline)) void loop_forever() {
  volatile std::uint64_t turns = 0;
  while (true) turns = turns + 1;
}

/// Blocks in open() until there is a writer.
__attribute__((noinline)) void read_fifo(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  char byte = 0;
  [[maybe_unused]] const auto got = ::read(fd, &byte, 1);
  ::close(fd);
}

/// The parent of a vfork() cannot be woken, nor traced, until its child ends. By clone(), as the
/// thread sanitizer makes a fork() of it.
__attribute__((noinline)) void wait_in_kernel() {
  static std::array<char, 16 << 10> stack;
  const auto child = [](void*) {
    while (true) ::pause();
    return 0;
  };
  ::clone(child, stack.data() + stack.size(), CLONE_VM | CLONE_VFORK | SIGCHLD, nullptr);
}

void allocate(std::size_t bytes) {
  constexpr std::size_t kPage = 4096;
  auto* memory = static_cast<volatile char*>(std::malloc(bytes));
  if (memory == nullptr) std::abort();
  for (std::size_t i = 0; i < bytes; i += kPage) memory[i] = 1;
}

dstrain::RankSection section_named(const std::string& name) {
  using enum dstrain::RankSection;
  for (const auto section : {init, data, step, evaluate, checkpoint, finish}) {
    if (dstrain::name_of(section) == name) return section;
  }
  std::abort();
}

/// Returns the exit code.
int measure(int rank, const std::string& file) {
  const char* rates = std::getenv("FAKE_RATES");
  if (rates != nullptr && std::string(rates) == "fail:" + std::to_string(rank)) return 7;
  if (rank != 0) return 0;
  std::string text = rates == nullptr ? "" : rates;
  for (int host = 0; rates == nullptr && host < number(env::kWorldSize); ++host)
    text += std::string(host > 0 ? ", " : "") + R"({"product_tflops": [1.0], "pair_gb_s": 2.0})";
  std::ofstream(file) << R"({"hosts": [)" << text << "]}\n";
  return 0;
}

bool connect_to_master() {
  if (number(env::kRank) == 0) {
    for (int peer = 1; peer < number(env::kWorldSize); ++peer) {
      if (::accept(number(env::kMasterFd), nullptr, nullptr) < 0) return false;
    }
    return true;
  }
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(number(env::kMasterPort)));
  ::inet_pton(AF_INET, std::getenv(env::kMasterAddress), &address.sin_addr);
  return ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const int rank = number(env::kRank);
  auto record = dstrain::RankRecordFile::open(std::getenv(env::kRankRecord));
  if (words.size() > 1 && words[words.size() - 2] == "--measure")
    return measure(rank, words.back());
  bool mine = true;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const auto text = [&words, &i] { return words.at(++i); };
    if (word == "all") {
      mine = true;
    } else if (word == "on") {
      mine = std::stoi(text()) == rank;
    } else if (word == "in") {
      mine = std::stoi(text()) == number(env::kAttempt) && mine;
    } else if (word == "sleep") {
      const int ms = std::stoi(text());
      if (mine) std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    } else if (word == "until") {
      const std::string path = text();
      if (mine) wait_for(path);
    } else if (word == "meet") {
      if (mine) meet(rank);
    } else if (word == "exit") {
      const int code = std::stoi(text());
      if (mine) ::_exit(code);
    } else if (word == "signal") {
      const int signal = std::stoi(text());
      // A sanitizer's runtime may have a handler of its own.
      if (mine) ::signal(signal, SIG_DFL);
      if (mine) ::kill(::getpid(), signal);
    } else if (word == "ignore-term") {
      if (mine) ::signal(SIGTERM, SIG_IGN);
    } else if (word == "finish-on-term") {
      if (mine) ::signal(SIGTERM, finish);
    } else if (word == "print") {
      const std::string line = text();
      if (mine) say(line + "\n");
    } else if (word == "lines") {
      const int count = std::stoi(text());
      for (int line = 0; mine && line < count; ++line) {
        say("rank " + std::to_string(rank) + " line " + std::to_string(line) + "\n");
      }
    } else if (word == "env") {
      const std::string name = text();
      const char* value = std::getenv(name.c_str());
      if (mine) say(name + "=" + (value == nullptr ? "(unset)" : value) + "\n");
    } else if (word == "read-stdin") {
      char byte = 0;
      if (mine) say("stdin gives " + std::to_string(::read(STDIN_FILENO, &byte, 1)) + "\n");
    } else if (word == "enter") {
      const int step = std::stoi(text());
      const std::string action = text();
      if (mine) record.enter(step, action);
    } else if (word == "fail") {
      const int code = std::stoi(text());
      const std::string error = text();
      if (mine) record.fail(error, code);
    } else if (word == "plan") {
      const std::string seconds = text();
      if (mine && rank == 0) {
        std::ofstream(std::filesystem::path(std::getenv(env::kRunDirectory)) / "plan.json")
            << "{\"step_s\": " << seconds << "}";
      }
    } else if (word == "section") {
      const std::string name = text();
      if (mine) record.enter_section(section_named(name));
    } else if (word == "progress" || word == "steps") {
      const int ms = std::stoi(text());
      const int count = std::stoi(text());
      for (int done = 0; mine && done < count; ++done) {
        if (word == "steps") record.begin_step();
        std::this_thread::sleep_for(std::chrono::milliseconds(ms));
        record.enter(done, "progress");
        if (word == "steps") record.end_step();
      }
    } else if (word == "collective") {
      const int number = std::stoi(text());
      const std::string operation = text();
      while (mine && record.get().collectives < number) {
        if (record.get().collectives > record.get().collectives_left) record.leave_collective();
        record.enter_collective(operation, ::number(env::kWorldSize), 0);
      }
    } else if (word == "leave") {
      if (mine) record.leave_collective();
    } else if (word == "loop-forever") {
      if (mine) loop_forever();
    } else if (word == "fifo") {
      const std::string path = text();
      if (mine) read_fifo(path);
    } else if (word == "vfork") {
      if (mine) wait_in_kernel();
    } else if (word == "allocate") {
      const std::size_t bytes = std::stoull(text()) << 20;
      if (mine) allocate(bytes);
    } else if (word == "report") {
      const std::string line = text() + "\n";
      if (mine && rank == 0) {
        [[maybe_unused]] const auto written =
            ::write(number(env::kReportFd), line.data(), line.size());
      }
    } else if (word == "arguments") {
      if (mine) say(appended(words) + "\n");
    } else if (word == "checkpoint") {
      const std::string step = text();
      if (mine) write_checkpoint(step);
    } else if (word == "daemon") {
      if (mine) daemonise();
    } else if (word == "child") {
      if (mine && ::fork() == 0) sleep_for_ever();
    } else if (word == "connect") {
      if (mine && !connect_to_master()) ::_exit(9);
    } else {
      return 0;  // the recipe, which the launcher appends
    }
  }
  return 0;
}
