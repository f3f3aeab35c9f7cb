#include "engine/recipe/optimizers.h"

#include <array>
#include <cstddef>
#include <iterator>

#include "engine/recipe/choices.h"

namespace dstrain {
namespace {

using Names = std::string_view;

constexpr Names kAdamMoments[] = {"exp_avg", "exp_avg_sq"};
constexpr Names kAdamKeys[] = {"optimizer.betas", "optimizer.eps"};
constexpr Names kSgdMoments[] = {"momentum_buffer"};
constexpr Names kSgdKeys[] = {"optimizer.momentum", "optimizer.nesterov"};

constexpr Names kLionMoments[] = {"exp_avg"};
constexpr Names kLionKeys[] = {"optimizer.betas"};

constexpr Names kMuonMoments[] = {"momentum_buffer"};
constexpr Names kMuonKeys[] = {"optimizer.betas",    "optimizer.eps",      "optimizer.momentum",
                               "optimizer.nesterov", "optimizer.ns_steps", "optimizer.adjust_lr"};

constexpr Names kRmspropMoments[] = {"square_avg", "momentum_buffer"};
constexpr Names kRmspropKeys[] = {"optimizer.momentum", "optimizer.eps", "optimizer.alpha",
                                  "optimizer.rmsprop"};

constexpr OptimizerRow kRows[] = {
    {.name = OptimizerName::adamw,
     .spelling = "adamw",
     .text = "Adam with decoupled weight decay; arXiv:1711.05101",
     .moments = kAdamMoments,
     .keys = kAdamKeys},
    {.name = OptimizerName::sgd,
     .spelling = "sgd",
     .text = "stochastic gradient descent with momentum",
     .moments = kSgdMoments,
     .keys = kSgdKeys},
    {.name = OptimizerName::lion,
     .spelling = "lion",
     .text = "sign of an average of gradients, one moment; arXiv:2302.06675",
     .moments = kLionMoments,
     .keys = kLionKeys,
     .betas = {0.9, 0.99}},
    {.name = OptimizerName::muon,
     .spelling = "muon",
     .text = "orthogonalised momentum for the matrices of the layers, adamw for embeddings, head, "
             "norms and biases; https://kellerjordan.github.io/posts/muon",
     .moments = kMuonMoments,
     .others = OptimizerName::adamw,
     .keys = kMuonKeys,
     .momentum = 0.95,
     .nesterov = true,
     .weight_decay = 0.1},
    {.name = OptimizerName::rmsprop,
     .spelling = "rmsprop",
     .text = "gradients divided by the root of the average of their squares, with momentum",
     .moments = kRmspropMoments,
     .keys = kRmspropKeys},
};

consteval bool in_order() {
  int place = 0;
  for (const OptimizerRow& row : kRows) {
    if (static_cast<int>(row.name) != place++) return false;
  }
  return true;
}
static_assert(in_order());

constexpr auto kChoices = [] {
  std::array<Choice, std::size(kRows)> all;
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] = {kRows[i].spelling, kRows[i].text, static_cast<int>(kRows[i].name)};
  return all;
}();

}  // namespace

std::span<const OptimizerRow> optimizers() { return kRows; }

const OptimizerRow& optimizer_row(OptimizerName name) {
  return kRows[static_cast<std::size_t>(name)];
}

std::span<const Choice> choices(OptimizerName) { return kChoices; }

}  // namespace dstrain
