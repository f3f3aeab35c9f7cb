#include "test/train/small_rank.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "engine/models/groups.h"
#include "engine/models/weights.h"
#include "engine/program/simulate.h"

namespace dstrain::test {
namespace {

constexpr double kEps = 1e-5, kMomentum = 0.1;
constexpr int kStepsOfData = 8;  ///< that a SmallRank has data for

/// [B, 1] fp32: 1 for a sample, 0 for a filler.
at::Tensor mask_of(const Batch& batch, std::int64_t samples) {
  return at::arange(samples).lt(batch.valid).to(at::kFloat).unsqueeze(1);
}

at::Tensor sum_over(Communicator* ranks, at::Tensor sums) {
  if (ranks != nullptr) ranks->all_reduce(sums, ReduceOp::sum);
  return sums;
}

/// Statistics of the samples of all ranks.
struct Statistics {
  at::Tensor count, mean, variance;  ///< [1], [D], [D]
};

Statistics statistics_of(const at::Tensor& x_BD, const at::Tensor& mask_B1, Communicator* ranks) {
  const at::Tensor kept = x_BD * mask_B1;
  const at::Tensor sums =
      sum_over(ranks, at::cat({kept.sum(0), (kept * kept).sum(0), mask_B1.sum().reshape({1})}));
  const std::int64_t width = x_BD.size(1);
  const at::Tensor count = sums.narrow(0, 2 * width, 1), mean = sums.narrow(0, 0, width) / count;
  return {count, mean, sums.narrow(0, width, width) / count - mean * mean};
}

/// (x - mean) / std of the valid samples, 0 for fillers, with the gradient through the statistics.
class Normalise : public torch::autograd::Function<Normalise> {
 public:
  using Context = torch::autograd::AutogradContext;
  using Variables = torch::autograd::variable_list;

  static at::Tensor forward(Context* context, const at::Tensor& x_BD, const at::Tensor& mask_B1,
                            const Statistics& of, Communicator* ranks) {
    const at::Tensor rstd = at::rsqrt(of.variance + kEps);
    const at::Tensor normed = (x_BD - of.mean) * rstd * mask_B1;
    context->save_for_backward({normed, mask_B1, rstd, of.count});
    context->saved_data["ranks"] =
        static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(ranks));
    return normed;
  }

  static Variables backward(Context* context, const Variables& gradients) {
    const Variables saved = context->get_saved_variables();
    const at::Tensor &normed = saved[0], &mask = saved[1], &rstd = saved[2], &count = saved[3];
    auto* ranks = reinterpret_cast<Communicator*>(
        static_cast<std::intptr_t>(context->saved_data.at("ranks").toInt()));
    const at::Tensor g = gradients[0] * mask;
    const at::Tensor sums = sum_over(ranks, at::cat({g.sum(0), (g * normed).sum(0)})) / count;
    const std::int64_t width = g.size(1);
    const at::Tensor mean_g = sums.narrow(0, 0, width), mean_gx = sums.narrow(0, width, width);
    return {(g - mean_g - normed * mean_gx) * rstd * mask, {}, {}, {}};
  }
};

InitialWeights init() { return {.kind = Init::normal, .std = 0.5}; }

BlockCost plain_cost(const std::string& name, const BatchShape& shape, std::int64_t width) {
  const Bytes rows = shape.micro_batch * width * kFloatBytes;
  return {.name = name,
          .groups = {},
          .forward_flops = 1e3,
          .saved_bytes = 2 * rows,
          .boundary = {{{shape.micro_batch, width}, kFloatBytes}}};
}

class Stem final : public Block {
 public:
  Stem() : linear_({{name_, kWidth}}, {kFeatures}, init()) {}
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::vector<Parameter*> parameters() override {
    std::vector<Parameter*> list;
    linear_.add_parameters(list);
    return list;
  }
  [[nodiscard]] Tensors forward(const Tensors&, const Batch& batch, const BlockContext&) override {
    return {linear_.forward_gelu(batch.images, ops::Gelu::erf)};
  }
  [[nodiscard]] BlockCost cost(const BatchShape& shape) override {
    return plain_cost(name_, shape, kWidth);
  }

