#include "engine/comm/rendezvous.h"

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/handshake.h"
#include "engine/comm/socket.h"
#include "test/comm/listener.h"
#include "test/comm/store_semantics.h"
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

TEST_CASE("without a way to the other ranks the error says what is missing", "[rendezvous]") {
  const Error error =
      error_of([] { (void)meet_other_ranks({.rank = 0, .size = 4}, environment_of({})); });
  REQUIRE(error.kind() == ErrorKind::usage);
  REQUIRE(contains(error, "a world of 4 ranks needs MASTER_ADDR and MASTER_PORT"));
}

TEST_CASE("ranks with the job's secret meet in its store, and those without are refused",
          "[rendezvous]") {
  test::Listener listener;
  const std::string port = std::to_string(listener.port());
  const Variables common = {{"MASTER_ADDR", "127.0.0.1"},
                            {"MASTER_PORT", port},
                            {"DSTRAIN_JOB_SECRET", std::string(64, 'a')},
                            {"DSTRAIN_GENERATION", "2"}};
  Variables first = common;
  first["DSTRAIN_MASTER_FD"] = std::to_string(listener.hand_over());
  const auto server = meet_other_ranks({.rank = 0, .size = 2}, environment_of(first));
  const auto client = meet_other_ranks({.rank = 1, .size = 2}, environment_of(common));
  test::check_store(*server, *client, "");

  Variables late = common;
  late["DSTRAIN_GENERATION"] = "1";
  const Error error =
      error_of([&] { (void)meet_other_ranks({.rank = 1, .size = 2}, environment_of(late)); });
  REQUIRE(error.kind() == ErrorKind::hosts);
  REQUIRE(contains(error, "handshake for 'store, generation 1' failed"));
}

TEST_CASE("ranks without a secret meet in c10d's store, as under torchrun", "[rendezvous]") {
  const std::string port = std::to_string(comm::listen_on("127.0.0.1", 0).port);
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

}  // namespace
}  // namespace dstrain
