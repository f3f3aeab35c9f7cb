#include <ATen/ops/ones.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/comm/communicator.h"
#include "engine/comm/tcp_store.h"
#include "test/comm/child_process.h"
#include "test/comm/operations.h"
#include "test/store/listener.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

// Ranks as processes: this executable starts itself with the hidden test case below as one rank.

namespace dstrain {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

int number(const char* variable) { return std::stoi(std::getenv(variable)); }

TEST_CASE("child rank", "[.child]") {
  if (std::getenv("COMM_TEST_DIR") == nullptr) return;
  const int rank = number("COMM_TEST_RANK");
  const int size = number("COMM_TEST_SIZE");
  const std::string stem = fmt::format("{}/rank{}", std::getenv("COMM_TEST_DIR"), rank);
  StoreOptions store_options{.port = number("COMM_TEST_PORT"), .serve = rank == 0};
  if (rank == 0) store_options.listen_fd = number("COMM_TEST_FD");
  const CommunicatorOptions options{
      .name = "all", .ranks = test::all_ranks(size), .rank = rank, .timeout_s = 60};
  try {
    const auto store = make_tcp_store(store_options);
    const auto comm = make_communicator(store, options);
    test::check_operations(*comm, at::kCPU, at::kFloat, 1000);
    write_file_atomically(stem + ".ready", "");
    at::Tensor x = at::ones({1 << 16});
    for (;;) {
      comm->all_reduce(x, ReduceOp::max);
      // Longer steps on one rank, so that the others are inside the call most of the time.
      if (rank == 1) std::this_thread::sleep_for(milliseconds(5));
    }
  } catch (const Error& error) {
    write_file_atomically(stem + ".error",
                          fmt::format("{} {}", exit_code(error.kind()), error.what()));
  }
}

pid_t start_rank(int rank, int size, const test::Listener& listener,
                 const std::filesystem::path& directory) {
  return test::start_child("child rank",
                           {{"COMM_TEST_DIR", directory.string()},
                            {"COMM_TEST_RANK", std::to_string(rank)},
                            {"COMM_TEST_SIZE", std::to_string(size)},
                            {"COMM_TEST_PORT", std::to_string(listener.port())},
                            {"COMM_TEST_FD", std::to_string(listener.fd())}},
                           rank == 0 ? -1 : listener.fd());
}

bool appears(const std::filesystem::path& path, milliseconds timeout) {
  for (const auto deadline = Clock::now() + timeout; Clock::now() < deadline;) {
    if (std::filesystem::exists(path)) return true;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return false;
}

TEST_CASE("kill -9 of a rank ends the others' Gloo calls within two seconds", "[comm]") {
  const int size = GENERATE(2, 4);
  const int victim = GENERATE(0, 1);
  CAPTURE(size, victim);
  const test::TempDir directory;
  std::vector<pid_t> ranks;
  {
    const test::Listener listener;
    for (int rank = 0; rank < size; ++rank) {
      ranks.push_back(start_rank(rank, size, listener, directory.path()));
    }
  }  // the ranks hold the socket now
  bool all_ready = true;
  for (int rank = 0; rank < size; ++rank) {
    all_ready =
        all_ready && appears(directory / fmt::format("rank{}.ready", rank), milliseconds(60'000));
  }
  const auto killed = Clock::now();
  for (int rank = 0; rank < size; ++rank) {
    // A start that failed leaves nothing behind either.
    if (rank == victim || !all_ready) ::kill(ranks.at(static_cast<std::size_t>(rank)), SIGKILL);
  }
  std::vector<std::string> errors;
  for (int rank = 0; rank < size && all_ready; ++rank) {
    if (rank == victim) continue;
    const auto path = directory / fmt::format("rank{}.error", rank);
    errors.push_back(appears(path, milliseconds(20'000)) ? read_file(path) : "none");
  }
  const auto elapsed = Clock::now() - killed;
  for (const pid_t pid : ranks) {
    if (errors.empty() || errors.back() == "none") ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  REQUIRE(all_ready);
  REQUIRE(elapsed < milliseconds(2000));
  std::size_t next = 0;
  for (int rank = 0; rank < size; ++rank) {
    if (rank == victim) continue;
    const std::string& error = errors.at(next++);
    CAPTURE(error);
    REQUIRE(error.starts_with(
        fmt::format("75 all_reduce (group 'all', rank {} of {}) failed: ", rank, size)));
  }
}

}  // namespace
}  // namespace dstrain