 private:
  std::string name_ = "stem";
  Linear linear_;
};

class Head final : public Block {
 public:
  Head() : linear_({{name_, kClasses}}, {kWidth}, init()) {}
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::vector<Parameter*> parameters() override {
    std::vector<Parameter*> list;
    linear_.add_parameters(list);
    return list;
  }
  [[nodiscard]] Tensors forward(const Tensors& input, const Batch& batch,
                                const BlockContext& context) override {
    const at::Tensor logits = linear_.forward(input.at(0));
    if (context.mode == Mode::generate) {
      at::Tensor next = context.next_tokens;
      next.copy_(logits.argmax(1));
      return {at::zeros({})};
    }
    return {ops::softmax_cross_entropy(logits, batch.labels, batch.weights, context.label_smoothing,
                                       context.totals.narrow(0, 0, kBalanceTotal))};
  }
  [[nodiscard]] BlockCost cost(const BatchShape& shape) override {
    return plain_cost(name_, shape, kClasses);
  }

 private:
  std::string name_ = "head";
  Linear linear_;
};

}  // namespace

NormLayer::NormLayer()
    : linear_({{"norm", kWidth}}, {kWidth}, init(), /*has_bias=*/false),
      mean_{.part = {"norm.running_mean", {kWidth}}},
      variance_{.part = {"norm.running_var", {kWidth}}, .initial = 1},
      count_{.part = {"norm.samples", {}}, .type = at::kLong} {}

std::vector<Parameter*> NormLayer::parameters() {
  std::vector<Parameter*> list;
  linear_.add_parameters(list);
  return list;
}

Tensors NormLayer::forward(const Tensors& input, const Batch& batch, const BlockContext& context) {
  modes.push_back(context.mode);
  const at::Tensor x_BD = linear_.forward(input.at(0));
  const bool training = context.mode == Mode::train || context.mode == Mode::recompute;
  if (!training) return {(x_BD - mean_.value) * at::rsqrt(variance_.value + kEps)};
  Communicator* ranks = context.peers.along(CommAxis::batch);
  const at::Tensor mask = mask_of(batch, x_BD.size(0));
  Statistics of;
  {
    const at::NoGradGuard no_gradient;
    of = statistics_of(x_BD.detach(), mask, ranks);
    if (context.mode == Mode::train) {
      mean_.value.lerp_(of.mean, kMomentum);
      variance_.value.lerp_(of.variance, kMomentum);
      count_.value.add_(of.count.to(at::kLong).squeeze(0));
    }
  }
  return {Normalise::apply(x_BD, mask, of, ranks)};
}

BlockCost NormLayer::cost(const BatchShape& shape) {
  BlockCost cost = plain_cost(name_, shape, kWidth);
  cost.exchanges = {{.op = CommOp::all_reduce,
                     .axis = CommAxis::batch,
                     .bytes = (2 * kWidth + 1) * kFloatBytes,
                     .pass = ExchangePass::train},
                    {.op = CommOp::all_reduce,
                     .axis = CommAxis::batch,
                     .bytes = 2 * kWidth * kFloatBytes,
                     .pass = ExchangePass::backward}};
  return cost;
}

Model small_model_with_norm() {
  Model model;
  model.blocks.push_back(std::make_unique<Stem>());
  model.blocks.push_back(std::make_unique<NormLayer>());
  model.blocks.push_back(std::make_unique<Head>());
  return model;
}

