#include "engine/kernels/experts/experts.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "engine/base/index.h"
#include "engine/comm/thread_world.h"
#include "engine/kernels/kernels.h"
#include "engine/kernels/op_support.h"
#include "test/kernels/devices.h"
#include "test/kernels/reference/reference.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"
#include "test/support/near.h"

namespace dstrain {
namespace {

using test::far;

/// Choices of a batch: all sorts, or all of one expert.
at::Tensor make_choices(test::Random& random, bool same, std::int64_t number,
                        std::int64_t experts) {
  if (same) return at::full({number}, experts / 2, at::kInt);
  return (random({number}).abs() * 1e6).to(at::kLong).remainder(experts).to(at::kInt);
}

constexpr std::int64_t kExpertWidth = 64, kExpertHidden = 32;

std::vector<std::int64_t> numbers(const at::Tensor& counts) {
  const at::Tensor wide = counts.cpu().to(at::kLong);
  return {wide.const_data_ptr<std::int64_t>(), wide.const_data_ptr<std::int64_t>() + wide.numel()};
}

/// The router's weights by expert, 0 for those that a row has not chosen: [M, E], in double.
at::Tensor plain_weights(const at::Tensor& logits, const at::Tensor& choices, bool normalize) {
  const at::Tensor p = logits.softmax(1);
  const at::Tensor chosen = at::zeros_like(p).scatter_(1, choices.to(at::kLong), 1.0).detach() * p;
  return normalize ? chosen / chosen.sum(1, true) : chosen;
}

/// The mean over the tokens that count of the balance loss and of the z loss of each sample, added
/// up.
at::Tensor plain_losses(const at::Tensor& logits, const at::Tensor& choices,
                        const ops::RouterLosses& losses) {
  const std::int64_t experts = logits.size(1);
  const at::Tensor share = at::zeros_like(logits).scatter_(1, choices.to(at::kLong), 1.0).detach();
  const at::Tensor p = logits.softmax(1), log_sum = logits.logsumexp(1);
  at::Tensor total = at::zeros({}, logits.options());
  std::int64_t first = 0;
  for (const std::int64_t length : numbers(losses.lengths)) {
    const std::int64_t begin = std::exchange(first, first + losses.tokens);
    if (length == 0) continue;
    const auto mean = [&](const at::Tensor& x) { return x.narrow(0, begin, length).mean(0); };
    const at::Tensor balance = (mean(share) * mean(p)).sum() * static_cast<double>(experts);
    total = total + balance * losses.balance + mean(log_sum.pow(2)) * losses.z;
  }
  return total;
}

TEST_CASE("the router's weights and losses have the gradients of autograd", "[kernels][experts]") {
  const auto device = GENERATE(from_range(test::devices()));
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  const std::int64_t experts = GENERATE(1, 2, 7), tokens = 6, samples = 3;
  const bool padded = GENERATE(false, true);
  const at::Tensor lengths = padded ? at::tensor({6, 2, 0}, at::kInt) : at::full({3}, 6, at::kInt);
  const std::int64_t chosen = GENERATE(1, 2, 7);
  if (chosen > experts) return;
  const bool normalize = GENERATE(false, true), with_losses = GENERATE(false, true);
  CAPTURE(device.str(), c10::toString(dtype), experts, chosen, normalize, with_losses, padded);
  test::Random random(1, device);
  const at::Tensor x = random({samples * tokens, experts}, dtype);
  const at::Tensor dy = random({samples * tokens, chosen});
  const at::Tensor loss_sum = at::full({}, 5.0, dy.options());
  ops::RouterLosses losses;
  if (with_losses) {
    losses = {.balance = 0.5,
              .z = 0.25,
              .tokens = tokens,
              .seed = at::full({}, 3.0, dy.options()),
              .lengths = lengths.to(device),
              .loss_sum = loss_sum,
              .loss_factor = 0.125};
  }
  const at::Tensor logits = test::leaf(x), exact = test::exact(x);
  const ops::Routes routes =
      ops::route(logits, {.experts = experts, .chosen = chosen, .normalize = normalize}, losses);
  routes.weights.backward(dy);

  const at::Tensor choices = routes.choices.cpu();
  const at::Tensor weights = plain_weights(exact, choices, normalize);
  const at::Tensor chosen_weights = weights.gather(1, choices.to(at::kLong));
  at::Tensor total = (chosen_weights * test::exact(dy)).sum();
  if (with_losses) total = total + 3 * plain_losses(exact, choices, losses);
  total.backward();
  CHECK(far(routes.weights, chosen_weights, at::kFloat, experts) == "");
  // A gradient of 0 (all experts chosen and their weights made to add up) has no scale of its own.
  const at::Tensor scale = at::ones({1, experts}, at::kDouble);
  CHECK(far(at::cat({logits.grad().cpu().to(at::kDouble), scale}), at::cat({exact.grad(), scale}),
            dtype, experts) == "");
  if (!with_losses) return;
  ops::RouterLosses balance_only = losses;
  balance_only.balance = 0.125;
  balance_only.z = 0;
  const at::Tensor expected = plain_losses(exact, choices, balance_only) + 5;
  CHECK(far(loss_sum, expected, at::kFloat, tokens * samples) == "");
}

/// Rows of part `rows` of the rows of sequence rank `sequence`, of all [B * T, ...].
at::Tensor rows_of(const at::Tensor& all, std::int64_t samples, AxisPart sequence, AxisPart rows) {
  const std::int64_t columns = all.size(1);
  const at::Tensor here = all.view({samples, sequence.count, -1, columns})
                              .select(1, sequence.index)
                              .reshape({-1, columns});
  const std::int64_t size = here.size(0) / rows.count;
  return here.narrow(0, rows.index * size, size).contiguous();
}

TEST_CASE("ranks with parts of the samples have the losses of one rank",
          "[kernels][experts][cpu]") {
  constexpr std::int64_t kSamples = 3, kTokens = 8, kExperts = 5, kChosen = 2;
  const int sequence = GENERATE(1, 2), tensor = GENERATE(1, 2, 4);
  CAPTURE(sequence, tensor);
  const ops::RouterShape shape = {.experts = kExperts, .chosen = kChosen};
  test::Random random(6);
  const at::Tensor x = random({kSamples * kTokens, kExperts}),
                   dy = random({kSamples * kTokens, kChosen});
  const auto losses_with = [&](const ops::SampleParts& parts, const at::Tensor& loss_sum) {
    return ops::RouterLosses{.balance = 0.5,
                             .z = 0.25,
                             .tokens = kTokens,
                             .seed = at::full({}, 3.0, at::kFloat),
                             .lengths = at::tensor({8, 3, 0}, at::kInt),
                             .loss_sum = loss_sum,
                             .parts = parts};
  };
  const at::Tensor logits = test::leaf(x), loss = at::zeros({});
  ops::route(logits, shape, losses_with({}, loss)).weights.backward(dy);

  const int ranks = sequence * tensor;
  std::vector<int> everyone(static_cast<std::size_t>(ranks));
  std::iota(everyone.begin(), everyone.end(), 0);
  std::vector<at::Tensor> gradients(everyone.size()), sums(everyone.size());
  ThreadWorld world(ranks);
  world.run([&](int rank) {
    const auto peers = world.communicator({.name = "samples", .ranks = everyone, .rank = rank});
    const AxisPart of_sequence = {rank / tensor, sequence}, rows = {rank % tensor, tensor};
    const at::Tensor own = test::leaf(rows_of(x, kSamples, of_sequence, rows));
    at::Tensor& sum = sums[to_index(rank)] = at::zeros({});
    const at::Tensor all = at::arange(kSamples * kTokens, at::kInt).view({-1, 1});
    const ops::SampleParts parts = {
        .sequence = sequence,
        .places = sequence > 1 ? rows_of(all, kSamples, of_sequence, {}).flatten() : at::Tensor(),
        .rows = rows,
        .ranks = peers.get()};
    ops::route(own, shape, losses_with(parts, sum))
        .weights.backward(rows_of(dy, kSamples, of_sequence, rows));
    gradients[to_index(rank)] = own.grad();
  });
  for (int rank = 0; rank < ranks; ++rank) {
    CAPTURE(rank);
    const at::Tensor expected =
        rows_of(logits.grad(), kSamples, {rank / tensor, sequence}, {rank % tensor, tensor});
    CHECK(far(gradients[to_index(rank)], expected, at::kFloat, kTokens) == "");
    if (rank > 0) CHECK(sums[to_index(rank)].item<float>() == 0);
  }
  CHECK(far(sums[0], loss, at::kFloat, kTokens) == "");
  CHECK(loss.item<float>() > 0);
}

TEST_CASE("of equal logits the lower expert is chosen, of nan an expert all the same",
          "[kernels][experts]") {
  const auto device = GENERATE(from_range(test::devices()));
  const at::Tensor logits =
      at::tensor({1.0f, 2.0f, 2.0f, 2.0f, 0.0f, 0.0f, 0.0f, 0.0f}).view({2, 4}).to(device);
  const ops::Routes routes = ops::route(logits, {.experts = 4, .chosen = 2});
  CHECK(routes.choices.cpu().equal(at::tensor({1, 2, 0, 1}, at::kInt).view({2, 2})));
  const at::Tensor nan =
      at::full({1, 4}, std::numeric_limits<float>::quiet_NaN(), logits.options());
  const ops::Routes unknown = ops::route(nan, {.experts = 4, .chosen = 2});
  CHECK(unknown.choices.ge(0).logical_and(unknown.choices.lt(4)).all().item<bool>());
  CHECK(unknown.weights.isnan().all().item<bool>());
}

TEST_CASE("rows are sorted by expert, those of an expert in their order", "[kernels][experts]") {
  const auto device = GENERATE(from_range(test::devices()));
  const at::Tensor choices = at::tensor({3, 0, 3, 1, 0, 3}, at::kInt).view({3, 2});
  const ops::ExpertOrder order = ops::sort_by_expert(choices.to(device), 5);
  CHECK(order.place.cpu().equal(at::tensor({3, 0, 4, 2, 1, 5}, at::kInt).view({3, 2})));
  CHECK(order.counts.cpu().equal(at::tensor({2, 1, 0, 3, 0}, at::kInt)));
}

TEST_CASE("choices are sorted by expert as the reference sorts them",
          "[kernels][experts][reference]") {
  const auto device = GENERATE(from_range(test::devices()));
  const std::int64_t number = GENERATE(0, 1, 31, 512, 513, 20'000);
  const std::int64_t experts = GENERATE(1, 8, 60, 512);
  const bool same = GENERATE(false, true);
  CAPTURE(device.str(), number, experts, same);
  test::Random random(2);
  const at::Tensor choices = make_choices(random, same, number, experts).view({number, 1}),
                   place = at::zeros({number, 1}, at::kInt),
                   counts = at::zeros({experts}, at::kInt);
  kernels::reference::sort_by_expert({.choices = choices.const_data_ptr<std::int32_t>(),
                                      .place = place.mutable_data_ptr<std::int32_t>(),
                                      .counts = counts.mutable_data_ptr<std::int32_t>(),
                                      .scratch = nullptr,
                                      .choices_count = number,
                                      .experts = experts});
  const ops::ExpertOrder order = ops::sort_by_expert(choices.to(device), experts);
  CHECK(order.place.cpu().equal(place));
  CHECK(order.counts.cpu().equal(counts));
}

TEST_CASE("rows of several ranks are sorted by expert, those of an expert by rank",
          "[kernels][experts]") {
  const auto device = GENERATE(from_range(test::devices()));
  const auto place = [&](const at::Tensor& counts, std::int64_t experts, std::int64_t rows) {
    return ops::place_by_expert(counts.to(device), experts, rows).cpu();
  };
  // Rank 0: 1 row of expert 0, 2 of expert 1; rank 1: none and 1; rank 2: 2 and 0.
  const at::Tensor counts = at::tensor({1, 2, 0, 1, 2, 0}, at::kInt);
  CHECK(place(counts, 2, 6).equal(at::tensor({0, 3, 4, 5, 1, 2}, at::kInt).view({6, 1})));
  // The same as to sort the rows by their experts.
  const at::Tensor expert = at::tensor({0, 1, 1, 1, 0, 0}, at::kInt).view({6, 1});
  CHECK(place(counts, 2, 6).equal(ops::sort_by_expert(expert, 2).place));
  CHECK(place(at::zeros({4}, at::kInt), 2, 0).numel() == 0);

  const std::int64_t ranks = GENERATE(1, 2, 8), experts = GENERATE(1, 4, 64, 300);
  const int max = GENERATE(0, 1, 700);
  CAPTURE(device.str(), ranks, experts, max);
  test::Random random(7);
  const at::Tensor many =
      (random({ranks * experts}).abs() * 1e6).to(at::kLong).remainder(max + 1).to(at::kInt);
  const auto rows = many.sum().item<std::int64_t>();
  CHECK(place(many, experts, rows).equal(ops::place_by_expert(many, experts, rows)));
}

/// Rows and weights of a mixture whose choices are given.
struct Mixture {
  std::int64_t experts;
  at::Tensor choices;
  Parameter gate_up, down;
  at::Tensor x, weights, shared, gate, dy;

  Mixture(test::Random& random, std::int64_t experts_in, const at::Tensor& chosen,
          at::ScalarType dtype, bool has_shared)
      : experts(experts_in),
        choices(chosen.to(at::kInt).to(random.device())),
        gate_up(random.parameter({experts_in * 2 * kExpertHidden, kExpertWidth}, dtype)),
        down(random.parameter({experts_in * kExpertWidth, kExpertHidden}, dtype)),
        x(random({chosen.size(0), kExpertWidth}, dtype)),
        weights(random({chosen.size(0), chosen.size(1)}).abs()),
        dy(random({chosen.size(0), kExpertWidth}, dtype)) {
    if (!has_shared) return;
    shared = random({chosen.size(0), kExpertWidth}, dtype);
    gate = random({chosen.size(0), 1}, dtype);
  }
  void empty_gradients() {
    for (Parameter* p : {&gate_up, &down}) {
      p->gradient.fill_(1e30);
      p->gradient_state = GradientState::empty;
    }
  }
};

struct MixtureResults {
  at::Tensor y, dx, dweights, dshared, dgate, dgate_up, ddown;
};

MixtureResults run(Mixture& m) {
  const at::Tensor x = test::leaf(m.x), weights = test::leaf(m.weights);
  at::Tensor shared, gate;
  if (m.shared.defined()) {
    shared = test::leaf(m.shared);
    gate = test::leaf(m.gate);
  }
  const ops::ExpertOrder order = ops::sort_by_expert(m.choices, m.experts);
  const at::Tensor rows = ops::spread_rows(x, order.place);
  const at::Tensor y =
      ops::combine_rows(ops::expert_mlps(rows, numbers(order.counts), m.gate_up, m.down),
                        order.place, weights, shared, gate);
  y.backward(m.dy);
  return {y,
          x.grad(),
          weights.grad(),
          shared.defined() ? shared.grad() : at::Tensor(),
          gate.defined() ? gate.grad() : at::Tensor(),
          m.gate_up.gradient,
          m.down.gradient};
}

/// Every expert on every row, in double.
MixtureResults plain(const Mixture& m) {
  const at::Tensor x = test::exact(m.x), weights = test::exact(m.weights),
                   gate_up = test::exact(m.gate_up.value), down = test::exact(m.down.value);
  at::Tensor y = at::zeros({x.size(0), kExpertWidth}, at::kDouble), shared, gate;
  for (std::int64_t e = 0; e < m.experts; ++e) {
    const at::Tensor both =
        x.matmul(gate_up.narrow(0, e * 2 * kExpertHidden, 2 * kExpertHidden).t());
    const at::Tensor h =
        at::silu(both.narrow(1, 0, kExpertHidden)) * both.narrow(1, kExpertHidden, kExpertHidden);
    const at::Tensor own = (m.choices.cpu().eq(e).to(at::kDouble) * weights).sum(1, true);
    y = y + own * h.matmul(down.narrow(0, e * kExpertWidth, kExpertWidth).t());
  }
  if (m.shared.defined()) {
    shared = test::exact(m.shared);
    gate = test::exact(m.gate);
    y = y + at::sigmoid(gate) * shared;
  }
  y.backward(test::exact(m.dy).detach());
  return {y,
          x.grad(),
          weights.grad(),
          shared.defined() ? shared.grad() : at::Tensor(),
          gate.defined() ? gate.grad() : at::Tensor(),
          gate_up.grad(),
          down.grad()};
}

void check_equal(const MixtureResults& ours, const MixtureResults& theirs, at::ScalarType dtype,
                 std::int64_t rows) {
  const std::int64_t length = std::max({rows, kExpertWidth, kExpertHidden});
  CHECK(far(ours.y, theirs.y, dtype, length) == "");
  CHECK(far(ours.dx, theirs.dx, dtype, length) == "");
  CHECK(far(ours.dweights, theirs.dweights, dtype, length) == "");
  CHECK(far(ours.dgate_up, theirs.dgate_up, dtype, length) == "");
  CHECK(far(ours.ddown, theirs.ddown, dtype, length) == "");
  if (!ours.dshared.defined()) return;
  CHECK(far(ours.dshared, theirs.dshared, dtype, length) == "");
  CHECK(far(ours.dgate, theirs.dgate, dtype, length) == "");
}

TEST_CASE("a mixture of experts matches autograd through all experts", "[kernels][experts]") {
  const auto device = GENERATE(from_range(test::devices()));
  const auto dtype =
      GENERATE_COPY(from_range(test::multiplied(device, {at::kFloat, at::kBFloat16})));
  const bool shared = GENERATE(false, true);
  test::Random random(2, device), on_host(4);
  // Spread, all to one expert, one token, none; many.
  test::Tensors batches = {at::tensor({3, 0, 3, 1, 0, 3, 2, 0}, at::kInt).view({4, 2}),
                           at::full({5, 1}, 2, at::kInt), at::tensor({1, 3}, at::kInt).view({1, 2}),
                           at::zeros({0, 2}, at::kInt)};
  for (const std::int64_t rows : {70, 1000})
    for (const bool same : {false, true})
      batches.push_back(make_choices(on_host, same, rows * 2, 5).view({rows, 2}));
  const at::Tensor choices = GENERATE_COPY(from_range(batches));
  CAPTURE(device.str(), c10::toString(dtype), shared, choices.size(0), choices.size(1));
  Mixture m(random, 5, choices, dtype, shared);
  m.empty_gradients();
  check_equal(run(m), plain(m), dtype, choices.size(0));
}

TEST_CASE("gradients of experts add up, and begin with 0 where an expert has no rows",
          "[kernels][experts]") {
  test::Random random(3, GENERATE(from_range(test::devices())));
  Mixture m(random, 4, at::tensor({3, 0, 3, 0}, at::kInt).view({2, 2}), at::kFloat, false);
  m.empty_gradients();
  const at::Tensor first = run(m).dgate_up.clone();
  CHECK(first.narrow(0, 2 * kExpertHidden, 4 * kExpertHidden).eq(0).all().item<bool>());
  CHECK(far(first, plain(m).dgate_up, at::kFloat, kExpertWidth) == "");
  CHECK(far(run(m).dgate_up, first * 2, at::kFloat, kExpertWidth) == "");
}

TEST_CASE("frozen experts hand gradients on and take none", "[kernels][experts]") {
  test::Random random(4, GENERATE(from_range(test::devices())));
  Mixture m(random, 4, at::tensor({3, 0, 1, 0}, at::kInt).view({2, 2}), at::kFloat, false);
  const MixtureResults expected = plain(m);
  for (Parameter* p : {&m.gate_up, &m.down}) {
    p->trainable = false;
    p->gradient = at::Tensor();
  }
  CHECK(far(run(m).dx, expected.dx, at::kFloat, kExpertWidth) == "");
}

TEST_CASE("the references of experts agree with the operators",
          "[kernels][experts][reference][cpu]") {
  constexpr std::int64_t kTokens = 4, kSamples = 2, kRows = kTokens * kSamples, kExperts = 5,
                         kChosen = 2;
  test::Random random(5);
  const at::Tensor x = random({kRows, kExperts}), dw = random({kRows, kChosen});
  const at::Tensor seed = at::full({}, 2.0, at::kFloat), loss_sum = at::zeros({}),
                   lengths = at::tensor({3, 0}, at::kInt), logits = test::leaf(x);
  const ops::Routes routes = ops::route(logits, {kExperts, kChosen, true},
                                        {.balance = 0.5,
                                         .z = 0.1,
                                         .tokens = kTokens,
                                         .seed = seed,
                                         .lengths = lengths,
                                         .loss_sum = loss_sum});
  routes.weights.backward(dw);

  const at::Tensor choices = at::empty({kRows, kChosen}, at::kInt),
                   weights = at::empty({kRows, kChosen}), log_sum = at::empty({kRows}),
                   sums = at::empty({2, kSamples, kExperts}),
                   share = at::empty({kSamples, kExperts}), sum = at::zeros({}),
                   grad = at::empty({kRows, kExperts});
  kernels::reference::route({.logits = x.const_data_ptr(),
                             .choices = choices.mutable_data_ptr<std::int32_t>(),
                             .weights = weights.mutable_data_ptr<float>(),
                             .log_sum = log_sum.mutable_data_ptr<float>(),
                             .rows = kRows,
                             .experts = kExperts,
                             .chosen = kChosen,
                             .normalize = true,
                             .dtype = kernels::DType::f32});
  kernels::reference::expert_sums({.logits = x.const_data_ptr(),
                                   .log_sum = log_sum.const_data_ptr<float>(),
                                   .choices = choices.const_data_ptr<std::int32_t>(),
                                   .lengths = lengths.const_data_ptr<std::int32_t>(),
                                   .places = nullptr,
                                   .sums = sums.mutable_data_ptr<float>(),
                                   .partial = nullptr,
                                   .rows = kRows,
                                   .first_row = 0,
                                   .sample_rows = kTokens,
                                   .samples = kSamples,
                                   .tokens = kTokens,
                                   .experts = kExperts,
                                   .chosen = kChosen,
                                   .dtype = kernels::DType::f32});
  kernels::reference::expert_shares({.sums = sums.const_data_ptr<float>(),
                                     .lengths = lengths.const_data_ptr<std::int32_t>(),
                                     .share = share.mutable_data_ptr<float>(),
                                     .loss_sum = sum.mutable_data_ptr<float>(),
                                     .factor = 1,
                                     .samples = kSamples,
                                     .tokens = kTokens,
                                     .experts = kExperts});
  kernels::reference::route_backward({.logits = x.const_data_ptr(),
                                      .choices = choices.const_data_ptr<std::int32_t>(),
                                      .weights = weights.const_data_ptr<float>(),
                                      .log_sum = log_sum.const_data_ptr<float>(),
                                      .grad_weights = dw.const_data_ptr<float>(),
                                      .seed = seed.const_data_ptr<float>(),
                                      .share = share.const_data_ptr<float>(),
                                      .lengths = lengths.const_data_ptr<std::int32_t>(),
                                      .places = nullptr,
                                      .grad_logits = grad.mutable_data_ptr(),
                                      .balance = 0.5f,
                                      .z = 0.1f,
                                      .rows = kRows,
                                      .first_row = 0,
                                      .sample_rows = kTokens,
                                      .tokens = kTokens,
                                      .experts = kExperts,
                                      .chosen = kChosen,
                                      .normalize = true,
                                      .dtype = kernels::DType::f32});
  CHECK(choices.equal(routes.choices));
  CHECK(far(routes.weights, weights, at::kFloat, kExperts) == "");
  CHECK(far(loss_sum, sum, at::kFloat, kRows) == "");
  CHECK(far(logits.grad(), grad, at::kFloat, kExperts) == "");
}

TEST_CASE("rows by expert and their sums equal their references", "[kernels][experts][reference]") {
  const auto device = GENERATE(from_range(test::devices()));
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const std::int64_t rows = GENERATE(1, 9, 300), chosen = GENERATE(1, 2, 8),
                     dim = GENERATE(8, 264, 2048);
  const bool has_shared = GENERATE(false, true);
  if (!test::worth_it(device, rows * chosen * dim)) return;
  CAPTURE(device.str(), c10::toString(type), rows, chosen, dim, has_shared);
  test::Random random(3);
  const at::Tensor place = at::randperm(rows * chosen, at::kLong).to(at::kInt).view({rows, chosen}),
                   x = random({rows, dim}, type), y = random({rows * chosen, dim}, type),
                   weights = random({rows, chosen}), shared = random({rows, dim}, type),
                   gate = random({rows, 1}, type), dy = random({rows, dim}, type);
  const at::Tensor spread = at::empty_like(y), gathered = at::empty_like(x),
                   sum = at::empty_like(x), grad_y = at::zeros_like(y),
                   grad_weights = at::zeros_like(weights), grad_shared = at::zeros_like(shared),
                   grad_gate = at::zeros_like(gate);
  const auto* places = place.const_data_ptr<std::int32_t>();
  const auto dtype = ops::kernel_dtype(x);
  kernels::reference::spread_rows({.x = x.const_data_ptr(),
                                   .place = places,
                                   .out = spread.mutable_data_ptr(),
                                   .rows = rows,
                                   .chosen = chosen,
                                   .dim = dim,
                                   .dtype = dtype});
  for (const bool weighted : {false, true}) {
    const bool beside = weighted && has_shared;
    kernels::reference::combine_rows(
        {.y = y.const_data_ptr(),
         .place = places,
         .weights = weighted ? weights.const_data_ptr<float>() : nullptr,
         .shared = beside ? shared.const_data_ptr() : nullptr,
         .gate = gate.const_data_ptr(),
         .out = (weighted ? sum : gathered).mutable_data_ptr(),
         .rows = rows,
         .chosen = chosen,
         .dim = dim,
         .dtype = dtype});
  }
  kernels::reference::combine_rows_backward(
      {.y = y.const_data_ptr(),
       .place = places,
       .weights = weights.const_data_ptr<float>(),
       .shared = has_shared ? shared.const_data_ptr() : nullptr,
       .gate = gate.const_data_ptr(),
       .grad_out = dy.const_data_ptr(),
       .grad_y = grad_y.mutable_data_ptr(),
       .grad_weights = grad_weights.mutable_data_ptr<float>(),
       .grad_shared = has_shared ? grad_shared.mutable_data_ptr() : nullptr,
       .grad_gate = has_shared ? grad_gate.mutable_data_ptr() : nullptr,
       .rows = rows,
       .chosen = chosen,
       .dim = dim,
       .dtype = dtype});
  const auto run = [&] {
    const auto own = [&](const at::Tensor& tensor) { return test::leaf(tensor.to(device)); };
    const auto beside = [&](const at::Tensor& tensor) {
      return has_shared ? own(tensor) : at::Tensor();
    };
    const at::Tensor at_place = place.to(device), from = own(x), rows_y = own(y),
                     own_weights = own(weights), own_shared = beside(shared),
                     own_gate = beside(gate);
    const at::Tensor many = ops::spread_rows(from, at_place);
    many.backward(y.to(device));
    const at::Tensor out = ops::combine_rows(rows_y, at_place, own_weights, own_shared, own_gate);
    out.backward(dy.to(device));
    test::Tensors found = {many.detach(), from.grad(), out.detach(), rows_y.grad(),
                           own_weights.grad()};
    if (has_shared) found.insert(found.end(), {own_shared.grad(), own_gate.grad()});
    return found;
  };
  const test::Tensors found = run(), again = run(),
                      expected = {spread,       gathered,    sum,      grad_y,
                                  grad_weights, grad_shared, grad_gate};
  for (std::size_t i = 0; i < found.size(); ++i) {
    CAPTURE(i);
    const std::int64_t length = i == 0 ? 1 : i < 3 ? chosen : dim;
    CHECK(far(found[i], expected[i], expected[i].scalar_type(), length) == "");
    CHECK(found[i].equal(again[i]));
  }
}

}  // namespace
}  // namespace dstrain
