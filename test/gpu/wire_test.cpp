#include <ATen/ops/full.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/zeros.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/comm/thread_world.h"
#include "test/gpu/compare.h"
#include "test/collectives/coded_exchanges.h"
#include "test/kernels/wire_inputs.h"

/// Coded blocks on the GPU against the CPU, bit for bit (a nan is a nan).
namespace dstrain {
namespace {

using namespace test;

bool same(const at::Tensor& gpu, const at::Tensor& cpu) {
  const at::Tensor host = gpu.cpu();
  return host.eq(cpu).logical_or(at::isnan(host).logical_and(at::isnan(cpu))).all().item<bool>();
}

std::vector<std::string> all_inputs() {
  std::vector<std::string> kinds = kFiniteInputs;
  kinds.insert(kinds.end(), kNonFiniteInputs.begin(), kNonFiniteInputs.end());
  return kinds;
}

TEST_CASE("GPU: blocks are coded, decoded and summed as on the CPU, bit for bit",
          "[gpu][kernels][wire]") {
  const CodeFormat format = GENERATE(from_range(kCodeFormats));
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const bool randomly = GENERATE(false, true);
  const auto [parts, elements] =
      GENERATE(std::pair(1, 128), std::pair(3, 384), std::pair(2, 4224), std::pair(5, 128 * 1001));
  if (randomly && format != CodeFormat::int4) return;
  for (const std::string& kind : all_inputs()) {
    CAPTURE(static_cast<int>(format), c10::toString(type), randomly, parts, elements, kind);
    // Parts of something wider, which begin 256 elements inside.
    const at::Tensor wide = wire_input(kind, parts, elements + 640, type);
    const at::Tensor on_gpu = wide.to(at::kCUDA);
    const auto coded_from = [&](const at::Tensor& x) {
      return randomly
                 ? randomly_quantized(x, {.seed = 5, .step = 9, .node = 1, .first_element = 256})
                 : quantized(x, format);
    };
    const at::Tensor cpu = coded_from(wide.narrow(1, 256, elements)),
                     gpu = coded_from(on_gpu.narrow(1, 256, elements));
    REQUIRE(gpu.cpu().equal(cpu));
    for (const auto slot : {at::kFloat, at::kBFloat16, at::kHalf}) {
      REQUIRE(
          same(dequantized(gpu, elements, format, slot), dequantized(cpu, elements, format, slot)));
    }
    for (const bool add : {false, true}) {
      Random random(8);
      const at::Tensor sum = random({elements}), sum_gpu = sum.to(at::kCUDA);
      wire::sum(cpu, sum, format, add);
      wire::sum(gpu, sum_gpu, format, add);
      REQUIRE(same(sum_gpu, sum));
    }
  }
}

TEST_CASE("GPU: kernels write their parts and nothing else", "[gpu][kernels][wire]") {
  const CodeFormat format = GENERATE(from_range(kCodeFormats));
  const std::int64_t elements = GENERATE(128, 640, 128 * 33);
  const auto options = at::TensorOptions(at::kCUDA);
  const at::Tensor x = wire_input("random", 2, elements).to(at::kCUDA);
  const std::int64_t needed = coded_bytes(format, elements);
  const at::Tensor room = at::full({2, needed + 64}, 0xa5, options.dtype(at::kByte)),
                   coded = room.narrow(1, 32, needed);
  wire::quantize(x, coded, format);
  REQUIRE(room.narrow(1, 0, 32).eq(0xa5).all().item<bool>());
  REQUIRE(room.narrow(1, 32 + needed, 32).eq(0xa5).all().item<bool>());
  const at::Tensor slot = at::full({2, elements + 256}, 99, options.dtype(at::kBFloat16));
  wire::dequantize(coded, slot.narrow(1, 128, elements), format);
  REQUIRE(slot.narrow(1, 0, 128).eq(99).all().item<bool>());
  REQUIRE(slot.narrow(1, 128 + elements, 128).eq(99).all().item<bool>());
}

TEST_CASE("GPU: a group of one gathers and reduces as on the CPU", "[gpu][kernels][wire]") {
  const CodeFormat format = GENERATE(from_range(kCodeFormats));
  const CodedGroup group{
      .elements = 128 * 50, .shards = 1, .quantized = 128 * 47, .format = format};
  const at::Tensor own = wire_input("random", 1, group.elements)[0];
  ThreadWorld world(1);
  const auto comm = world.communicator({.name = "one", .ranks = {0}, .rank = 0});
  const auto gathered = [&](at::Device device) {
    const auto options = at::TensorOptions(device);
    at::Tensor whole = at::zeros({group.elements}, options.dtype(at::kBFloat16));
    at::Tensor scratch = at::zeros({group.gather_scratch_bytes(2)}, options.dtype(at::kByte));
    test::gather_coded(*comm, group, own.to(device), whole, scratch);
    return whole.cpu();
  };
  REQUIRE(gathered(at::kCUDA).equal(gathered(at::kCPU)));
}

}  // namespace
}  // namespace dstrain
