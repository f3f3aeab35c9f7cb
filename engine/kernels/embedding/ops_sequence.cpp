#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/upsample_bicubic2d.h>
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

/// [to, from], what upsample_bicubic2d multiplies a column of `from` numbers by.
at::Tensor resize_matrix(const PositionGrid& grid, const at::Tensor& like) {
  const at::Tensor columns =
      at::eye(grid.from, like.options().dtype(at::kFloat)).view({1, grid.from, grid.from, 1});
  return at::upsample_bicubic2d(columns, {grid.to, 1}, /*align_corners=*/false)
      .view({grid.from, grid.to})
      .t();
}

/// A product by `matrix` [N, M] along both sides of a square of rows: x [M * M, D] -> [N * N, D].
/// Unlike ATen's gradient of upsample_bicubic2d, its sums have a fixed order on a GPU.
at::Tensor both_sides(const at::Tensor& matrix, const at::Tensor& x) {
  const std::int64_t n = matrix.size(0), m = matrix.size(1), dim = x.size(1);
  const at::Tensor down = at::mm(matrix, x.reshape({m, m * dim})).view({n, m, dim});
  return at::matmul(matrix, down).reshape({n * n, dim});
}

/// Rows of positions [F + from^2, D] -> [F + to^2, D], in the dtype of `rows`.
at::Tensor resized_positions(const at::Tensor& rows, std::int64_t first, const PositionGrid& grid) {
  const at::Tensor patches = rows.narrow(0, first, grid.from * grid.from).to(at::kFloat);
  const at::Tensor resized = both_sides(resize_matrix(grid, rows), patches);
  return at::cat({rows.narrow(0, 0, first), resized.to(rows.scalar_type())}, 0);
}

/// The gradient of the positions from that of the resized ones, both fp32.
at::Tensor positions_gradient(const at::Tensor& grad, std::int64_t first,
                              const PositionGrid& grid) {
  const at::Tensor patches = grad.narrow(0, first, grid.to * grid.to);
  return at::cat({grad.narrow(0, 0, first), both_sides(resize_matrix(grid, grad).t(), patches)}, 0);
}

/// Tokens that stand before the patches.
std::int64_t first_count(const Parameter* first_tokens, const at::Tensor& rows) {
  return first_tokens == nullptr ? 0 : value_of(*first_tokens, rows).numel() / rows.size(1);
}

