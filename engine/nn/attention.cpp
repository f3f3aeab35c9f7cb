#include "engine/nn/attention.h"

#include <ATen/ops/cat.h>

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/nn/gathered.h"
#include "engine/nn/layer_cost.h"
#include "engine/nn/rms_norm.h"
#include "engine/nn/sequence_attention.h"

namespace dstrain {
namespace {

/// Bytes of each row and column in forward: attention over few keys takes longer than its products,
/// by what such traffic would take. Fitted with Machine::attention_flops_per_s to steps with 197 to
/// 131,072 tokens a sample.
constexpr Bytes kAttentionTraffic = 16;
/// The same where our own kernels run (short_attention.h), as in ViT.
constexpr Bytes kShortAttentionTraffic = 12;

/// A key head is used by the query heads of several ranks.
bool shares_heads(const ops::AttentionShape& shape, const AxisPart& tensor) {
  return shape.kv_heads % tensor.count != 0;
}

ops::AttentionShape own_shape(ops::AttentionShape shape, const AxisPart& tensor) {
  if (tensor.whole()) return shape;
  const int ranks = tensor.count;
  DSTRAIN_CHECK(
      shape.heads % ranks == 0 && (shape.kv_heads % ranks == 0 || ranks % shape.kv_heads == 0),
      "heads do not divide among the tensor ranks");
  shape.model_heads = shape.heads;
  shape.heads /= ranks;
  shape.first_head = tensor.index * shape.heads;
  shape.kv_heads = std::max<std::int64_t>(shape.kv_heads / ranks, 1);
  return shape;
}

std::vector<LinearPart> qkv_parts(const std::vector<std::string>& names,
                                  const ops::AttentionShape& shape, const AxisPart& tensor) {
  const std::int64_t kv_width = shape.kv_heads * shape.head_dim;
  if (names.size() == 1) {
    // Interleaved, each head's rows lie together.
    std::vector<std::int64_t> joined;
    if (!shape.interleaved) joined = {shape.width(), kv_width, kv_width};
    return {{names[0], shape.qkv_width(), std::move(joined)}};
  }
  DSTRAIN_CHECK(names.size() == 3, "attention needs one name or three");
  if (shares_heads(shape, tensor)) return {{names[0], shape.width()}};
  return {{names[0], shape.width()}, {names[1], kv_width}, {names[2], kv_width}};
}

}  // namespace

SelfAttention::SelfAttention(const AttentionNames& names, std::int64_t width,
                             const ops::AttentionShape& shape, const InitialWeights& init,
                             const AttentionBiases& biases, double norm_eps, const Splits& splits)
    : shape_(own_shape(shape, splits.tensor)),
      splits_(splits),
      qkv_(qkv_parts(names.qkv, shape, splits.tensor), {width}, init, biases.qkv,
           {LinearCut::By::rows, splits.tensor}),
      output_({{names.output, width}}, {shape.width()}, init, biases.output,
              {LinearCut::By::columns, splits.tensor}) {
  require_heads(shape_, splits.exchange, splits.sequence.count);
  const AxisPart& tensor = splits.tensor;
  if (shares_heads(shape, tensor)) {
    kv_width_ = shape.kv_heads * shape.head_dim;
    shared_head_ = tensor.index * shape.kv_heads / tensor.count;
    shared_.emplace(
        std::vector<LinearPart>{{names.qkv.at(1), kv_width_}, {names.qkv.at(2), kv_width_}},
        std::vector{width}, init, biases.qkv);
  }
  if (names.query_norm.empty()) return;
  const bool all = names.norms_all_heads;
  DSTRAIN_CHECK(!all || tensor.whole(), "a norm over the heads of several ranks");
  const auto head_norm = [&](const std::string& name, std::int64_t heads) {
    return rms_weight(name + ".weight", all ? heads * shape.head_dim : shape.head_dim,
                      names.norm_weights);
  };
  norms_ = {.query = head_norm(names.query_norm, shape.heads),
            .key = head_norm(names.key_norm, shape.kv_heads),
            .eps = norm_eps,
            .all_heads = all,
            .hold = names.norm_weights};
}

Features SelfAttention::run(LayerPass& pass, const Features& x, std::int64_t samples) {
  ops::AttentionShape shape = shape_;
  shape.batch = samples;
  Features qkv = shared_ ? run_shared(pass, x) : qkv_.run_of_gathered(pass, x);
  if (norms_) qkv = norm_heads(pass, qkv, shape);
  Features made = output_.run(pass, attend(pass, qkv, shape));
  if (pass.costs != nullptr) {
    const Bytes stream = x.bytes(),
                of_all = splits_.tensor.whole() ? 0 : stream * splits_.tensor.count;
    const Workspace inside = workspace(qkv.rows(), samples, pass.costs->compute_bytes());
    pass.costs->hold(std::max(stream, inside.forward) + of_all,
                     2 * stream + inside.backward + of_all);
  }
  return made;
}

Features SelfAttention::run_shared(LayerPass& pass, const Features& x) {
  Features x_MD = gathered(pass, x, splits_.tensor);
  const Features q = qkv_.run(pass, x_MD);
  x_MD.counted = true;
  const Features kv = shared_->run(pass, x_MD);
  if (pass.costs != nullptr) return q.sized({q.rows(), shape_.qkv_width()});
  const std::int64_t first = shared_head_ * shape_.head_dim;
  const auto own_head = [&](std::int64_t column) {
    return kv.tensor.narrow(1, column, shape_.head_dim);
  };
  return {.tensor = at::cat({q.tensor, own_head(first), own_head(kv_width_ + first)}, 1)};
}

Features SelfAttention::norm_heads(LayerPass& pass, const Features& qkv,
                                   const ops::AttentionShape& shape) {
  auto& [query, key, eps, all_heads, hold] = *norms_;
  if (pass.costs == nullptr)
    return {.tensor = ops::norm_query_key(qkv.tensor, shape, query, key, eps, hold)};
  pass.costs->require(all_heads ? SizeOf::width : SizeOf::head, query.numel(), kernels::kNormDims);
  LayerCost heads{.name = layer_name_of(query) + ", key",
                  .saved_bytes = norms_saved_bytes(qkv.rows(), pass.costs->compute_bytes())};
  count(query, heads);
  count(key, heads);
  pass.costs->add(std::move(heads));
  return qkv;
}

Features SelfAttention::attend(LayerPass& pass, const Features& qkv,
                               const ops::AttentionShape& shape) const {
  const AxisPart& sequence = splits_.sequence;
  if (pass.costs == nullptr) {
    const ops::Sequences& sequences = pass.batch->sequences;
    if (pass.call.cached != nullptr)
      return {.tensor = ops::cached_attention(qkv.tensor, shape, sequences, *pass.call.cached)};
    if (sequence.whole()) return {.tensor = ops::attention(qkv.tensor, shape, sequences)};
    return {.tensor = attend_over_ranks(qkv.tensor, shape, splits_.exchange, sequences, pass.call)};
  }
  LayerCosts& costs = *pass.costs;
  costs.require(SizeOf::head, shape_.head_dim,
                ops::attention_head_dims(shape_, costs.compute_bytes(), costs.limits()));
  costs.add(attention_cost(qkv.rows(), shape.batch, costs.compute_bytes()));
  add_sequence_exchanges(costs.exchanges(), shape_, splits_.exchange, sequence.count, qkv.rows(),
                         costs.compute_bytes());
  Features made = qkv.sized({qkv.rows(), shape_.width()});
  made.counted = true;
  return made;
}

void SelfAttention::add_parameters(std::vector<Parameter*>& list) {
  qkv_.add_parameters(list);
  if (shared_) shared_->add_parameters(list);
  output_.add_parameters(list);
  if (norms_) list.insert(list.end(), {&norms_->query, &norms_->key});
}

Bytes SelfAttention::norms_saved_bytes(std::int64_t rows, int compute_bytes) const {
  if (!norms_->all_heads) return ops::norm_query_key_saved_bytes(shape_, rows, compute_bytes);
  const auto one = [&](std::int64_t width) {
    return ops::norm_query_key_saved_bytes({.heads = 1, .head_dim = width}, rows, compute_bytes);
  };
  return one(shape_.width()) + one(shape_.kv_heads * shape_.head_dim);
}

LayerCost SelfAttention::attention_cost(std::int64_t rows, std::int64_t samples,
                                        int compute_bytes) const {
  const std::int64_t tokens = rows / samples;
  // Scores, and the sum of the values. In a zigzag each rank has an equal part of a sample's.
  Flops flops = (shape_.causal ? 2.0 : 4.0) * static_cast<double>(samples) *
                static_cast<double>(tokens * tokens * splits_.sequence.count) *
                static_cast<double>(shape_.width());
  if (const std::int64_t all = tokens * splits_.sequence.count, window = shape_.window;
      window > 0 && window < all) {
    // Its share of the pairs of a token and an earlier one.
    flops *=
        static_cast<double>(2 * all * window - window * window) / static_cast<double>(all * all);
  }
  constexpr std::int64_t kWidestForCudnn = 144;  // on Hopper, whose rates Machine has
  const bool wide = shape_.head_dim > kWidestForCudnn && shape_.softcap == 0;
  const bool own_kernels =
      splits_.sequence.whole() && ops::attends_by_own_kernels(shape_, tokens, shape_.head_dim);
  Bytes traffic =
      (own_kernels ? kShortAttentionTraffic : kAttentionTraffic) * rows * shape_.width();
  // Scores go through memory, and shares that are made of them: written and read.
  if (shape_.softcap > 0) {
    const Bytes pairs = rows * tokens * splits_.sequence.count * shape_.heads;
    traffic += 2 * (kFloatBytes + compute_bytes) * (shape_.causal ? pairs / 2 : pairs);
  }
  return {.name = "softmax attention",
          .forward_flops = flops,
          .saved_bytes = ops::attention_saved_bytes(shape_, rows, compute_bytes),
          .attention_flops = flops,
          .wide_attention_flops = wide ? flops : 0,
          .forward_traffic = traffic,
          .backward_traffic = 2 * traffic};
}

Workspace SelfAttention::workspace(std::int64_t rows, std::int64_t samples,
                                   int compute_bytes) const {
  const Bytes qkv = rows * shape_.qkv_width() * compute_bytes;
  const Workspace over_ranks =
      sequence_workspace(shape_, splits_.exchange, splits_.sequence.count, rows, compute_bytes);
  Bytes backward = 0;
  if (shape_.alibi) {
    // Gradients packed, and query, key, value, their gradients and that of the output in heads that
    // have room for linear biases.
    backward = qkv + 7 * rows * shape_.heads * compute_bytes *
                         ops::attention_head_width(shape_, compute_bytes);
  } else {
    // Gradients of query, key and value packed. Libraries return those of some heads apart, add up
    // that of the queries in fp32, and make those of shared keys and values for each query head:
    // cuDNN and flash attention took 4.0 and 5.5 times the queries' bytes, 32 heads to 8.
    const Bytes of_queries = rows * shape_.width() * compute_bytes;
    Bytes apart = qkv;
    if (compute_bytes == 2) apart += rows * shape_.width() * kFloatBytes;
    if (shape_.heads != shape_.kv_heads) apart += 2 * of_queries;
    const std::int64_t groups =
        splits_.sequence.whole() ? ops::attention_head_groups(shape_, rows) : 1;
    backward = qkv + apart / groups;
  }
  // A product beside the packed gradients.
  const Bytes decoded =
      std::max(qkv_.decoded_bytes(compute_bytes), output_.decoded_bytes(compute_bytes));
  const Bytes scores = ops::attention_score_bytes(
      shape_, samples, rows / samples * splits_.sequence.count, compute_bytes);
  return {.forward = over_ranks.forward + std::max(decoded, scores),
          .backward = std::max(backward + scores, qkv + decoded) + over_ranks.backward};
}

}  // namespace dstrain
