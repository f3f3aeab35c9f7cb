#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <utility>

#include "engine/kernels/optimizer/control.h"
#include "engine/kernels/optimizer/matrix_update.h"
#include "engine/kernels/optimizer/optimizer.h"
#include "engine/kernels/optimizer/optimizer_update.h"
#include "test/gpu/compare.h"
#include "test/kernels/optimizer_control.h"
#include "test/kernels/reference/reference.h"
#include "test/kernels/tensors.h"

namespace dstrain {
namespace {

using namespace test;

char* at_offset(const at::Tensor& tensor, std::int64_t offset) {
  return static_cast<char*>(out(tensor)) +
         offset * static_cast<std::int64_t>(tensor.element_size());
}

TEST_CASE("GPU: the bf16 optimizer equals its references, aligned or not", "[gpu][kernels]") {
  const std::int64_t count = GENERATE(1, 1003, 3'000'000);
  const std::int64_t offset = GENERATE(0, 1), first = GENERATE(0, 5, 4096);
  const float skip = GENERATE(0.0f, 1.0f);
  CAPTURE(count, offset, first, skip);
  test::Random random(1);
  const at::Tensor control = test::control_at(3, 0.5f, skip);
  const auto states = [&] { return random({count + offset}, at::kBFloat16); };
  const at::Tensor gradient = random({count + offset}), parameters = states(), average = states(),
                   square = states().abs();
  const optimizer::Rule rule =
      GENERATE(optimizer::Rule(optimizer::AdamW{.lr = 1e-2, .weight_decay = 0.1}),
               optimizer::Rule(optimizer::Sgd{.lr = 1e-2, .weight_decay = 0.1}),
               optimizer::Rule(optimizer::Lion{.lr = 1e-2, .weight_decay = 0.1}),
               optimizer::Rule(optimizer::MuonStep{.step = 1e-2, .shrink = 1e-3}));
  CAPTURE(rule.index());
  const auto args = [&](const Tensors& t) {
    return kernels::OptimizerUpdate{.states = kernels::DType::bf16,
                                    .parameters = at_offset(t[2], offset),
                                    .moments = {at_offset(t[3], offset), at_offset(t[4], offset)},
                                    .gradient = fp32(t[0]) + offset,
                                    .compute = nullptr,
                                    .compute_type = kernels::DType::bf16,
                                    .control = fp32(t[1]),
                                    .count = count,
                                    .rule = rule,
                                    .seed = 7,
                                    .first_element = first};
  };
  const Tensors all{gradient, control, parameters, average, square};
  compare(all, 2, 8, args, kernels::cuda::update, kernels::reference::update);
  if (count < 1000) return;

  // Rounded by the same random bits: few elements differ where fp32 and double straddle a
  // threshold.
  const Tensors host = clones(all, at::kCPU), gpu = clones(all, at::kCUDA);
  kernels::reference::update(args(host));
  kernels::cuda::update(args(gpu), ops::current_stream());
  for (std::size_t i = 2; i < all.size(); ++i) {
    CAPTURE(i);
    REQUIRE(gpu[i].cpu().ne(host[i]).to(at::kFloat).mean().item<float>() < 2e-3f);
  }
}

TEST_CASE("GPU: Muon's momentum and direction equal their reference", "[gpu][kernels]") {
  const std::int64_t count = GENERATE(1003, 3'000'000), offset = GENERATE(0, 1);
  const auto states = GENERATE(at::kFloat, at::kBFloat16);
  CAPTURE(count, offset, c10::toString(states));
  test::Random random(2);
  const at::Tensor control = test::control_at(3, 0.5f);
  compare(
      {random({count + offset}), control, random({count + offset}, states),
       random({count + offset}, at::kBFloat16)},
      2, 8,
      [&](const Tensors& t) {
        return kernels::OptimizerUpdate{
            .states = states == at::kFloat ? kernels::DType::f32 : kernels::DType::bf16,
            .parameters = at_offset(t[2], offset),
            .moments = {},
            .gradient = fp32(t[0]) + offset,
            .compute = at_offset(t[3], offset),
            .compute_type = kernels::DType::bf16,
            .control = fp32(t[1]),
            .count = count,
            .rule = optimizer::MuonMomentum{},
            .seed = 7,
            .first_element = 5};
      },
      kernels::cuda::update, kernels::reference::update);
}

TEST_CASE("GPU: a matrix is orthogonalised as on the CPU", "[gpu][kernels]") {
  const auto [rows, columns] =
      GENERATE(std::pair(256, 256), std::pair(128, 768), std::pair(768, 128));
  CAPTURE(rows, columns);
  test::Random random(3);
  const at::Tensor x = random({rows, columns}, at::kBFloat16), on_gpu = x.to(at::kCUDA);
  const at::Tensor host = optimizer::orthogonalize(x, 5).to(at::kFloat),
                   gpu = optimizer::orthogonalize(on_gpu, 5);
  REQUIRE(gpu.equal(optimizer::orthogonalize(on_gpu, 5)));
  // Both round every product to bf16; in the norm of the whole they are a few roundings apart.
  const at::Tensor apart = gpu.cpu().to(at::kFloat) - host;
  REQUIRE((apart.norm() / host.norm()).item<float>() < 10 * 0x1p-8f);
}

TEST_CASE("GPU: bf16 AdamW follows small steps on average", "[gpu][kernels]") {
  const std::int64_t count = 1'000'000;
  const auto filled = [&](double value, at::ScalarType type) {
    return at::full({count}, value, at::TensorOptions(at::kCUDA).dtype(type));
  };
  const optimizer::Step step{.master = filled(1, at::kBFloat16),
                             .moments = {filled(0, at::kBFloat16), filled(0, at::kBFloat16)},
                             .gradient = filled(0.5, at::kFloat),
                             .compute = {},
                             .rule = optimizer::AdamW{.lr = 1e-4}};
  for (int applied = 1; applied <= 20; ++applied) {
    optimizer::update(step, test::control_at(applied).to(at::kCUDA));
  }
  const double mean = step.master.to(at::kDouble).mean().item<double>();
  REQUIRE(std::abs(mean - (1 - 20e-4)) < 4e-5);
}

}  // namespace
}  // namespace dstrain
