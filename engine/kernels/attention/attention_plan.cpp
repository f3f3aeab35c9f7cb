#include "engine/kernels/attention/attention_plan.h"

#include <utility>
#include <vector>

#include "engine/kernels/attention/cudnn_attention.h"
#include "engine/kernels/gpu.h"

namespace dstrain::ops {

namespace {

Slopes slopes_of(const AttentionShape& shape) {
  return {.heads = shape.heads, .first_head = shape.first_head, .model_heads = shape.slopes_of()};
}

}  // namespace

Plan Plan::of(const at::Tensor& qkv, const AttentionShape& shape, std::int64_t longest,
              bool fewer_queries) {
  Plan plan{.shape = shape, .longest = longest};
  if (shape.alibi && qkv.is_cuda() && qkv.scalar_type() != at::kFloat) {
    plan.stretched = stretched_widths(shape.head_dim);
    plan.cudnn_adds_biases = !fewer_queries && widest_for_cudnn(kernels::cuda::gpu_limits()) > 0 &&
                             cudnn_adds(slopes_of(shape));
  }
  return plan;
}

Masking Plan::masking(const Sequences& sequences) const {
  Masking masking{.causal = shape.causal,
                  .window = shape.window,
                  .scale = shape.score_scale(),
                  .softcap = shape.softcap,
                  .sequences = sequences};
  if (shape.alibi && (!stretched || cudnn_adds_biases)) masking.biases = slopes_of(shape);
  return masking;
}

StretchedWidths Plan::widths(Backend backend) const {
  if (!stretched || (backend == Backend::cudnn && cudnn_adds_biases))
    return {.query_key = shape.head_dim, .value = shape.head_dim};
  StretchedWidths found = *stretched;
  if (backend != Backend::cudnn) found.value = found.query_key;
  return found;
}

Heads Plan::heads(Backend backend, const at::Tensor& qkv, const Sequences& sequences) const {
  const StretchedWidths wide = widths(backend);
  return wide.query_key == shape.head_dim ? split_heads(qkv, shape, sequences)
                                          : stretch_heads(qkv, shape, sequences, wide);
}

Attended Plan::attend(const at::Tensor& like, bool packed, const Masking& masking,
                      const std::function<Heads(Backend)>& heads_for) const {
  const Backend backend = backend_for(like, shape, widths(Backend::cudnn).query_key, packed);
  if (backend == Backend::cudnn) {
    const auto found =
        unless_refused([&] { return ops::attend(backend, heads_for(backend), masking); });
    return found ? *found : ops::attend(Backend::flash, heads_for(Backend::flash), masking);
  }
  return ops::attend(backend, heads_for(backend), masking);
}

void Plan::save(torch::autograd::AutogradContext* context) const {
  const StretchedWidths kept = stretched.value_or(StretchedWidths{});
  context->saved_data["plan"] = std::vector<std::int64_t>{shape.batch,
                                                          shape.heads,
                                                          shape.kv_heads,
                                                          shape.head_dim,
                                                          shape.interleaved ? 1 : 0,
                                                          shape.causal ? 1 : 0,
                                                          shape.alibi ? 1 : 0,
                                                          kept.query_key,
                                                          kept.value,
                                                          longest,
                                                          shape.first_head,
                                                          shape.model_heads,
                                                          cudnn_adds_biases ? 1 : 0,
                                                          shape.rotary,
                                                          shape.window};
  const RopeScaling& scaling = shape.rope_scaling;
  std::vector<double> numbers = {shape.rope_theta,    scaling.factor,    scaling.low_factor,
                                 scaling.high_factor, scaling.positions, scaling.amplitude,
                                 shape.scale,         shape.softcap};
  for (const auto* divisors : {&scaling.short_divisors, &scaling.long_divisors})
    numbers.insert(numbers.end(), divisors->begin(), divisors->end());
  context->saved_data["numbers"] = std::move(numbers);
}

Plan Plan::load(torch::autograd::AutogradContext* context) {
  const std::vector<std::int64_t> all = context->saved_data.at("plan").toIntVector();
  const std::vector<double> numbers = context->saved_data.at("numbers").toDoubleVector();
  constexpr std::ptrdiff_t kNumbers = 8;
  const auto short_divisors = numbers.begin() + kNumbers,
             long_divisors = short_divisors + (std::ssize(numbers) - kNumbers) / 2;
  Plan plan{.shape = {.batch = all[0],
                      .heads = all[1],
                      .kv_heads = all[2],
                      .head_dim = all[3],
                      .interleaved = all[4] != 0,
                      .causal = all[5] != 0,
                      .rope_theta = numbers[0],
                      .rope_scaling = {.factor = numbers[1],
                                       .low_factor = numbers[2],
                                       .high_factor = numbers[3],
                                       .positions = numbers[4],
                                       .short_divisors = {short_divisors, long_divisors},
                                       .long_divisors = {long_divisors, numbers.end()},
                                       .amplitude = numbers[5]},
                      .rotary = all[13],
                      .alibi = all[6] != 0,
                      .window = all[14],
                      .scale = numbers[6],
                      .softcap = numbers[7],
                      .first_head = all[10],
                      .model_heads = all[11]},
            .cudnn_adds_biases = all[12] != 0,
            .longest = all[9]};
  if (all[7] > 0) plan.stretched = StretchedWidths{.query_key = all[7], .value = all[8]};
  return plan;
}

}  // namespace dstrain::ops
