#include "engine/train/updater.h"

#include "engine/kernels/optimizer.h"

namespace dstrain {
namespace {

optimizer::Rule make_rule(const OptimizerConfig& config, double lr, bool decay) {
  const double weight_decay = decay ? config.weight_decay : 0;
  switch (config.name) {
    case OptimizerName::adamw:
      return optimizer::AdamW{.lr = lr,
                              .beta1 = config.betas[0],
                              .beta2 = config.betas[1],
                              .eps = config.eps,
                              .weight_decay = weight_decay};
    case OptimizerName::sgd:
      return optimizer::Sgd{.lr = lr, .momentum = config.momentum, .weight_decay = weight_decay};
    case OptimizerName::lion:
      return optimizer::Lion{.lr = lr,
                             .beta1 = config.betas[0],
                             .beta2 = config.betas[1],
                             .weight_decay = weight_decay};
  }
  return {};
}

}  // namespace

/// One launch per range of equal weight decay that this rank owns a part of.
void Updater::update(int group, double lr, const at::Tensor& control) {
  const Range own = states_.own_range(group);
  // Each group has random bits of its own.
  const std::uint64_t seed = static_cast<std::uint64_t>(options_.seed) ^
                             (0x9E3779B97F4A7C15ULL * static_cast<std::uint64_t>(group + 1));
  for (const auto& [range, decay] : states_.decay_ranges(group)) {
    const Range part = intersect(own, range);
    if (part.empty()) continue;
    const auto view = [&](const at::Tensor& state) {
      return state.narrow(0, part.begin - own.begin, part.size());
    };
    optimizer::Step step{.master = view(states_.master(group)),
                         .moments = {},
                         .gradient = view(states_.own_gradient(group)),
                         .compute = {},
                         .rule = make_rule(options_.optimizer, lr, decay),
                         .seed = seed,
                         .first_element = part.begin};
    if (options_.compute != at::kFloat) step.compute = view(states_.own_parameters(group));
    for (int m = 0; m < states_.num_moments(); ++m)
      step.moments.push_back(view(states_.moment(group, m)));
    optimizer::update(step, control);
  }
}

}  // namespace dstrain
