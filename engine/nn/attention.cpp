#include "engine/nn/attention.h"

#include "engine/kernels/ops.h"

namespace dstrain {

SelfAttention::SelfAttention(const AttentionNames& names, std::int64_t width, std::int64_t heads,
                             double init_std)
    : width_(width),
      heads_(heads),
      qkv_({names.query, names.key, names.value}, {width, width}, init_std),
      output_({names.output}, {width, width}, init_std) {}

at::Tensor SelfAttention::forward(const at::Tensor& x_MD, std::int64_t batch) {
  return output_.forward(ops::attention(qkv_.forward(x_MD), batch, heads_));
}

void SelfAttention::add_parameters(std::vector<Parameter*>& list) {
  qkv_.add_parameters(list);
  output_.add_parameters(list);
}

Flops SelfAttention::flops(std::int64_t batch, std::int64_t tokens) const {
  const double scores_and_sum = 4.0 * static_cast<double>(batch) *
                                static_cast<double>(tokens * tokens) * static_cast<double>(width_);
  return qkv_.flops(batch * tokens) + scores_and_sum + output_.flops(batch * tokens);
}

}  // namespace dstrain
