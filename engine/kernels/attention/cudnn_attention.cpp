#include "engine/kernels/attention/cudnn_attention.h"

#include <ATen/cudnn/Handle.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <cudnn_frontend.h>

#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace dstrain::ops {
namespace {

namespace graphs = cudnn_frontend::graph;
using cudnn_frontend::DataType_t;
using graphs::Graph;

/// Names of a graph's tensors.
enum Operand : std::int64_t {
  kQuery = 1,
  kKey,
  kValue,
  kOut,
  kStatistics,
  kGrad,
  kQueryGrad,
  kKeyGrad,
  kValueGrad
};

using Operands = std::unordered_map<std::int64_t, at::Tensor>;

void require_good(cudnn_frontend::error_t status) {
  TORCH_CHECK(status.is_good(), "cuDNN's attention: ", status.get_message());
}

DataType_t type_of(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kHalf:
      return DataType_t::HALF;
    case at::kBFloat16:
      return DataType_t::BFLOAT16;
    default:
      return DataType_t::FLOAT;
  }
}

template <typename Attributes>
void describe(Attributes& attributes, Operand name, const at::Tensor& x) {
  attributes.set_uid(name)
      .set_dim(x.sizes().vec())
      .set_stride(x.strides().vec())
      .set_data_type(type_of(x));
}

/// One attention's graph in the making.
class Builder {
 public:
  Builder(const Operands& operands, const Masking& masking)
      : operands_(operands), masking_(masking), graph_(std::make_shared<Graph>()) {
    graph_->set_intermediate_data_type(DataType_t::FLOAT).set_compute_data_type(DataType_t::FLOAT);
  }

  std::shared_ptr<Graph> forward() {
    const auto [out, statistics] =
        graph_->sdpa(input(kQuery), input(kKey), input(kValue),
                     with_mask(graphs::SDPA_attributes().set_generate_stats(true)));
    output(*out, kOut);
    output(*statistics, kStatistics);
    return built();
  }

  std::shared_ptr<Graph> backward() {
    const auto [query, key, value] = graph_->sdpa_backward(
        input(kQuery), input(kKey), input(kValue), input(kOut), input(kGrad), input(kStatistics),
        with_mask(graphs::SDPA_backward_attributes()));
    output(*query, kQueryGrad);
    output(*key, kKeyGrad);
    output(*value, kValueGrad);
    return built();
  }

 private:
  std::shared_ptr<graphs::Tensor_attributes> input(Operand name) {
    graphs::Tensor_attributes attributes;
    describe(attributes, name, operands_.at(name));
    return graph_->tensor(attributes);
  }

  void output(graphs::Tensor_attributes& attributes, Operand name) {
    attributes.set_output(true);
    describe(attributes, name, operands_.at(name));
  }

  template <typename Attributes>
  Attributes with_mask(Attributes attributes) {
    return attributes.set_attn_scale(static_cast<float>(masking_.scale))
        .set_causal_mask(masking_.causal)
        .set_alibi_mask(masking_.biases.has_value());
  }

  /// Its first proposal was the fastest one of all for the shapes of ViT, Qwen2.5 and BLOOM.
  std::shared_ptr<Graph> built() {
    require_good(graph_->build(at::native::getCudnnHandle(), {cudnn_frontend::HeurMode_t::A}));
    return graph_;
  }

  const Operands& operands_;
  const Masking& masking_;
  std::shared_ptr<Graph> graph_;
};

/// What a graph depends on.
std::vector<std::int64_t> key_of(const Operands& operands, const Masking& masking) {
  std::vector<std::int64_t> key = {operands.at(kQuery).device().index(), masking.causal ? 1 : 0,
                                   masking.biases ? 1 : 0,
                                   static_cast<std::int64_t>(masking.scale * 0x1p40)};
  for (std::int64_t name = kQuery; name <= kValueGrad; ++name) {
    const auto found = operands.find(name);
    if (found == operands.end()) continue;
    const at::Tensor& x = found->second;
    key.insert(key.end(), {name, static_cast<std::int64_t>(x.scalar_type())});
    key.insert(key.end(), x.sizes().begin(), x.sizes().end());
    key.insert(key.end(), x.strides().begin(), x.strides().end());
  }
  return key;
}

/// Graphs are kept for good: CUDA graphs that captured one read its slopes again.
std::shared_ptr<Graph> graph_for(const Operands& operands, const Masking& masking) {
  static std::mutex mutex;
  static std::map<std::vector<std::int64_t>, std::shared_ptr<Graph>> known;
  const std::lock_guard lock(mutex);
  std::shared_ptr<Graph>& graph = known[key_of(operands, masking)];
  if (!graph) {
    Builder builder(operands, masking);
    graph = operands.contains(kGrad) ? builder.backward() : builder.forward();
  }
  return graph;
}

void execute(const Operands& operands, const Masking& masking) {
  const std::shared_ptr<Graph> graph = graph_for(operands, masking);
  std::int64_t bytes = 0;
  require_good(graph->get_workspace_size(bytes));
  const at::Tensor workspace = at::empty({bytes}, operands.at(kQuery).options().dtype(at::kByte));
  std::unordered_map<std::int64_t, void*> places;
  for (const auto& [name, tensor] : operands) places.emplace(name, tensor.data_ptr());
  require_good(graph->execute(at::native::getCudnnHandle(), places, workspace.data_ptr()));
}

}  // namespace

bool cudnn_adds(const Slopes& slopes) {
  return slopes.first_head == 0 && slopes.heads == slopes.model_heads;
}

Attended attend_by_cudnn(const Heads& in, const Masking& masking) {
  const std::int64_t batch = in[0].size(0), heads = in[0].size(1), tokens = in[0].size(2);
  const at::Tensor out =
      at::empty({batch, tokens, heads, in[2].size(3)}, in[0].options()).transpose(1, 2);
  const at::Tensor statistics =
      at::empty({batch, heads, tokens, 1}, in[0].options().dtype(at::kFloat));
  execute({{kQuery, in[0]},
           {kKey, in[1]},
           {kValue, in[2]},
           {kOut, out},
           {kStatistics, statistics}},
          masking);
  return {Backend::cudnn, out, statistics, {}, {}};
}

void attend_backward_by_cudnn(const Attended& saved, const at::Tensor& grad, const Heads& in,
                              const Masking& masking, const Heads& out) {
  execute({{kQuery, in[0]},
           {kKey, in[1]},
           {kValue, in[2]},
           {kOut, saved.out},
           {kStatistics, saved.log_sum_exp},
           {kGrad, grad},
           {kQueryGrad, out[0]},
           {kKeyGrad, out[1]},
           {kValueGrad, out[2]}},
          masking);
}

}  // namespace dstrain::ops