struct EmbedSequence : torch::autograd::Function<EmbedSequence> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>&, std::int64_t batch,
                            Parameter* first_tokens, Parameter* positions,
                            const PositionGrid& grid) {
    const at::Tensor patches = dense(input);
    const std::int64_t dim = patches.size(1), first = first_count(first_tokens, patches),
                       tokens = patches.size(0) / batch + first;
    context->saved_data["batch"] = batch;
    context->saved_data["from"] = grid.from;
    context->saved_data["to"] = grid.to;
    keep(context, "first_tokens", first_tokens);
    keep(context, "positions", positions);
    at::Tensor position = value_of(*positions, patches);
    if (grid.resizes()) position = resized_positions(position.view({-1, dim}), first, grid);
    if (!patches.is_cuda()) {
      at::Tensor rows = patches.view({batch, tokens - first, dim});
      if (first > 0) {
        const at::Tensor own = value_of(*first_tokens, patches).view({1, first, dim});
        rows = at::cat({own.expand({batch, first, dim}), rows}, 1);
      }
      return (rows + position.view({1, tokens, dim})).view({batch * tokens, dim});
    }
    at::Tensor out = at::empty({batch * tokens, dim}, patches.options());
    kernels::cuda::embed_sequence(
        {.patches = patches.const_data_ptr(),
         .first_tokens = first > 0 ? value_of(*first_tokens, patches).const_data_ptr() : nullptr,
         .positions = position.const_data_ptr(),
         .out = out.mutable_data_ptr(),
         .batch = batch,
         .tokens = tokens,
         .dim = dim,
         .dtype = kernel_dtype(patches),
         .first = first},
        current_stream());
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const at::Tensor grad = dense(grads[0]);
    const std::int64_t batch = context->saved_data.at("batch").toInt();
    const PositionGrid grid{.from = context->saved_data.at("from").toInt(),
                            .to = context->saved_data.at("to").toInt()};
    Parameter* first_tokens = kept_or_null(context, "first_tokens");
    const std::int64_t tokens = grad.size(0) / batch, dim = grad.size(1),
                       first = first_count(first_tokens, grad);
    const std::vector<std::int64_t> of_patches{batch * (tokens - first), dim};
    const GradientSink positions(kept(context, "positions"), grad);
    if (!grad.is_cuda()) {
      const at::Tensor rows = grad.view({batch, tokens, dim}), sum = rows.sum(0, false, at::kFloat);
      positions.add(grid.resizes() ? positions_gradient(sum, first, grid) : sum);
      if (first > 0) GradientSink(*first_tokens, grad).add(sum.narrow(0, 0, first));
      return {rows.narrow(1, first, tokens - first).reshape(of_patches), {}, {}, {}, {}, {}};
    }
    at::Tensor dx = at::empty(of_patches, grad.options());
    std::optional<Fp32Sum> of_first, of_positions;
    at::Tensor resized;
    if (first > 0) of_first = GradientSink(*first_tokens, grad).fp32();
    if (grid.resizes()) {
      resized = at::zeros({tokens, dim}, grad.options().dtype(at::kFloat));
    } else {
      of_positions = positions.fp32();
    }
    DSTRAIN_CHECK(positions.wanted() && (!of_first || of_first->data() != nullptr),
                  "embed_sequence: frozen tokens or frozen positions in backward");
    kernels::cuda::embed_sequence_backward(
        {.grad_out = grad.const_data_ptr(),
         .grad_patches = dx.mutable_data_ptr(),
         .grad_first_tokens = of_first ? of_first->data() : nullptr,
         .grad_positions = of_positions ? of_positions->data() : resized.mutable_data_ptr<float>(),
         .batch = batch,
         .tokens = tokens,
         .dim = dim,
         .dtype = kernel_dtype(grad),
         .first = first},
        current_stream());
    if (of_first) of_first->finish();
    if (of_positions) of_positions->finish();
    if (resized.defined()) positions.add(positions_gradient(resized, first, grid));
    return {dx, {}, {}, {}, {}, {}};
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

/// ATen's sums are of one pass, too.
struct MeanToken : torch::autograd::Function<MeanToken> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, std::int64_t batch,
                            std::int64_t first, bool row_too) {
    context->saved_data["first"] = first;
    context->saved_data["row_too"] = row_too;
    const at::Tensor rows = dense(x).view({batch, -1, x.size(1)});
    context->saved_data["tokens"] = rows.size(1);
    const at::Tensor mean = rows.narrow(1, first, rows.size(1) - first).mean(1);
    return row_too ? at::cat({rows.select(1, 0), mean}, 1) : mean;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const std::int64_t tokens = context->saved_data.at("tokens").toInt(),
                       first = context->saved_data.at("first").toInt();
    const bool row_too = context->saved_data.at("row_too").toBool();
    const std::int64_t batch = grads[0].size(0), dim = grads[0].size(1) / (row_too ? 2 : 1);
    at::Tensor dx = at::zeros({batch, tokens, dim}, grads[0].options());
    const at::Tensor of_mean = grads[0].narrow(1, row_too ? dim : 0, dim);
    dx.narrow(1, first, tokens - first)
        .copy_((of_mean / static_cast<double>(tokens - first)).unsqueeze(1));
    if (row_too) dx.select(1, 0).add_(grads[0].narrow(1, 0, dim));
    return {dx.view({batch * tokens, dim}), {}, {}, {}};
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

at::Tensor embed_sequence(const at::Tensor& patches, std::int64_t batch, Parameter* first_tokens,
                          Parameter& positions, const PositionGrid& grid) {
  DSTRAIN_CHECK(patches.dim() == 2 && batch > 0 && patches.size(0) % batch == 0,
                fmt::format("embed_sequence: patches {}, batch {}", shape_of(patches), batch));
  const std::int64_t dim = patches.size(1), own = patches.size(0) / batch,
                     first = first_count(first_tokens, patches),
                     places = grid.resizes() ? grid.from * grid.from : own;
  DSTRAIN_CHECK((first_tokens == nullptr || first_tokens->value.numel() == first * dim) &&
                    value_of(positions, patches).numel() == (first + places) * dim &&
                    (!grid.resizes() || own == grid.to * grid.to),
                fmt::format("embed_sequence: patches {}, batch {}, {} first tokens, positions {}",
                            shape_of(patches), batch, first, shape_of(positions.value)));
  return EmbedSequence::apply(patches, anchor_for(patches), batch, first_tokens, &positions, grid);
}

at::Tensor first_token(const at::Tensor& x, std::int64_t batch) {
  DSTRAIN_CHECK(x.dim() == 2 && batch > 0 && x.size(0) % batch == 0,
                fmt::format("first_token: x {}, batch {}", shape_of(x), batch));
  return FirstToken::apply(x, batch);
}

at::Tensor mean_token(const at::Tensor& x, std::int64_t batch, std::int64_t first, bool row_too) {
  DSTRAIN_CHECK(x.dim() == 2 && batch > 0 && x.size(0) % batch == 0 && first >= 0 &&
                    first < x.size(0) / batch,
                fmt::format("mean_token: x {}, batch {}, from {}", shape_of(x), batch, first));
  return MeanToken::apply(x, batch, first, row_too);
}

}  // namespace dstrain::ops
