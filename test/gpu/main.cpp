#include <cstdio>

#include "engine/device/device.h"

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_session.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif

int main(int argc, char** argv) {
  if (dstrain::num_gpus() == 0) {
    std::puts("test_gpu: this machine has no GPU (or no driver); nothing was tested");
    return 77;
  }
  return Catch::Session().run(argc, argv);
}
