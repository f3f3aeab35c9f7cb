#include <vector>

#include "engine/kernels/batch_norm/kernels.h"
#include "test/gpu/places.h"
#include "test/kernels/reference/reference.h"
#include "test/kernels/tensors.h"

/// Kernels around the gates of squeeze and excitation against their references.
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
    kernels::GateBackwardSums backward{.x = in(x),
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
                                       .dtype = dtype};
    place.run(kernels::cuda::gate_backward_sums, kernels::reference::gate_backward_sums, backward);
    // The same with y, which is batch_norm_apply's.
    const at::Tensor grad_gate_beside = place.fill({s.samples, s.channels}, at::kFloat),
                     sums_beside = place.fill({s.samples, 4, s.channels}, at::kFloat),
                     y_again = place.fill(sizes, type);
    backward.grad_gate = fp32(grad_gate_beside);
    backward.sums = fp32(sums_beside);
    backward.gate = fp32(gate);
    backward.y = out(y_again);
    place.run(kernels::cuda::gate_backward_sums, kernels::reference::gate_backward_sums, backward);
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

}  // namespace
}  // namespace dstrain
