#include "engine/base/gpu_limits.h"

#include "engine/base/error.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

TEST_CASE("shared memory of a block is that of its compute capability", "[base]") {
  struct Case {
    int major, minor;
    std::size_t block, multiprocessor;
  };
  // NVIDIA's tuning guides: 64 KiB on Turing, 163 on A100, 99 on other Ampere cards, Ada and the
  // Blackwell of workstations, 227 on Hopper and on Blackwell.
  for (const Case& one :
       {Case{7, 5, 65536, 65536}, Case{8, 0, 166912, 167936}, Case{8, 6, 101376, 102400},
        Case{8, 9, 101376, 102400}, Case{9, 0, 232448, 233472}, Case{10, 0, 232448, 233472},
        Case{12, 0, 101376, 102400}}) {
    CAPTURE(one.major, one.minor);
    const GpuLimits limits = limits_of_capability(one.major, one.minor);
    CHECK(limits.shared_block == one.block);
    CHECK(limits.shared_multiprocessor == one.multiprocessor);
    CHECK(limits.bf16_products == (one.major >= 8));
    CHECK(limits.flash_attention == (one.major >= 8));
    CHECK(limits.warpgroups == (one.major == 9));
  }
}

TEST_CASE("limits are lowered and never raised", "[base]") {
  const GpuLimits hopper = limits_of_capability(9, 0);
  const GpuLimits ada = limits_lowered(hopper, "8.9");
  CHECK(ada.shared_block == 101376);
  CHECK(ada.fp8_products);
  CHECK_FALSE(ada.clusters);
  const GpuLimits turing = limits_lowered(hopper, "7.5");
  CHECK(turing.shared_block == 65536);
  CHECK_FALSE(turing.bf16_products);
  CHECK_FALSE(turing.flash_attention);
  const GpuLimits desktop = limits_lowered(hopper, "12.0");
  CHECK(desktop.shared_block == 101376);
  CHECK(desktop.major == 12);
  CHECK(desktop.clusters);
  CHECK_FALSE(desktop.warpgroups);
  CHECK_FALSE(limits_lowered(limits_of_capability(8, 6), "12.0").clusters);
  for (const char* wrong : {"", "8", "8.", ".6", "8.6x", "ada", "7.0", "10.0"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(limits_lowered(hopper, wrong), Error);
  }
}

}  // namespace
}  // namespace dstrain
