#include "engine/comm/rendezvous.h"

#include <ATen/ops/full.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/handshake.h"
#include "engine/base/socket.h"
#include "engine/comm/communicator.h"
#include "test/comm/operations.h"
#include "test/store/listener.h"
#include "test/store/store_semantics.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

using test::contains;
using test::error_of;
using Variables = std::map<std::string, std::string>;

Environment environment_of(const Variables& variables) {
  return [variables](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

void check_place(const Variables& variables, const RankPlace& expected) {
  const RankPlace place = rank_from_environment(environment_of(variables));
  REQUIRE(place.rank == expected.rank);
  REQUIRE(place.size == expected.size);
  REQUIRE(place.local_rank == expected.local_rank);
}

TEST_CASE("a rank's place is what its launcher says", "[rendezvous]") {
  check_place({}, {});
  check_place({{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}}, {5, 8, 1});
  check_place({{"OMPI_COMM_WORLD_RANK", "2"},
               {"OMPI_COMM_WORLD_SIZE", "3"},
               {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}},
              {2, 3, 1});
  check_place({{"SLURM_PROCID", "6"}, {"SLURM_STEP_NUM_TASKS", "7"}, {"SLURM_LOCALID", "2"}},
              {6, 7, 2});
}

TEST_CASE("the inner launcher counts, and one place never mixes two", "[rendezvous]") {
  Variables variables = {{"SLURM_PROCID", "1"},
                         {"SLURM_STEP_NUM_TASKS", "2"},
                         {"SLURM_LOCALID", "0"},
                         {"SLURM_NTASKS", "2"}};
  // torchrun or an agent inside srun; its local rank is not Slurm's.
  variables.insert({{"RANK", "7"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "3"}});
  check_place(variables, {7, 8, 3});
  // A batch script that starts a process directly: it is alone, whatever the allocation has.
  check_place({{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}}, {});
}

TEST_CASE("a place that cannot be is an error that names the variables", "[rendezvous]") {
  const auto error_with = [](const Variables& variables) {
    return error_of([&] { (void)rank_from_environment(environment_of(variables)); });
  };
  const Error word = error_with({{"RANK", "two"}, {"WORLD_SIZE", "2"}});
  REQUIRE(word.kind() == ErrorKind::usage);
  REQUIRE(contains(word, "RANK='two' is not a whole number"));
  REQUIRE(contains(error_with({{"RANK", "2"}, {"WORLD_SIZE", "2"}}),
                   "rank 2 does not exist in a world of 2 ranks"));
  REQUIRE(contains(error_with({{"WORLD_SIZE", "2"}}), "WORLD_SIZE=2 is set and RANK is not"));
}

TEST_CASE("the port of a plain Slurm step is in its range, and neighbours differ", "[rendezvous]") {
  for (const int job : {1, 77, 655, 1'234'567, 2'147'483'647}) {
    for (int step = 0; step < 20; ++step) {
      const int port = port_of_step(job, step);
      REQUIRE(port >= 20'000);
      REQUIRE(port <= 59'999);
      REQUIRE(port == port_of_step(job, step));
      REQUIRE(port != port_of_step(job, step + 1));
      if (job > 1) REQUIRE(port != port_of_step(job - 1, step));
    }
  }
}

TEST_CASE("rank 0 of a plain Slurm step is on the first host of its node list", "[rendezvous]") {
  REQUIRE(first_host("login") == "login");
  REQUIRE(first_host("a-1,b[2-3]") == "a-1");
  REQUIRE(first_host("n[07-09,12],login") == "n07");
  REQUIRE(first_host("n[5,7-9]") == "n5");
  REQUIRE(first_host("n[5]-ib.site,m1") == "n5-ib.site");
  REQUIRE(first_host("r[1-2]u[01-04],x") == "r1u01");
  REQUIRE(first_host("") == "");
  REQUIRE(first_host("n[1-3") == "n1");  // cut off: no crash
}

TEST_CASE("without a way to the other ranks the error says what is missing", "[rendezvous]") {
  const Error error =
      error_of([] { (void)meet_other_ranks({.rank = 0, .size = 4}, environment_of({})); });
  REQUIRE(error.kind() == ErrorKind::usage);
  REQUIRE(contains(error, "a world of 4 ranks needs MASTER_ADDR and MASTER_PORT"));
}

TEST_CASE("a port that is none is refused as such", "[rendezvous]") {
  const std::string port = GENERATE("0", "65536", "99999");
  const Error error = error_of([&port] {
    (void)meet_other_ranks({.rank = 1, .size = 2},
                           environment_of({{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port}}));
  });
  REQUIRE(error.kind() == ErrorKind::usage);
  REQUIRE(contains(error, "MASTER_PORT=" + port + " is no port"));
}

TEST_CASE("ranks with the job's secret meet in its store, and those without are refused",
          "[rendezvous]") {
  test::Listener listener;
  const std::string port = std::to_string(listener.port());
  const Variables common = {{"MASTER_ADDR", "127.0.0.1"},
                            {"MASTER_PORT", port},
                            {"DSTRAIN_JOB_SECRET", std::string(64, 'a')},
                            {"DSTRAIN_ATTEMPT", "2"}};
  Variables first = common;
  first["DSTRAIN_MASTER_FD"] = std::to_string(listener.hand_over());
  const auto server = meet_other_ranks({.rank = 0, .size = 2}, environment_of(first));
  const auto client = meet_other_ranks({.rank = 1, .size = 2}, environment_of(common));
  test::check_store(*server, *client, "");

  Variables late = common;
  late["DSTRAIN_ATTEMPT"] = "1";
  const Error error =
      error_of([&] { (void)meet_other_ranks({.rank = 1, .size = 2}, environment_of(late)); });
  REQUIRE(error.kind() == ErrorKind::hosts);
  REQUIRE(contains(error, "handshake for 'store, attempt 1' failed"));
}

TEST_CASE("ranks that came name those that did not", "[rendezvous]") {
  using std::chrono::milliseconds;
  const auto store = make_memory_store();
  const auto wait = [&](int rank, int size, milliseconds limit) {
    return error_of([&, rank, size] { wait_for_all(*store, {.rank = rank, .size = size}, limit); });
  };
  const auto start = std::chrono::steady_clock::now();
  std::string told;
  std::thread second([&] { told = wait(2, 5, milliseconds(1500)).what(); });
  const Error error = wait(0, 5, milliseconds(1500));
  second.join();
  CHECK(error.kind() == ErrorKind::hosts);
  CHECK(error.what() == std::string("3 of the 5 ranks did not come within 1.5 s: ranks 1, 3, 4"));
  CHECK(told == error.what());
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
}

TEST_CASE("ranks that all come go on at once", "[rendezvous]") {
  const auto store = make_memory_store();
  std::vector<std::thread> ranks;
  const auto start = std::chrono::steady_clock::now();
  for (int rank = 0; rank < 8; ++rank) {
    ranks.emplace_back(
        [&, rank] { wait_for_all(*store, {.rank = rank, .size = 8}, std::chrono::seconds(60)); });
  }
  for (std::thread& rank : ranks) rank.join();
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
}

TEST_CASE("rank 0 leaves when all others have left, or late", "[rendezvous]") {
  const auto store = make_memory_store();
  const auto start = std::chrono::steady_clock::now();
  std::atomic<int> left = 0;
  std::vector<std::thread> others;
  for (int rank = 1; rank < 4; ++rank) {
    others.emplace_back([&, rank] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100 * rank));
      ++left;
      leave(*store, {.rank = rank, .size = 4});
    });
  }
  leave(*store, {.rank = 0, .size = 4});
  CHECK(left == 3);
  for (std::thread& other : others) other.join();
  const auto alone = make_memory_store();
  leave(*alone, {.rank = 0, .size = 2});  // the other has died
  leave(*alone, {.rank = 0, .size = 1});
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(30));
}

TEST_CASE("ranks without a secret meet in c10d's store, as under torchrun", "[rendezvous]") {
  const std::string port = std::to_string(listen_on("127.0.0.1", 0).port);
  const Variables common = {{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port}};
  const auto server = meet_other_ranks({.rank = 0, .size = 2}, environment_of(common));
  const auto client = meet_other_ranks({.rank = 1, .size = 2}, environment_of(common));
  test::check_store(*server, *client, "");
  // torchrun's agent serves the store: rank 0 joins it like the others.
  Variables served = common;
  served["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  const auto joined = meet_other_ranks({.rank = 0, .size = 2}, environment_of(served));
  REQUIRE(joined->try_get("fruit") == "fig");
}

TEST_CASE("tasks of a plain Slurm step meet at its first host", "[rendezvous]") {
  // A job number whose port is free: the first of a few.
  for (int job = 100;; ++job) {
    REQUIRE(job < 120);
    const Variables step = {{"SLURM_STEP_NODELIST", "localhost"},
                            {"SLURM_STEP_NUM_NODES", std::to_string(1 + job % 2)},
                            {"SLURM_JOB_ID", std::to_string(job)},
                            {"SLURM_STEP_ID", "1"}};
    std::shared_ptr<Store> server;
    const Error error =
        error_of([&] { server = meet_other_ranks({.rank = 0, .size = 2}, environment_of(step)); });
    if (!server) continue;
    const auto client = meet_other_ranks({.rank = 1, .size = 2}, environment_of(step));
    test::check_store(*server, *client, "");
    return;
  }
}

/// One rank of whatever launcher has started this executable with the name of this test case; says
/// on standard output what it found.
TEST_CASE("plain rank", "[.child]") {
  const Environment environment = [](const char* name) { return std::getenv(name); };
  const RankPlace place = rank_from_environment(environment);
  try {
    if (place.size < 2) throw Error(ErrorKind::usage, "this process is alone");
    const auto store = meet_other_ranks(place, environment);
    const auto comm = make_communicator(
        store,
        {.name = "all", .ranks = test::all_ranks(place.size), .rank = place.rank, .timeout_s = 30});
    at::Tensor sum = at::full({1}, static_cast<float>(place.rank + 1));
    comm->all_reduce(sum, ReduceOp::sum);
    comm->barrier();
    std::printf("rank %d of %d by %s: sum %.0f\n", place.rank, place.size,
                store->local_address().c_str(), static_cast<double>(sum.item<float>()));
    // Rank 0 serves: it leaves last.
    if (store->add("left", 1) == place.size) store->set("all left", "yes");
    if (place.rank == 0) (void)store->get("all left", std::chrono::milliseconds(30'000));
  } catch (const Error& error) {
    std::printf("rank %d: error: %s\n", place.rank, error.what());
  }
}

TEST_CASE("ranks that mpirun starts meet without an address", "[rendezvous][mpirun]") {
  if (std::system("command -v mpirun >/dev/null") != 0) {
    WARN("skipped: no mpirun on this machine");
    return;
  }
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string command = "timeout 60 mpirun -n 4 --allow-run-as-root --oversubscribe '" +
                              program + "' 'plain rank' 2>&1";
  std::string output;
  std::FILE* pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::array<char, 4096> bytes{};
  while (const std::size_t count = std::fread(bytes.data(), 1, bytes.size(), pipe)) {
    output.append(bytes.data(), count);
  }
  const int status = ::pclose(pipe);
  CAPTURE(output);
  REQUIRE(status == 0);
  for (int rank = 0; rank < 4; ++rank) {
    const std::string line = "rank " + std::to_string(rank) + " of 4 by 127.0.0.1: sum 10\n";
    REQUIRE(output.find(line) != std::string::npos);
  }
}

}  // namespace
}  // namespace dstrain
