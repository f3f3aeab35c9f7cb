#include <cstdio>

#include "engine/device/device.h"
#include "engine/kernels/gpu.h"

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_session.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif

int main(int argc, char** argv) {
  Catch::Session session;
  if (const int wrong = session.applyCommandLine(argc, argv); wrong != 0) return wrong;
  auto& asked = session.configData();
  // Neither benchmarks, which a pattern that only excludes would run, nor what is of a CPU alone.
  if (asked.testsOrTags.empty()) asked.testsOrTags.emplace_back("~[.]~[cpu]");
  if (asked.listTests) return session.run();
  if (dstrain::num_gpus() == 0) {
    std::puts("test_gpu: this machine has no GPU (or no driver); nothing was tested");
    return 77;
  }
  if (const dstrain::GpuLimits& limits = dstrain::kernels::cuda::gpu_limits();
      !limits.bf16_products)
    std::printf(
        "test_gpu: no products of bf16 on a GPU of %d.%d: cases of bf16 that multiply are "
        "skipped, or run in fp16\n",
        limits.major, limits.minor);
  return session.run();
}
