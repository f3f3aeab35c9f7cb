#include "engine/device/operator_threads.h"

#include <ATen/Parallel.h>

#include <thread>

#include "test/support/catch.h"

namespace dstrain {

TEST_CASE("operators have fewer threads for a while, and then those that were given", "[device]") {
  const int before = at::get_num_threads();
  at::set_num_threads(3);
  {
    const OperatorThreads more(5);
    CHECK(more.given() == 3);
    CHECK(more.used() == 3);
    CHECK(at::get_num_threads() == 3);
  }
  {
    const OperatorThreads fewer(2);
    CHECK(fewer.given() == 3);
    CHECK(fewer.used() == 2);
    CHECK(at::get_num_threads() == 2);
    int of_another = 0;
    std::thread([&] { of_another = at::get_num_threads(); }).join();
    CHECK(of_another == 2);
  }
  CHECK(at::get_num_threads() == 3);
  at::set_num_threads(before);
}

}  // namespace dstrain
