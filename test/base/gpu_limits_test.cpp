#include "engine/base/gpu_limits.h"

#include "test/support/catch.h"

using namespace dstrain;

TEST_CASE("limits of GPUs by their compute capability", "[base]") {
  struct Row {
    int major, minor, block_kib;
    bool bf16, fp8, async, clusters, warpgroups;
  };
  for (const Row& row :
       {Row{7, 0, 96, false, false, false, false, false},
        Row{7, 5, 64, false, false, false, false, false},
        Row{8, 0, 163, true, false, true, false, false},
        Row{8, 6, 99, true, false, true, false, false},
        Row{8, 9, 99, true, true, true, false, false}, Row{9, 0, 227, true, true, true, true, true},
        Row{10, 0, 227, true, true, true, true, false},
        Row{10, 3, 227, true, true, true, true, false},
        Row{12, 0, 99, true, true, true, true, false},
        Row{12, 1, 99, true, true, true, true, false}}) {
    INFO(row.major << "." << row.minor);
    const GpuLimits limits = limits_of_capability(row.major, row.minor);
    CHECK(limits.major == row.major);
    CHECK(limits.minor == row.minor);
    CHECK(limits.shared_block == Bytes{row.block_kib} << 10);
    CHECK(limits.shared_multiprocessor >= limits.shared_block);
    CHECK(limits.fp16_products);
    CHECK(limits.bf16_products == row.bf16);
    CHECK(limits.fp8_products == row.fp8);
    CHECK(limits.async_copies == row.async);
    CHECK(limits.clusters == row.clusters);
    CHECK(limits.warpgroups == row.warpgroups);
  }
  CHECK_FALSE(limits_of_capability(6, 1).fp16_products);
}
