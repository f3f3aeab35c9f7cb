#include <ATen/ops/bincount.h>
#include <ATen/ops/randint.h>

#include "engine/kernels/experts/expert_products.h"
#include "test/gpu/bench.h"

/// Products of experts at the shapes of real models, by one kernel for all and one by one; hidden,
/// run with `test_gpu "[.bench]"`.
namespace dstrain {
namespace {

using namespace test;

struct ExpertsShape {
  const char* name;
  std::int64_t experts, chosen, width, hidden;
};
constexpr ExpertsShape kExpertsShapes[] = {{"Qwen1.5-MoE-A2.7B", 60, 4, 2048, 1408},
                                           {"Qwen2.5-3B upcycled", 8, 2, 2048, 2752},
                                           {"Qwen3-30B-A3B", 128, 8, 2048, 768}};

/// Numbers of rows as a router of random weights gives them.
std::vector<std::int64_t> drawn_counts(const ExpertsShape& s, std::int64_t rows) {
  const at::Tensor counts =
      at::bincount(at::randint(s.experts, {rows * s.chosen}, at::kLong), {}, s.experts);
  return {counts.const_data_ptr<std::int64_t>(), counts.const_data_ptr<std::int64_t>() + s.experts};
}

void print(const ExpertsShape& s, std::int64_t rows, std::int64_t out, std::int64_t in) {
  const std::int64_t taken = rows * s.chosen;
  const double flop = 2 * static_cast<double>(taken) * static_cast<double>(out * in),
               bytes = 2 * static_cast<double>(taken * (in + out) + s.experts * in * out);
  const std::vector<std::int64_t> counts = drawn_counts(s, rows);
  const auto row = [&](const char* what, ops::ExpertKernel kernel, const auto& body) {
    const double one_s = seconds_of(
        [&]() -> Run {
          const auto weight = std::make_shared<Parameter>();
          weight->hold({{"weight", {s.experts * out, in}}});
          weight->value = random({s.experts * out, in}).mul_(0.02);
          weight->gradient = random32({s.experts * out, in});
          const auto x = random({taken, in}), dy = random({taken, out});
          const ops::ExpertRows by_expert = ops::expert_rows(counts, x, kernel);
          return [=] { body(x, dy, *weight, by_expert); };
        },
        bytes);
    std::printf("| %s, %s | %s | %ld rows an expert, [%ld, %ld] | %.3f | %.0f |\n", what,
                kernel == ops::ExpertKernel::grouped ? "one kernel" : "one by one", s.name,
                static_cast<long>(taken / s.experts), static_cast<long>(out), static_cast<long>(in),
                1e3 * one_s, 1e-12 * flop / one_s);
    std::fflush(stdout);
    CHECK(flop / one_s < 989e12);
  };
  for (const auto kernel : {ops::ExpertKernel::grouped, ops::ExpertKernel::single}) {
    row("product", kernel,
        [](const auto& x, const auto&, const Parameter& weight, const ops::ExpertRows& by_expert) {
          (void)ops::expert_products(x, weight, by_expert, true);
        });
    row("input gradient", kernel,
        [](const auto&, const auto& dy, const Parameter& weight, const ops::ExpertRows& by_expert) {
          (void)ops::expert_products(dy, weight, by_expert, false);
        });
  }
  row("weight gradient", ops::ExpertKernel::single,
      [](const auto& x, const auto& dy, Parameter& weight, const ops::ExpertRows& by_expert) {
        ops::add_expert_gradients(x, dy, weight, by_expert);
      });
}

TEST_CASE("bench: products of experts", "[.bench]") {
  std::puts("| product | model | shape | ms | TFLOP/s |\n| --- | --- | --- | --- | --- |");
  for (const ExpertsShape& s : kExpertsShapes) {
    for (const std::int64_t rows : {4096, 16384, 65536}) {
      print(s, rows, 2 * s.hidden, s.width);
      print(s, rows, s.width, s.hidden);
    }
  }
}

}  // namespace
}  // namespace dstrain
