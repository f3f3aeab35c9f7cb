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

at::Tensor SelfAttention::with_shared_head(const at::Tensor& q, const at::Tensor& kv) const {
  const std::int64_t first = shared_head_ * shape_.head_dim;
  return at::cat(
      {q, kv.narrow(1, first, shape_.head_dim), kv.narrow(1, kv_width_ + first, shape_.head_dim)},
      1);
}

at::Tensor SelfAttention::forward(const ops::Measured& x_mD, std::int64_t batch,
                                  const ops::Sequences& sequences, const Call& call) {
  ops::AttentionShape shape = shape_;
  shape.batch = batch;
  at::Tensor qkv;
  if (shared_) {
    const ops::Measured x_MD = gathered(x_mD, call);
    qkv = with_shared_head(qkv_.forward(x_MD, call), shared_->forward(x_MD, call));
  } else {
    qkv = qkv_.forward_of_gathered(x_mD, call);
  }
  if (norms_)
    qkv = ops::norm_query_key(qkv, shape, norms_->query, norms_->key, norms_->eps, norms_->hold);
  const at::Tensor out =
      call.cached != nullptr     ? ops::cached_attention(qkv, shape, sequences, *call.cached)
      : splits_.sequence.whole() ? ops::attention(qkv, shape, sequences)
                                 : attend_over_ranks(qkv, shape, splits_.exchange, sequences, call);
  return output_.forward(out, call);
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

std::vector<LayerCost> SelfAttention::layers(std::int64_t batch, std::int64_t tokens,
                                             int compute_bytes, bool input_is_kept) const {
  const std::int64_t rows = batch * tokens;
  std::vector<LayerCost> list = {qkv_.cost(rows, compute_bytes, input_is_kept)};
  if (shared_) list.push_back(shared_->cost(rows, compute_bytes, true));
  if (norms_) {
    LayerCost heads{.name = layer_name_of(norms_->query) + ", key",
                    .saved_bytes = norms_saved_bytes(rows, compute_bytes)};
    count(norms_->query, heads);
    count(norms_->key, heads);
    list.push_back(std::move(heads));
  }
  // Scores, and the sum of the values. In a zigzag each rank has an equal part of a sample's.
  Flops flops = (shape_.causal ? 2.0 : 4.0) * static_cast<double>(batch) *
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
  list.push_back({.name = "softmax attention",
                  .forward_flops = flops,
                  .saved_bytes = ops::attention_saved_bytes(shape_, rows, compute_bytes),
                  .attention_flops = flops,
                  .wide_attention_flops = wide ? flops : 0,
                  .forward_traffic = traffic,
                  .backward_traffic = 2 * traffic});
  list.push_back(output_.cost(rows, compute_bytes, true));
  return list;
}

Workspace SelfAttention::workspace(std::int64_t batch, std::int64_t tokens,
                                   int compute_bytes) const {
  const std::int64_t rows = batch * tokens;
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
  const Bytes scores =
      ops::attention_score_bytes(shape_, batch, tokens * splits_.sequence.count, compute_bytes);
  return {.forward = over_ranks.forward + std::max(decoded, scores),
          .backward = std::max(backward + scores, qkv + decoded) + over_ranks.backward};
}

std::vector<Exchange> SelfAttention::exchanges(std::int64_t rows, int compute_bytes) const {
  return sequence_exchanges(shape_, splits_.exchange, splits_.sequence.count, rows, compute_bytes);
}

}  // namespace dstrain
