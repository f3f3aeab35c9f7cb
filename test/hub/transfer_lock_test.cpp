#include "engine/hub/transfer_lock.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <optional>
#include <thread>
#include <vector>

#include "engine/base/file.h"
#include "test/support/temp_dir.h"

namespace dstrain::hub {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using test::TempDir;

constexpr auto kNever = [] { return false; };

TEST_CASE("one of many holds the lock at a time", "[hub][not_emulated]") {
  const TempDir folder;
  std::atomic<int> inside = 0, max = 0, turns = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&] {
      const TransferLock lock(folder.path() / "locks/a", folder.path() / "part", kNever);
      const int now = ++inside;
      if (now > max) max = now;
      std::this_thread::sleep_for(milliseconds(5));
      --inside;
      ++turns;
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(max == 1);
  CHECK(turns == 8);
  CHECK(fs::is_empty(folder.path() / "locks"));
}

TEST_CASE("whoever waits leaves when the work is done", "[hub][not_emulated]") {
  const TempDir folder;
  const TransferLock first(folder.path() / "a", folder.path() / "part", kNever);
  std::atomic<bool> done = false;
  std::thread waiter([&] {
    const TransferLock second(folder.path() / "a", folder.path() / "part",
                              [&] { return done.load(); });
    CHECK_FALSE(second.holds());
  });
  std::this_thread::sleep_for(milliseconds(50));
  done = true;
  waiter.join();
  CHECK(first.is_still_ours());
}

TEST_CASE("the lock of a process that was killed is taken over at once", "[hub]") {
  const TempDir folder;
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const TransferLock lock(folder.path() / "a", folder.path() / "part", kNever);
    ::kill(::getpid(), SIGKILL);
  }
  // It is still listed among the processes: nobody has asked how it ended.
  siginfo_t ended{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT) == 0);
  REQUIRE(fs::exists(folder.path() / "a/holder"));
  const auto start = std::chrono::steady_clock::now();
  const TransferLock lock(folder.path() / "a", folder.path() / "part", kNever);
  CHECK(lock.holds());
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(60));
  REQUIRE(::waitpid(child, nullptr, 0) == child);
}

TEST_CASE("the lock of another machine is taken over when nothing grows", "[hub]") {
  const TempDir folder;
  fs::create_directories(folder.path() / "a");
  write_file_atomically(folder.path() / "a/holder", "elsewhere/boot/space 1 2 3.4\n");
  std::atomic<bool> grows = true;
  std::thread writer([&] {
    for (int i = 1; grows; ++i) {
      write_file_atomically(folder.path() / "part", std::string(static_cast<std::size_t>(i), 'a'));
      std::this_thread::sleep_for(milliseconds(50));
    }
  });
  std::atomic<bool> taken = false;
  std::thread taker([&] {
    const TransferLock lock(folder.path() / "a", folder.path() / "part", kNever,
                            milliseconds(2000));
    taken = true;
  });
  std::this_thread::sleep_for(milliseconds(3000));
  CHECK_FALSE(taken);
  grows = false;
  writer.join();
  taker.join();
  CHECK(taken);
}

TEST_CASE("a holder whose lock was taken over knows it, and leaves it alone", "[hub]") {
  const TempDir folder;
  std::optional<TransferLock> lock;
  lock.emplace(folder.path() / "a", folder.path() / "part", kNever);
  write_file_atomically(folder.path() / "a/holder", "another\n");
  CHECK_FALSE(lock->is_still_ours());
  lock.reset();
  CHECK(read_file(folder.path() / "a/holder") == "another\n");
}

}  // namespace
}  // namespace dstrain::hub
