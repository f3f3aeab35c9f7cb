#include <cmath>
#include <vector>

#include "engine/kernels/batch_norm/kernels.h"
#include "engine/kernels/excite/kernels.h"
#include "test/gpu/places.h"
#include "test/kernels/reference/reference.h"
#include "test/kernels/tensors.h"

/// Kernels of squeeze and excitation against their references.
namespace dstrain {
namespace {

using namespace test;
using kernels::Activation;

TEST_CASE("GPU: squeeze, gate and their gradients equal their references", "[gpu][kernels][conv]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const ImageSize s = GENERATE(ImageSize{1, 1, 8}, ImageSize{2, 9, 10}, ImageSize{5, 49, 1152},
                               ImageSize{3, 3136, 96}, ImageSize{4, 196, 672});
  const auto activation =
      GENERATE(Activation::none, Activation::relu6, Activation::silu, Activation::hardswish);
  CAPTURE(c10::toString(type), s.samples, s.pixels, s.channels, static_cast<int>(activation));
  compare_places(type, s.samples * s.pixels, [&](const Place& place) -> Tensors {
    test::Random random(2);
    const std::vector<std::int64_t> sizes{s.samples, s.pixels, s.channels};
    const at::Tensor x = place.put(random({s.samples, s.pixels, s.channels}, type)),
                     grad_y = place.put(random({s.samples, s.pixels, s.channels}, type)),
                     gate = place.put(random({s.samples, s.channels})),
                     grad_mean = place.put(random({s.samples, s.channels})),
                     grad_pooled = place.put(random({s.samples, s.channels}, type)),
                     mean = place.put(random({s.channels})),
                     scale = place.put(random({s.channels})),
                     shift = place.put(random({s.channels}));
    const at::Tensor valid = valid_number(place, s.samples, s.channels % 3 == 0);
    const kernels::DType dtype = ops::kernel_dtype(x);
    const at::Tensor squeezed = place.fill({s.samples, s.channels}, type),
                     pooled = place.fill({s.samples, s.channels}, type);
    for (const bool normed : {true, false}) {
      place.run(kernels::cuda::squeeze, kernels::reference::squeeze,
                {.x = in(x),
                 .scale = normed ? fp32(scale) : nullptr,
                 .shift = normed ? fp32(shift) : nullptr,
                 .mean = out(normed ? squeezed : pooled),
                 .samples = s.samples,
                 .pixels = s.pixels,
                 .channels = s.channels,
                 .activation = activation,
                 .dtype = dtype});
    }
    const at::Tensor y = place.fill(sizes, type);
    place.run(kernels::cuda::batch_norm_apply, kernels::reference::batch_norm_apply,
              {.x = in(x),
               .scale = fp32(scale),
               .shift = fp32(shift),
               .residual = nullptr,
               .gate = fp32(gate),
               .y = out(y),
               .samples = s.samples,
               .pixels = s.pixels,
               .channels = s.channels,
               .activation = activation,
               .dtype = dtype});
    const at::Tensor grad_gate = place.fill({s.samples, s.channels}, at::kFloat),
                     sums = place.fill({s.samples, 4, s.channels}, at::kFloat);
    place.run(kernels::cuda::gate_backward_sums, kernels::reference::gate_backward_sums,
              {.x = in(x),
               .grad_y = in(grad_y),
               .mean = fp32(mean),
               .scale = fp32(scale),
               .shift = fp32(shift),
               .grad_gate = fp32(grad_gate),
               .sums = fp32(sums),
               .samples = s.samples,
               .pixels = s.pixels,
               .channels = s.channels,
               .activation = activation,
               .dtype = dtype});
    // The same with y, which is batch_norm_apply's.
    const at::Tensor grad_gate_beside = place.fill({s.samples, s.channels}, at::kFloat),
                     sums_beside = place.fill({s.samples, 4, s.channels}, at::kFloat),
                     y_again = place.fill(sizes, type);
    place.run(kernels::cuda::gate_backward_sums, kernels::reference::gate_backward_sums,
              {.x = in(x),
               .grad_y = in(grad_y),
               .mean = fp32(mean),
               .scale = fp32(scale),
               .shift = fp32(shift),
               .grad_gate = fp32(grad_gate_beside),
               .sums = fp32(sums_beside),
               .samples = s.samples,
               .pixels = s.pixels,
               .channels = s.channels,
               .activation = activation,
               .dtype = dtype,
               .gate = fp32(gate),
               .y = out(y_again)});
    REQUIRE(y_again.equal(y));
    const at::Tensor partial = place.fill({1, 2, s.channels}, at::kFloat);
    place.run(kernels::cuda::gate_backward_combine, kernels::reference::gate_backward_combine,
              {.sums = fp32(sums),
               .gate = fp32(gate),
               .grad_mean = fp32(grad_mean),
               .valid = valid_of(valid),
               .partial = fp32(partial),
               .samples = s.samples,
               .pixels = s.pixels,
               .channels = s.channels});
    const at::Tensor grad_x = place.fill(sizes, type);
    place.run(kernels::cuda::spread_mean, kernels::reference::spread_mean,
              {.grad = in(grad_pooled),
               .grad_x = out(grad_x),
               .samples = s.samples,
               .pixels = s.pixels,
               .channels = s.channels,
               .dtype = dtype});
    return {squeezed, pooled,           y,           grad_gate, sums,
            partial,  grad_gate_beside, sums_beside, y_again,   grad_x};
  });
}

TEST_CASE("GPU: gates of squeeze and excitation equal their reference", "[gpu][kernels][conv]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  struct Size {
    std::int64_t samples, channels, squeezed;
  };
  const Size s = GENERATE(Size{1, 8, 1}, Size{3, 96, 4}, Size{130, 33, 6}, Size{5, 1152, 48},
                          Size{2, 960, 240}, Size{4, 72, 24}, Size{2, 40, 1000});
  const auto rule = GENERATE(kernels::GateRule::sigmoid, kernels::GateRule::hard_sigmoid);
  const auto activation = rule == kernels::GateRule::sigmoid ? Activation::silu : Activation::relu;
  CAPTURE(c10::toString(type), s.samples, s.channels, s.squeezed, static_cast<int>(activation));
  compare_places(type, s.channels * s.squeezed, [&](const Place& place) -> Tensors {
    test::Random random(6);
    const double share = 1 / std::sqrt(static_cast<double>(s.channels));
    const at::Tensor mean = place.put(random({s.samples, s.channels}, type)),
                     reduce = place.put(random({s.squeezed, s.channels}, type).mul_(share)),
                     reduce_bias = place.put(random({s.squeezed}, type)),
                     expand = place.put(random({s.channels, s.squeezed}, type).mul_(share)),
                     expand_bias = place.put(random({s.channels}, type)),
                     grad_gate = place.put(random({s.samples, s.channels})),
                     grad_reduce = place.put(random({s.squeezed, s.channels})),
                     grad_reduce_bias = place.put(random({s.squeezed})),
                     grad_expand = place.put(random({s.channels, s.squeezed})),
                     grad_expand_bias = place.put(random({s.channels}));
    const at::Tensor hidden = place.fill({s.samples, s.squeezed}, at::kFloat),
                     gate = place.fill({s.samples, s.channels}, at::kFloat),
                     grad_z = place.fill({s.samples, s.channels}, at::kFloat),
                     grad_hidden = place.fill({s.samples, s.squeezed}, at::kFloat),
                     grad_mean = place.fill({s.samples, s.channels}, at::kFloat);
    const kernels::DType dtype = ops::kernel_dtype(mean);
    place.run(kernels::cuda::excite, kernels::reference::excite,
              {.mean = in(mean),
               .reduce = in(reduce),
               .reduce_bias = in(reduce_bias),
               .expand = in(expand),
               .expand_bias = in(expand_bias),
               .hidden = fp32(hidden),
               .gate = fp32(gate),
               .samples = s.samples,
               .channels = s.channels,
               .squeezed = s.squeezed,
               .activation = activation,
               .rule = rule,
               .dtype = dtype});
    place.run(kernels::cuda::excite_backward, kernels::reference::excite_backward,
              {.hidden = fp32(hidden),
               .gate = fp32(gate),
               .grad_gate = fp32(grad_gate),
               .reduce = in(reduce),
               .expand = in(expand),
               .grad_z = fp32(grad_z),
               .grad_hidden = fp32(grad_hidden),
               .grad_mean = fp32(grad_mean),
               .samples = s.samples,
               .channels = s.channels,
               .squeezed = s.squeezed,
               .activation = activation,
               .rule = rule,
               .dtype = dtype});
    place.run(kernels::cuda::excite_parameters, kernels::reference::excite_parameters,
              {.mean = in(mean),
               .hidden = fp32(hidden),
               .grad_z = fp32(grad_z),
               .grad_hidden = fp32(grad_hidden),
               .grad_reduce = fp32(grad_reduce),
               .grad_reduce_bias = fp32(grad_reduce_bias),
               .grad_expand = fp32(grad_expand),
               .grad_expand_bias = fp32(grad_expand_bias),
               .samples = s.samples,
               .channels = s.channels,
               .squeezed = s.squeezed,
               .activation = activation,
               .dtype = dtype,
               .write_reduce = s.samples == 3,
               .write_expand = s.samples < 4});
    return {hidden,           gate,        grad_z,          grad_hidden, grad_mean, grad_reduce,
            grad_reduce_bias, grad_expand, grad_expand_bias};
  });
}

}  // namespace
}  // namespace dstrain
