#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "engine/comm/forwarding.h"
#include "engine/kernels/activation/ops_gated_linear.h"
#include "engine/kernels/ops.h"
#include "engine/kernels/tensor/ops_tensor.h"
#include "test/kernels/on_ranks.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"

/// Products together with the exchange of rows before or behind them, against the two one after
/// the other.
namespace dstrain {
namespace {

using test::on_ranks, test::part_of;

constexpr std::int64_t kRankedRows = 24, kRankedWidth = 16, kRankedHidden = 32;

/// What is gathered is there after the work, and not before; others' parts of a sum have left
/// before it.
class Strict final : public comm::Forwarding {
 public:
  Strict(Communicator& inner, bool overlaps) : Forwarding(inner), overlaps_(overlaps) {}
  bool overlaps() const override { return overlaps_; }
  void all_gather(at::Tensor& output, const at::Tensor& input, const Work& meanwhile) override {
    output.fill_(std::numeric_limits<float>::quiet_NaN());
    meanwhile();
    inner_.all_gather(output, input);
  }
  void reduce_scatter(at::Tensor& output, const at::Tensor& input, const Work& meanwhile) override {
    at::Tensor left = input.clone();
    const auto own = [&](const at::Tensor& x) {
      return x.narrow(0, rank() * output.size(0), output.size(0));
    };
    meanwhile();
    own(left).copy_(own(input));
    inner_.reduce_scatter(output, left);
  }

 private:
  bool overlaps_;
};

/// Weights of one rank.
struct RankedWeights {
  Parameter inner, inner_bias, outer;
  explicit RankedWeights(int rank, bool fp8, bool trainable) {
    test::Random random(static_cast<std::uint64_t>(rank + 10));
    inner = random.parameter({2 * kRankedHidden, kRankedWidth}, at::kFloat);
    inner_bias = random.parameter({2 * kRankedHidden}, at::kFloat);
    outer = random.parameter({kRankedWidth, kRankedHidden}, at::kFloat);
    for (Parameter* weight : {&inner, &outer}) {
      weight->fp8 = fp8;
      weight->trainable = trainable;
    }
  }
};

struct RankedForm {
  std::string name;
  /// Maps this rank's rows [m, kWidth] to this rank's rows.
  std::function<at::Tensor(const at::Tensor& x, RankedWeights& w, Communicator* ranks)> together,
      apart;
};

at::Tensor half(const at::Tensor& x) { return x.narrow(1, 0, kRankedHidden).contiguous(); }

std::vector<RankedForm> ranked_forms() {
  return {{.name = "linear of gathered rows, summed linear",
           .together =
               [](const at::Tensor& x, RankedWeights& w, Communicator* ranks) {
                 const at::Tensor y = ops::linear_of_gathered(x, w.inner, &w.inner_bias, ranks);
                 return ops::summed_linear(half(y), w.outer, ranks);
               },
           .apart =
               [](const at::Tensor& x, RankedWeights& w, Communicator* ranks) {
                 const at::Tensor y =
                     ops::linear(ops::all_gather_rows(x, ranks), w.inner, &w.inner_bias);
                 return ops::reduce_scatter_rows(ops::linear(half(y), w.outer, nullptr), ranks);
               }},
          {.name = "gated linear",
           .together =
               [](const at::Tensor& x, RankedWeights& w, Communicator* ranks) {
                 return ops::gated_linear(x, w.inner, w.outer, ranks);
               },
           .apart =
               [](const at::Tensor& x, RankedWeights& w, Communicator* ranks) {
                 return ops::reduce_scatter_rows(
                     ops::gated_linear(ops::all_gather_rows(x, ranks), w.inner, w.outer), ranks);
               }},
          {.name = "summed GELU linear",
           .together =
               [](const at::Tensor& x, RankedWeights& w, Communicator* ranks) {
                 const at::Tensor z = ops::linear_of_gathered(x, w.inner, nullptr, ranks);
                 Parameter& bias = w.inner_bias;
                 bias.shape = {kRankedHidden};
                 bias.value = bias.value.narrow(0, 0, kRankedHidden);
                 bias.gradient = bias.gradient.narrow(0, 0, kRankedHidden);
                 return ops::summed_gelu_linear(half(z), bias, w.outer, ops::Gelu::erf, ranks);
               },
           .apart =
               [](const at::Tensor& x, RankedWeights& w, Communicator* ranks) {
                 const at::Tensor z = ops::linear(ops::all_gather_rows(x, ranks), w.inner, nullptr);
                 Parameter& bias = w.inner_bias;
                 bias.shape = {kRankedHidden};
                 bias.value = bias.value.narrow(0, 0, kRankedHidden);
                 bias.gradient = bias.gradient.narrow(0, 0, kRankedHidden);
                 return ops::reduce_scatter_rows(
                     ops::gelu_linear(half(z), bias, w.outer, nullptr, ops::Gelu::erf), ranks);
               }}};
}

TEST_CASE("products with exchanged rows equal exchange and product one after the other") {
  const int count = GENERATE(1, 2, 3, 4);
  const bool overlaps = GENERATE(true, false), fp8 = GENERATE(false, true),
             trainable = GENERATE(true, false);
  const auto all_forms = ranked_forms();
  const std::size_t number = GENERATE(0u, 1u, 2u);
  const RankedForm& form = all_forms.at(number);
  CAPTURE(count, overlaps, fp8, trainable, form.name);
  test::Random random(1);
  const at::Tensor x = random({kRankedRows, kRankedWidth}),
                   dy = random({kRankedRows, kRankedWidth});
  on_ranks(count, [&](int rank, Communicator& threads) {
    Strict ranks(threads, overlaps);
    /// Output, gradients of this rank's rows and of the parameters.
    const auto results = [&](const auto& run, Communicator& by) {
      RankedWeights weights(rank, fp8, trainable);
      const at::Tensor own = test::leaf(part_of(x, rank, count));
      const at::Tensor y = run(own, weights, &by);
      y.backward(part_of(dy, rank, count));
      return std::vector{y.detach(), own.grad(), weights.inner.gradient,
                         weights.inner_bias.gradient, weights.outer.gradient};
    };
    const std::vector<at::Tensor> found = results(form.together, ranks),
                                  expected = results(form.apart, threads);
    // ATen may sum a product of fewer rows in another order.
    for (std::size_t i = 0; i < found.size(); ++i)
      REQUIRE(found[i].allclose(expected[i], 1e-5, 1e-4));
  });
}

}  // namespace
}  // namespace dstrain
