#include "launcher/allocation.h"

#include <fstream>

#include "engine/base/error.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

using namespace dstrain;
using namespace dstrain::launcher;

TEST_CASE("GPUs are the numbered device nodes", "[launcher][machine]") {
  dstrain::test::TempDir dev;
  for (const char* name :
       {"nvidia0", "nvidia1", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia", "null"}) {
    std::ofstream file(dev / name);
  }
  CHECK(count_gpu_nodes(dev.path()) == 3);
  CHECK(count_gpu_nodes(dev / "absent") == 0);
}

TEST_CASE("CUDA_VISIBLE_DEVICES ends at the first entry that names no GPU", "[launcher][machine]") {
  CHECK(count_visible_gpus(4, std::nullopt) == 4);
  CHECK(count_visible_gpus(4, "") == 0);
  CHECK(count_visible_gpus(4, "-1") == 0);
  CHECK(count_visible_gpus(4, "1,3") == 2);
  CHECK(count_visible_gpus(4, " 2 , 0") == 2);
  CHECK(count_visible_gpus(4, "0,4,1") == 1);
  CHECK(count_visible_gpus(4, "0,-1,1") == 1);
  CHECK(count_visible_gpus(4, "GPU-8932f937,MIG-1a2b") == 2);
  CHECK(count_visible_gpus(0, "0,1") == 0);
}

TEST_CASE("ranks default to the GPUs, or one without", "[launcher][allocation]") {
  CHECK(allocate_local({.host = "h", .cores = 8, .gpus = 4, .gpus_installed = 4}, 0)
            .hosts.front()
            .slots == 4);
  CHECK(allocate_local({.host = "h", .cores = 8}, 0).hosts.front().slots == 1);
  CHECK(allocate_local({.host = "h", .cores = 8}, 6).hosts.front().slots == 6);
}

TEST_CASE("more ranks than GPUs is an error with both numbers", "[launcher][allocation]") {
  const Machine machine{.host = "h", .cores = 8, .gpus = 2, .gpus_installed = 2};
  REQUIRE_THROWS_WITH(allocate_local(machine, 4), "--ranks 4: h has 2 visible GPUs");
  REQUIRE_THROWS_AS(allocate_local(machine, -1), Error);
}

TEST_CASE("an empty CUDA_VISIBLE_DEVICES asks for CPU ranks and is remarked on",
          "[launcher][allocation]") {
  const Machine machine{
      .host = "h", .cores = 8, .gpus = 0, .gpus_installed = 2, .gpus_hidden = true};
  const Allocation allocation = allocate_local(machine, 4);
  CHECK(allocation.hosts.front().slots == 4);
  REQUIRE(allocation.remarks.size() == 1);
  CHECK(allocation.remarks.front() ==
        "CUDA_VISIBLE_DEVICES shows none of the 2 GPUs of h: the ranks run on CPU");
}
