#include "engine/nn/attention.h"

#include <utility>

#include "engine/base/error.h"
#include "engine/nn/layer_cost.h"
#include "engine/nn/sequence_attention.h"

namespace dstrain {
namespace {

std::vector<LinearPart> qkv_parts(const std::vector<std::string>& names,
                                  const ops::AttentionShape& shape) {
  if (names.size() == 1) return {{names[0], shape.qkv_width()}};
  DSTRAIN_CHECK(names.size() == 3, "attention needs one name or three");
  const std::int64_t kv_width = shape.kv_heads * shape.head_dim;
  return {{names[0], shape.width()}, {names[1], kv_width}, {names[2], kv_width}};
}

Parameter head_norm(const std::string& name, std::int64_t head_dim) {
  Parameter weight;
  weight.hold({{name + ".weight", {head_dim}}});
  weight.init = Init::ones;
  return weight;
}

}  // namespace

SelfAttention::SelfAttention(const AttentionNames& names, std::int64_t width,
                             const ops::AttentionShape& shape, const InitialWeights& init,
                             const AttentionBiases& biases, double norm_eps, const Splits& splits)
    : shape_(shape),
      splits_(splits),
      qkv_(qkv_parts(names.qkv, shape), {width}, init, biases.qkv),
      output_({{names.output, width}}, {shape.width()}, init, biases.output) {
  require_heads(shape, splits.exchange, splits.sequence.count);
  if (names.query_norm.empty()) return;
  norms_ = {.query = head_norm(names.query_norm, shape.head_dim),
            .key = head_norm(names.key_norm, shape.head_dim),
            .eps = norm_eps};
}

at::Tensor SelfAttention::forward(const at::Tensor& x_MD, std::int64_t batch,
                                  const ops::Sequences& sequences, const Call& call) {
  ops::AttentionShape shape = shape_;
  shape.batch = batch;
  at::Tensor qkv = qkv_.forward(x_MD, call);
  if (norms_) qkv = ops::norm_query_key(qkv, shape, norms_->query, norms_->key, norms_->eps);
  const at::Tensor out = splits_.sequence.whole()
                             ? ops::attention(qkv, shape, sequences)
                             : attend_over_ranks(qkv, shape, splits_.exchange, sequences, call);
  return output_.forward(out, call);
}

void SelfAttention::add_parameters(std::vector<Parameter*>& list) {
  qkv_.add_parameters(list);
  output_.add_parameters(list);
  if (norms_) list.insert(list.end(), {&norms_->query, &norms_->key});
}

std::vector<LayerCost> SelfAttention::layers(std::int64_t batch, std::int64_t tokens,
                                             int compute_bytes) const {
  const std::int64_t rows = batch * tokens;
  std::vector<LayerCost> list = {qkv_.cost(rows, compute_bytes)};
  if (norms_) {
    LayerCost heads{.name = layer_name_of(norms_->query) + ", key",
                    .saved_bytes = ops::norm_query_key_saved_bytes(shape_, rows, compute_bytes)};
    count(norms_->query, heads);
    count(norms_->key, heads);
    list.push_back(std::move(heads));
  }
  // Scores, and the sum of the values. In a zigzag each rank has an equal part of a sample's.
  list.push_back({.name = "softmax attention",
                  .forward_flops = (shape_.causal ? 2.0 : 4.0) * static_cast<double>(batch) *
                                   static_cast<double>(tokens * tokens * splits_.sequence.count) *
                                   static_cast<double>(shape_.width()),
                  .saved_bytes = ops::attention_saved_bytes(shape_, rows, compute_bytes)});
  list.push_back(output_.cost(rows, compute_bytes, true));
  return list;
}

Workspace SelfAttention::workspace(std::int64_t rows, int compute_bytes) const {
  const Bytes qkv = rows * shape_.qkv_width() * compute_bytes;
  // Gradients of query, key and value twice, apart and packed. With linear biases packed, and
  // query, key, value, their gradients and that of the output in heads that have room for these.
  const Workspace over_ranks =
      sequence_workspace(shape_, splits_.exchange, splits_.sequence.count, rows, compute_bytes);
  if (!shape_.alibi)
    return {.forward = over_ranks.forward, .backward = 2 * qkv + over_ranks.backward};
  const Bytes heads =
      rows * shape_.heads * compute_bytes * ops::attention_head_width(shape_, compute_bytes);
  return {.forward = over_ranks.forward, .backward = qkv + 7 * heads + over_ranks.backward};
}

std::vector<Exchange> SelfAttention::exchanges(std::int64_t rows, int compute_bytes) const {
  return sequence_exchanges(shape_, splits_.exchange, splits_.sequence.count, rows, compute_bytes);
}

}  // namespace dstrain
