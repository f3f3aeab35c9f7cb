#include "launcher/hosts/placement.h"

#include "engine/base/file.h"
#include "test/support/catch.h"

using namespace dstrain;
using namespace dstrain::launcher;

TEST_CASE("ranks are numbered by host order, then by slot", "[launcher][placement]") {
  Allocation allocation;
  allocation.hosts = {{.name = "a", .address = "10.0.0.1", .slots = 2},
                      {.name = "b", .address = "10.0.0.2", .slots = 3}};
  const Placement placement = place(allocation);
  CHECK(placement.world_size == 5);
  CHECK(placement.nodes[1].first_rank == 2);
  CHECK(placement.nodes[1].num_ranks == 3);
}

TEST_CASE("the dry run prints placement, environment and commands",
          "[launcher][placement][golden]") {
  Allocation allocation;
  allocation.hosts = {
      {.name = "node-1", .address = "127.0.0.1", .slots = 2, .gpus = 2, .cores = 16}};
  const Placement placement = place(allocation);
  const PrepareJob job{.run_directory = "/home/ada/runs/quickstart-<utc time>-<short id>",
                       .working_directory = "/work",
                       .command = {"/opt/dstrain", "engine", "/home/ada/it's here/recipe.yaml"},
                       .environment = {},
                       .host = "node-1",
                       .first_rank = 0,
                       .num_ranks = 2,
                       .world_size = 2,
                       .cores = 16,
                       .rendezvous_address = "127.0.0.1"};
  CHECK(describe(placement, {job}, {}) == read_file("test/launcher/golden/dry_run.txt"));

  Placement elsewhere = placement;
  elsewhere.nodes[0].host.reach = Reach::ssh;
  CHECK(describe(elsewhere, {job}, {}).find("node-1: ranks 0-1, 2 GPUs\n") != std::string::npos);
  elsewhere.nodes[0].host.gpus = 0;
  CHECK(describe(elsewhere, {job}, {}).find("ranks 0-1, GPUs and cores are known when") !=
        std::string::npos);
}

TEST_CASE("threads are shared among the ranks of a node, at least one each",
          "[launcher][placement]") {
  PrepareJob job;
  job.num_ranks = 4;
  job.cores = 2;
  const StartRanks start{"127.0.0.1", 1234};
  CHECK(rank_environment(job, start, 1, {.waiting = true}).back() == "OMP_NUM_THREADS=1");
  CHECK(rank_environment(job, start, 1, {.threads = true}).back() == "OMP_WAIT_POLICY=passive");
  CHECK(rank_environment(job, start, 1, {.threads = true, .waiting = true}).back() ==
        "DSTRAIN_RUN_DIR=");
}

TEST_CASE("what the user says about OpenMP's threads and how they wait stays",
          "[launcher][placement]") {
  const auto choice = [](std::string_view set) {
    return openmp_choice([set](const char* name) { return set == name ? "2" : nullptr; });
  };
  CHECK((choice("OMP_NUM_THREADS").threads && !choice("OMP_NUM_THREADS").waiting));
  CHECK((choice("OMP_WAIT_POLICY").waiting && choice("GOMP_SPINCOUNT").waiting));
  CHECK((!choice("HOME").threads && !choice("HOME").waiting));
}
