#include "engine/device/built_gpus.h"

#include "test/support/catch.h"

namespace dstrain {
namespace {

TEST_CASE("a GPU runs machine code of its major number and PTX of an older card", "[device]") {
  struct Case {
    const char* built;
    int major, minor;
    bool runs;
  };
  const Case all[] = {{"9.0", 9, 0, true},
                      {"9.0", 8, 0, false},
                      {"9.0", 8, 9, false},
                      {"9.0", 10, 0, true},
                      {"9.0", 12, 0, true},
                      {"8.0,9.0", 8, 0, true},
                      {"8.0,9.0", 8, 6, true},
                      {"8.0,9.0", 7, 5, false},
                      {"8.6,9.0", 8, 0, false},
                      {"8.6,9.0", 8, 9, true},
                      {"8.0,12.0", 9, 0, false},
                      {"8.0", 9, 0, true},
                      {"8.0,10.0", 9, 0, false},
                      {"12.0", 12, 1, true},
                      {"7.5", 7, 5, true},
                      {"7.5", 9, 0, true},
                      {"7.5", 7, 0, false},
                      // Packages.
                      {"7.5,8.0,9.0,10.0,12.0", 7, 5, true},
                      {"7.5,8.0,9.0,10.0,12.0", 8, 9, true},
                      {"7.5,8.0,9.0,10.0,12.0", 10, 3, true},
                      {"7.5,8.0,9.0,10.0,12.0", 12, 1, true},
                      {"7.5,8.0,9.0,10.0,12.0", 11, 0, false},
                      {"7.5,8.0,9.0,10.0,12.0", 7, 2, false}};
  for (const Case& one : all) {
    CAPTURE(one.built, one.major, one.minor);
    CHECK(runs_kernels_of(one.built, one.major, one.minor) == one.runs);
  }
  CHECK(runs_kernels_of(built_gpus(), 99, 0));
}

}  // namespace
}  // namespace dstrain
