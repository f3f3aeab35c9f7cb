#include "engine/train/execute/updater.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/kernels/optimizer/matrix_update.h"
#include "engine/kernels/optimizer/optimizer.h"
#include "engine/recipe/optimizers.h"

namespace dstrain {
namespace {

optimizer::Rule make_rmsprop(const OptimizerConfig& config, double lr, double weight_decay) {
  switch (config.rmsprop) {
    case RmspropForm::torch:
      return optimizer::Rmsprop{.lr = lr,
                                .alpha = config.alpha,
                                .momentum = config.momentum,
                                .eps = config.eps,
                                .weight_decay = weight_decay};
    case RmspropForm::tensorflow:
      return optimizer::RmspropTensorflow{.lr = lr,
                                          .alpha = config.alpha,
                                          .momentum = config.momentum,
                                          .eps = config.eps,
                                          .weight_decay = weight_decay};
  }
  throw Error(ErrorKind::internal, "an RMSprop without a form");
}

/// The rules of single elements.
optimizer::Rule make_rule(OptimizerName name, const OptimizerConfig& config, double lr,
                          double weight_decay) {
  switch (name) {
    case OptimizerName::adamw:
      return optimizer::AdamW{.lr = lr,
                              .beta1 = config.betas[0],
                              .beta2 = config.betas[1],
                              .eps = config.eps,
                              .weight_decay = weight_decay};
    case OptimizerName::sgd:
      return optimizer::Sgd{.lr = lr,
                            .momentum = config.momentum,
                            .weight_decay = weight_decay,
                            .nesterov = config.nesterov};
    case OptimizerName::lion:
      return optimizer::Lion{.lr = lr,
                             .beta1 = config.betas[0],
                             .beta2 = config.betas[1],
                             .weight_decay = weight_decay};
    case OptimizerName::rmsprop:
      return make_rmsprop(config, lr, weight_decay);
    case OptimizerName::muon:
      break;
  }
  throw Error(ErrorKind::internal, "muon updates whole matrices");
}

/// Factor of a matrix's learning rate.
double adjusted(AdjustLr adjust, const StateStore::Matrix& matrix) {
  const auto rows = static_cast<double>(matrix.rows), columns = static_cast<double>(matrix.columns);
  switch (adjust) {
    case AdjustLr::original:
      return std::sqrt(std::max(1.0, rows / columns));
    case AdjustLr::match_rms_adamw:
      return 0.2 * std::sqrt(std::max(rows, columns));
  }
  return 1;
}

}  // namespace

std::vector<double> first_moments(const OptimizerConfig& config) {
  std::vector<double> first(optimizer_row(config.name).moments.size(), 0.0);
  if (config.name == OptimizerName::rmsprop && config.rmsprop == RmspropForm::tensorflow)
    first.front() = optimizer::RmspropTensorflow::kFirstSquare;
  return first;
}

/// One launch per range of one rule, learning rate and weight decay that the part meets.
template <class Visit>
void Updater::for_each_step(int group, double lr, const PartMemory& part,
                            const Visit& visit) const {
  for (const auto& [range, decay, lr_factor, name] : states_.update_ranges(group)) {
    const Range met = intersect(part.range, range);
    if (met.empty()) continue;
    const std::int64_t begin = met.begin - part.range.begin;
    const auto view = [&](const at::Tensor& state) { return state.narrow(0, begin, met.size()); };
    optimizer::Step step{.master = view(part.master),
                         .moments = {},
                         .gradient = view(part.gradient),
                         .compute = {},
                         .rule = make_rule(name, options_.optimizer, lr * lr_factor,
                                           decay ? options_.optimizer.weight_decay : 0),
                         .seed = seed(group),
                         .first_element = met.begin};
    if (options_.compute != at::kFloat && part.parameters.defined())
      step.compute = view(part.parameters);
    for (int m = 0; m < num_moments(step.rule); ++m) {
      const at::Tensor& moment = part.moments[to_index(m)];
      // Moments that matrices do not have begin behind them.
      const std::int64_t missing = part.range.size() - moment.numel();
      step.moments.push_back(moment.narrow(0, begin - missing, met.size()));
    }
    visit(step, begin);
  }
}

void Updater::update(int group, double lr, const at::Tensor& control, Communicator* shards) {
  if (!states_.matrices(group).empty()) update_matrices(group, lr, control, shards);
  PartMemory all{.range = states_.own_range(group),
                 .master = states_.master(group),
                 .moments = {},
                 .gradient = states_.own_gradient(group),
                 .parameters = states_.own_parameters(group)};
  for (int m = 0; m < states_.num_moments(); ++m)
    all.moments.push_back(states_.moment(group, m, states_.moment_range(group, m)));
  update_part(group, lr, control, all);
}

void Updater::average(int group, double share, const at::Tensor& control) {
  const at::Tensor average = states_.average(group);
  const Range own = states_.own_range(group);
  // Weights that do not lie there in fp32 are copied, a piece at a time.
  constexpr std::int64_t kPiece = std::int64_t{1} << 22;
  const bool fp32 = states_.master(group).scalar_type() == at::kFloat;
  const std::int64_t piece = fp32 ? own.size() : kPiece;
  for (std::int64_t begin = 0; begin < own.size(); begin += piece) {
    const std::int64_t count = std::min(piece, own.size() - begin);
    optimizer::update(
        {.master = average.narrow(0, begin, count),
         .moments = {},
         .gradient =
             states_.weights(group, moved({begin, begin + count}, own.begin)).to(at::kFloat),
         .compute = {},
         .rule = optimizer::Average{.share = share}},
        control);
  }
}

void Updater::update_part(int group, double lr, const at::Tensor& control, const PartMemory& part) {
  for_each_step(group, lr, part, [&](const optimizer::Step& step, std::int64_t) {
    optimizer::update(step, control);
  });
}

void Updater::update_part_here(int group, double lr, const at::Tensor& control,
                               const PartMemory& part, std::int64_t begin, std::int64_t end) const {
  for_each_step(group, lr, part, [&](const optimizer::Step& step, std::int64_t first) {
    const Range own = intersect({first, first + step.master.numel()}, {begin, end});
    if (!own.empty()) optimizer::update_range(step, control, own.begin - first, own.end - first);
  });
}

std::uint64_t Updater::seed(int group, bool momentum) const {
  // Each group has random bits of its own.
  const std::uint64_t seed = static_cast<std::uint64_t>(options_.seed) ^
                             (0x9E3779B97F4A7C15ULL * static_cast<std::uint64_t>(group + 1));
  return momentum ? ~seed : seed;
}

at::Tensor Updater::directions(int group, const at::Tensor& control, Communicator* shards) {
  const Range own = states_.own_range(group);
  const bool whole = own.size() == states_.flat(group).padded();
  const at::ScalarType type = options_.compute == at::kFloat ? at::kFloat : at::kBFloat16;
  const std::int64_t end = states_.matrices(group).back().range.end;
  at::Tensor all = at::zeros({whole ? end : states_.flat(group).padded()},
                             at::TensorOptions(control.device()).dtype(type));
  const Range part = intersect(own, {0, end});
  if (!part.empty()) {
    const at::Tensor gradient = states_.own_gradient(group);
    optimizer::update({.master = states_.moment(group, 0, part),
                       .moments = {},
                       .gradient = gradient.narrow(0, part.begin - own.begin, part.size()),
                       .compute = all.narrow(0, part.begin, part.size()),
                       .rule = optimizer::MuonMomentum{.momentum = options_.optimizer.momentum,
                                                       .nesterov = options_.optimizer.nesterov},
                       .seed = seed(group, /*momentum=*/true),
                       .first_element = part.begin},
                      control);
  }
  DSTRAIN_CHECK(whole == (shards == nullptr), "an update without its collective");
  if (!whole) shards->all_gather(all, all.narrow(0, own.begin, own.size()));
  return all;
}

void Updater::update_matrices(int group, double lr, const at::Tensor& control,
                              Communicator* shards) {
  const Range own = states_.own_range(group);
  const at::Tensor all = directions(group, control, shards);
  for (const StateStore::Matrix& matrix : states_.matrices(group)) {
    const Range part = intersect(own, matrix.range);
    if (part.empty()) continue;
    const at::Tensor direction = optimizer::orthogonalize(
        all.narrow(0, matrix.range.begin, matrix.range.size()).view({matrix.rows, matrix.columns}),
        options_.optimizer.ns_steps);
    const auto view = [&](const at::Tensor& state) {
      return state.narrow(0, part.begin - own.begin, part.size());
    };
    const double weight_decay = matrix.decay ? options_.optimizer.weight_decay : 0;
    optimizer::Step step{
        .master = view(states_.master(group)),
        .moments = {},
        .gradient = direction.view({-1})
                        .narrow(0, part.begin - matrix.range.begin, part.size())
                        .to(at::kFloat),
        .compute = {},
        .rule = optimizer::MuonStep{.step = lr * matrix.lr_factor *
                                            adjusted(options_.optimizer.adjust_lr, matrix),
                                    .shrink = lr * matrix.lr_factor * weight_decay},
        .seed = seed(group),
        .first_element = part.begin};
    if (options_.compute != at::kFloat) step.compute = view(states_.own_parameters(group));
    optimizer::update(step, control);
  }
}

}  // namespace dstrain
