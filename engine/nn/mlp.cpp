#include "engine/nn/mlp.h"

namespace dstrain {

Mlp::Mlp(const std::string& up, const std::string& down, std::int64_t width, std::int64_t mlp_width,
         double init_std)
    : up_({up}, {mlp_width, width}, init_std), down_({down}, {width, mlp_width}, init_std) {}

at::Tensor Mlp::forward(const at::Tensor& x_MD) { return down_.forward(up_.forward_gelu(x_MD)); }

void Mlp::add_parameters(std::vector<Parameter*>& list) {
  up_.add_parameters(list);
  down_.add_parameters(list);
}

}  // namespace dstrain