SampleSource::SampleSource(const Setup& setup, int rank, int steps) {
  const std::int64_t samples = setup.global / setup.micro_batches;  // of a micro-batch, all ranks
  const Range own = even_part(samples, setup.ranks, rank);
  for (int step = 0; step < steps; ++step) {
    for (int m = 0; m < setup.micro_batches; ++m) {
      const auto seed = static_cast<std::uint64_t>(step * setup.micro_batches + m);
      const at::Tensor all = at::randn({samples, kFeatures}, at::detail::createCPUGenerator(seed));
      Batch batch;
      batch.images = at::full({setup.micro(), kFeatures}, 100.0);
      batch.images.narrow(0, 0, own.size()).copy_(all.narrow(0, own.begin, own.size()));
      batch.labels = at::zeros({setup.micro()}, at::kLong);
      batch.labels.narrow(0, 0, own.size())
          .copy_(at::arange(own.begin, own.end).remainder(kClasses));
      batch.weights = at::zeros({setup.micro()});
      batch.weights.narrow(0, 0, own.size()).fill_(1);
      batch.valid = at::full({}, own.size(), at::kInt);
      batches_.push_back(std::move(batch));
    }
  }
}

namespace {

Recipe recipe_of(const Setup& setup) {
  Recipe recipe;
  recipe.parallel.zero.stage = setup.stage;
  recipe.batch.global = setup.global;
  recipe.batch.micro = setup.micro();
  recipe.memory.recompute = setup.recompute ? Recompute::blocks : Recompute::none;
  // The update follows the gradient, however small: AdamW's first ones follow its sign, and so
  // rounding.
  recipe.optimizer.name = OptimizerName::sgd;
  recipe.precision.compute = ComputeType::fp32;
  return recipe;
}

Machine machine_of(const Setup& setup) {
  Machine machine = cpu();
  machine.peer_copies = setup.peers;
  machine.ranks_per_node = 8;
  return machine;
}

Communicators open(ThreadWorld& threads, const Strategy& strategy, int rank) {
  Communicators opened;
  std::vector<CommChannel> all = channels(strategy.training);
  if (std::ranges::find(all, kWorldChannel) == all.end()) all.push_back(kWorldChannel);
  for (const ChannelGroup& group : channel_groups(all, strategy.layout, strategy.mesh, rank)) {
    const CommunicatorOptions options = {.name = group.name, .ranks = group.ranks, .rank = rank};
    opened.add(group.channel, make_counting(threads.communicator(options), options));
  }
  return opened;
}

}  // namespace

SmallRank::SmallRank(ThreadWorld& threads, const Setup& setup_in, int rank_in)
    : setup(setup_in),
      rank(rank_in),
      store(threads.store()),
      recipe(recipe_of(setup)),
      model(small_model_with_norm()),
      cost(model_cost(model, {.micro_batch = setup.micro(), .compute_bytes = 4})),
      strategy(make_strategy(recipe, cost, setup.ranks, machine_of(setup))),
      communicators(open(threads, strategy, rank)),
      source(setup, rank, kStepsOfData) {
  states = std::make_unique<StateStore>(
      strategy.layout, group_parameters(model).groups, all_states(model),
      StateOptions{.optimizer = recipe.optimizer.name, .mesh = strategy.mesh, .rank = rank});
  states->initialize(*make_random_weights(7));
  executor = std::make_unique<Executor>(
      model, cost, strategy, *states, communicators,
      ExecutorOptions{.optimizer = recipe.optimizer,
                      .precision = recipe.precision,
                      .data_rank = strategy.mesh.coordinate(rank, kDataAxes)},
      record);
}

void SmallRank::enqueue() {
  executor->enqueue(
      {.step = next_step++, .lr = 0.1, .targets = setup.global, .samples = setup.global}, source);
}

void SmallRank::skip_step() {
  source.skip(setup.micro_batches);
  ++next_step;
}

EvaluationTotals SmallRank::evaluate() {
  SampleSource same(setup, rank, 1);
  return executor->evaluate(same, setup.micro_batches);
}

std::vector<at::Tensor> SmallRank::state() {
  std::vector<at::Tensor> copies;
  for (const BlockState* tensor : norm().state()) copies.push_back(tensor->value.clone());
  return copies;
}

void with_ranks(const Setup& setup, const std::function<void(SmallRank& rank)>& body) {
  ThreadWorld threads(setup.ranks);
  threads.run([&](int rank) {
    at::set_num_threads(1);
    SmallRank own(threads, setup, rank);
    body(own);
  });
}

}  // namespace dstrain::test
