#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/kernels/optimizer/optimizer_cpu.h"
#include "test/gpu/compare.h"
#include "test/kernels/optimizer_bits.h"
#include "test/kernels/optimizer_control.h"

namespace dstrain {
namespace {

using namespace test;

TEST_CASE("GPU: every rule gives the CPU's bits, whatever the types", "[gpu][kernels]") {
  // The small counts are for buffers that are not aligned and for groups of random bits cut in two.
  const auto [count, offset, first_element] =
      GENERATE(std::tuple(10'000'000, 0, 0), std::tuple(100'003, 1, 0), std::tuple(100'003, 0, 5));
  const at::Tensor control = control_at(3, 0.5f);
  for (UpdateBits& update : all_updates(count)) {
    // What differs is how the gradient is read, and made numbers take long.
    if (update.gradient == kernels::DType::bf16)
      update.count = std::min<std::int64_t>(count, 1'000'003);
    update.offset = offset;
    update.first_element = first_element;
    CAPTURE(update.count, offset, first_element, update.rule.index(),
            static_cast<int>(update.states), static_cast<int>(update.copy),
            static_cast<int>(update.gradient));
    const Tensors buffers = update.buffers(), host = clones(buffers, at::kCPU),
                  gpu = clones(buffers, at::kCUDA);
    kernels::cpu::update(update.args(host, control));
    kernels::cuda::update(update.args(gpu, control.to(at::kCUDA)), ops::current_stream());
    REQUIRE(first_difference(clones(gpu, at::kCPU), host) == std::pair<int, std::int64_t>(-1, -1));
  }
}

}  // namespace
}  // namespace dstrain
