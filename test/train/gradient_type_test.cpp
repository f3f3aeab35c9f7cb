#include <ATen/TensorOperators.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <string>
#include <vector>

#include "engine/train/session/session.h"
#include "test/support/catch.h"
#include "test/train/sessions.h"
#include "test/train/small_runs.h"

/// precision.gradients: bf16.
namespace dstrain::test {
namespace {

using Overrides = std::vector<std::string>;

const Overrides kNarrow = {"precision.compute=bf16", "precision.gradients=bf16",
                           "precision.reduce=bf16"};
const Overrides kWide = {"precision.compute=bf16"};

/// One rank's whole gradients after one step, by group, and how many elements at the end are
/// those of vectors.
struct Gradients {
  std::vector<at::Tensor> groups;
  std::vector<std::int64_t> vectors;
};

Gradients gradients_of(const std::string& model, const Overrides& overrides) {
  Gradients found;
  const Recipe recipe = small_recipe(model, overrides);
  with_sessions(
      1, [&](int) { return recipe; },
      [&](int, Session& session) {
        session.seek(0);
        session.enqueue_step();
        (void)session.executor().take_outcome();
        for (std::size_t g = 0; g < session.states().num_groups(); ++g) {
          const int group = static_cast<int>(g);
          if (!session.states().trainable(group)) continue;
          found.groups.push_back(session.states().own_gradient(group).clone());
          found.vectors.push_back(session.strategy().layout.groups[g].fp32_sums);
        }
      });
  return found;
}

double size_of(const at::Tensor& tensor) { return tensor.to(at::kDouble).norm().item<double>(); }

/// The run's updates of all tensors, relative to their own size, are within `bound` of the other's.
void check_updates(const Trace& found, const Trace& expected, double bound) {
  for (std::size_t step = 0; step < expected.losses.size(); ++step) {
    CAPTURE(step, found.losses[step], expected.losses[step]);
    CHECK(std::abs(found.losses[step] - expected.losses[step]) < 0.01 * expected.losses[step]);
    CHECK(std::abs(found.norms[step] - expected.norms[step]) < bound * expected.norms[step]);
  }
  double all = 0;
  for (const auto& [name, tensor] : expected.weights) {
    for (std::size_t i = 0; i < tensor.size(); ++i)
      all += std::pow(double{tensor[i]} - expected.start.at(name)[i], 2);
  }
  REQUIRE(all > 0);
  for (const auto& [name, tensor] : expected.weights) {
    CAPTURE(name);
    double difference = 0, update = 0;
    for (std::size_t i = 0; i < tensor.size(); ++i) {
      difference += std::pow(double{found.weights.at(name)[i]} - tensor[i], 2);
      update += std::pow(double{tensor[i]} - expected.start.at(name)[i], 2);
    }
    // The gradient of keys' biases is 0 but for rounding.
    CHECK(std::sqrt(difference) <= bound * std::sqrt(update) + 1e-4 * std::sqrt(all));
  }
}

}  // namespace

TEST_CASE("gradients in bf16 are near those in fp32, and of vectors their sums rounded once",
          "[train]") {
  const std::string model = GENERATE("vit", "bloom-560m", "qwen2.5-3b");
  const int micro_batches = GENERATE(1, 4);
  CAPTURE(model, micro_batches);
  const Overrides batch = {"batch.global=8", fmt::format("batch.micro={}", 8 / micro_batches),
                           "memory.recompute=none"};
  const Gradients narrow = gradients_of(model, joined(kNarrow, batch)),
                  wide = gradients_of(model, joined(kWide, batch));
  REQUIRE(narrow.groups.size() == wide.groups.size());
  std::int64_t vectors = 0;
  for (std::size_t g = 0; g < narrow.groups.size(); ++g) {
    CAPTURE(g);
    const at::Tensor &found = narrow.groups[g], &expected = wide.groups[g];
    REQUIRE(found.scalar_type() == at::kBFloat16);
    REQUIRE(expected.scalar_type() == at::kFloat);
    const std::int64_t count = narrow.vectors[g], matrices = expected.numel() - count;
    vectors += count;
    CHECK(found.slice(0, matrices).equal(expected.slice(0, matrices).to(at::kBFloat16)));
    // Each accumulation step rounds the sum to half of its last bit.
    const at::Tensor difference = found.to(at::kFloat) - expected;
    CHECK(size_of(difference) <= micro_batches * 0x1p-8 * size_of(expected));
  }
  CHECK(vectors > 0);
}

TEST_CASE("gradients in bf16 train alike under every layout", "[train]") {
  struct Form {
    std::string model;
    int ranks;
    Overrides overrides;
    double bound = 0.05;
  };
  const Overrides sgd = {"optimizer.name=sgd", "optimizer.lr=0.05"};
  const auto form = GENERATE(
      Form{"vit", 1, {}}, Form{"vit", 2, {"parallel.zero.stage=0"}},
      Form{"vit", 3, {"parallel.zero.stage=1"}}, Form{"vit", 2, {"parallel.zero.stage=2"}},
      Form{"vit", 2, {"parallel.zero.stage=3", "memory.recompute=blocks"}},
      Form{"vit", 1, {"memory.offload.optimizer=pinned", "memory.offload.chunk=1024"}},
      Form{"bloom-560m", 1, {}}, Form{"bloom-560m", 2, {"parallel.zero.stage=3"}},
      Form{"bloom-560m", 2, {"parallel.pipeline=2"}}, Form{"qwen2.5-3b", 1, {}},
      Form{"qwen2.5-3b", 2, {"parallel.zero.stage=2"}},
      Form{"qwen2.5-3b", 2, {"parallel.tensor=2"}},
      Form{"qwen2.5-3b", 2, {"parallel.tensor=2", "batch.concurrent=2"}},
      Form{"qwen2.5-3b", 2, {"parallel.sequence=2"}}, Form{"qwen2.5-3b", 2, {"lora.rank=4"}},
      // Other gradients are rounded to other neighbours in bf16.
      Form{"qwen2.5-3b", 2, {"precision.states=bf16"}, 0.1});
  CAPTURE(form.model, form.ranks, fmt::format("{}", fmt::join(form.overrides, " ")));
  const Overrides own = joined(sgd, form.overrides);
  Overrides single = sgd;
  for (const std::string& override : form.overrides) {
    if (override.starts_with("lora") || override.starts_with("precision"))
      single.push_back(override);
  }
  check_updates(small_run(form.model, form.ranks, joined(kNarrow, own)),
                small_run(form.model, 1, joined(kWide, single)), form.bound);
}

}  // namespace dstrain::test
