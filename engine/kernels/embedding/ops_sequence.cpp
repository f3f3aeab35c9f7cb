#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/kernels/embedding/kernels.h"
#include "engine/kernels/gradient_sink.h"
#include "engine/kernels/op_context.h"
#include "engine/kernels/op_support.h"
#include "engine/kernels/ops.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct EmbedSequence : torch::autograd::Function<EmbedSequence> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>&, std::int64_t batch,
                            Parameter* class_token, Parameter* positions) {
    const at::Tensor patches = dense(input);
    const std::int64_t tokens = patches.size(0) / batch + 1, dim = patches.size(1);
    context->saved_data["batch"] = batch;
    keep(context, "class_token", class_token);
    keep(context, "positions", positions);
    const at::Tensor &token = value_of(*class_token, patches),
                     &position = value_of(*positions, patches);
    if (!patches.is_cuda()) {
      const at::Tensor rows =
          at::cat({token.expand({batch, 1, dim}), patches.view({batch, tokens - 1, dim})}, 1);
      return (rows + position).view({batch * tokens, dim});
    }
    at::Tensor out = at::empty({batch * tokens, dim}, patches.options());
    kernels::cuda::embed_sequence({.patches = patches.const_data_ptr(),
                                   .class_token = token.const_data_ptr(),
                                   .positions = position.const_data_ptr(),
                                   .out = out.mutable_data_ptr(),
                                   .batch = batch,
                                   .tokens = tokens,
                                   .dim = dim,
                                   .dtype = kernel_dtype(patches)},
                                  current_stream());
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const at::Tensor grad = dense(grads[0]);
    const std::int64_t batch = context->saved_data.at("batch").toInt();
    const std::int64_t tokens = grad.size(0) / batch, dim = grad.size(1);
    const GradientSink class_token(kept(context, "class_token"), grad),
        positions(kept(context, "positions"), grad);
    if (!grad.is_cuda()) {
      const at::Tensor rows = grad.view({batch, tokens, dim}), sum = rows.sum(0, false, at::kFloat);
      positions.add(sum);
      class_token.add(sum.select(0, 0));
      return {rows.narrow(1, 1, tokens - 1).reshape({batch * (tokens - 1), dim}), {}, {}, {}, {}};
    }
    DSTRAIN_CHECK(class_token.wanted() && positions.wanted(),
                  "embed_sequence: a frozen class token or frozen positions in backward");
    const Fp32Sum of_token = class_token.fp32(), of_positions = positions.fp32();
    at::Tensor dx = at::empty({batch * (tokens - 1), dim}, grad.options());
    kernels::cuda::embed_sequence_backward({.grad_out = grad.const_data_ptr(),
                                            .grad_patches = dx.mutable_data_ptr(),
                                            .grad_class_token = of_token.data(),
                                            .grad_positions = of_positions.data(),
                                            .batch = batch,
                                            .tokens = tokens,
                                            .dim = dim,
                                            .dtype = kernel_dtype(grad)},
                                           current_stream());
    of_token.finish();
    of_positions.finish();
    return {dx, {}, {}, {}, {}};
  }
};

/// One row a sample: too little to be worth a kernel of its own.
struct FirstToken : torch::autograd::Function<FirstToken> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, std::int64_t batch) {
    context->saved_data["rows"] = x.size(0);
    return dense(x).view({batch, -1, x.size(1)}).select(1, 0).contiguous();
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const std::int64_t rows = context->saved_data.at("rows").toInt(), batch = grads[0].size(0),
                       dim = grads[0].size(1);
    at::Tensor dx = at::zeros({rows, dim}, grads[0].options());
    dx.view({batch, -1, dim}).select(1, 0).copy_(grads[0]);
    return {dx, {}};
  }
};

}  // namespace

at::Tensor patchify(const at::Tensor& images_BCHW, std::int64_t patch) {
  DSTRAIN_CHECK(images_BCHW.dim() == 4 && patch > 0 && images_BCHW.size(2) % patch == 0 &&
                    images_BCHW.size(3) % patch == 0,
                fmt::format("patchify: images {}, patch {}", shape_of(images_BCHW), patch));
  const at::Tensor images = dense(images_BCHW.detach());
  const std::int64_t batch = images.size(0), channels = images.size(1);
  const std::int64_t down = images.size(2) / patch, across = images.size(3) / patch;
  const std::vector<std::int64_t> shape{batch * down * across, channels * patch * patch};
  if (!images.is_cuda()) {
    return images.view({batch, channels, down, patch, across, patch})
        .permute({0, 2, 4, 1, 3, 5})
        .reshape(shape);
  }
  at::Tensor patches = at::empty(shape, images.options());
  kernels::cuda::patchify({.images = images.const_data_ptr(),
                           .patches = patches.mutable_data_ptr(),
                           .batch = batch,
                           .channels = channels,
                           .height = images.size(2),
                           .width = images.size(3),
                           .patch = patch,
                           .dtype = kernel_dtype(images)},
                          current_stream());
  return patches;
}

at::Tensor embed_sequence(const at::Tensor& patches, std::int64_t batch, Parameter& class_token,
                          Parameter& positions) {
  DSTRAIN_CHECK(
      patches.dim() == 2 && batch > 0 && patches.size(0) % batch == 0 &&
          value_of(class_token, patches).numel() == patches.size(1) &&
          value_of(positions, patches).numel() == (patches.size(0) / batch + 1) * patches.size(1),
      fmt::format("embed_sequence: patches {}, batch {}, class token {}, positions {}",
                  shape_of(patches), batch, shape_of(class_token.value),
                  shape_of(positions.value)));
  return EmbedSequence::apply(patches, anchor_for(patches), batch, &class_token, &positions);
}

at::Tensor first_token(const at::Tensor& x, std::int64_t batch) {
  DSTRAIN_CHECK(x.dim() == 2 && batch > 0 && x.size(0) % batch == 0,
                fmt::format("first_token: x {}, batch {}", shape_of(x), batch));
  return FirstToken::apply(x, batch);
}

}  // namespace dstrain::ops
