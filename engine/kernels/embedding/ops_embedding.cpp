#include <ATen/TensorOperators.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <fmt/format.h>

#include <limits>

#include "engine/base/error.h"
#include "engine/kernels/embedding/kernels.h"
#include "engine/kernels/gradient_sink.h"
#include "engine/kernels/op_context.h"
#include "engine/kernels/op_support.h"
#include "engine/kernels/ops.h"
#include "engine/kernels/tensor/ops_tensor.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor embedding_forward_cpu(const at::Tensor& tokens, const at::Tensor& table) {
  if (tokens.numel() > 0) {
    const auto [low, high] = at::aminmax(tokens);
    const std::int64_t min = low.item<std::int64_t>(), max = high.item<std::int64_t>();
    DSTRAIN_CHECK(
        min >= 0 && max < table.size(0),
        fmt::format("embed_tokens: tokens {} to {}, table {}", min, max, shape_of(table)));
  }
  return at::index_select(table, 0, tokens);
}

at::Tensor embedding_forward_cuda(const at::Tensor& tokens, const at::Tensor& table) {
  at::Tensor out = at::empty({tokens.numel(), table.size(1)}, table.options());
  kernels::cuda::embed_tokens({.tokens = tokens.const_data_ptr<std::int64_t>(),
                               .table = table.const_data_ptr(),
                               .out = out.mutable_data_ptr(),
                               .rows = tokens.numel(),
                               .vocab = table.size(0),
                               .dim = table.size(1),
                               .dtype = kernel_dtype(table)},
                              current_stream());
  return out;
}

/// On the CPU, index_add_ goes through the rows in order. Sums in fp32 are rounded once.
void embedding_backward_cpu(const at::Tensor& tokens, const at::Tensor& dy,
                            const at::Tensor& gradient) {
  const at::Tensor sum = gradient.to(at::kFloat).view({-1, dy.size(1)});
  sum.index_add_(0, tokens, dy.to(at::kFloat));
  if (gradient.scalar_type() != at::kFloat) gradient.view(sum.sizes()).copy_(sum);
}

void embedding_backward_cuda(const at::Tensor& tokens, const at::Tensor& dy,
                             const at::Tensor& gradient) {
  const std::int64_t rows = tokens.numel(), dim = dy.size(1), vocab = gradient.numel() / dim;
  const at::Tensor scratch =
      at::empty({kernels::embed_tokens_scratch(rows, vocab, dim)}, dy.options().dtype(at::kByte));
  kernels::cuda::embed_tokens_backward({.tokens = tokens.const_data_ptr<std::int64_t>(),
                                        .grad_out = dy.const_data_ptr(),
                                        .grad_table = gradient.mutable_data_ptr(),
                                        .scratch = scratch.mutable_data_ptr(),
                                        .rows = rows,
                                        .vocab = vocab,
                                        .dim = dim,
                                        .dtype = kernel_dtype(dy),
                                        .table = kernel_dtype(gradient)},
                                       current_stream());
}

struct EmbedTokens : torch::autograd::Function<EmbedTokens> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tokens,
                            const std::optional<at::Tensor>&, Parameter* table) {
    context->save_for_backward({tokens});
    keep(context, "table", table);
    return tokens.is_cuda() ? embedding_forward_cuda(tokens, table->value)
                            : embedding_forward_cpu(tokens, table->value);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const at::Tensor tokens = context->get_saved_variables()[0], dy = dense(grads[0]);
    const at::Tensor gradient = GradientSink(kept(context, "table"), dy).any_format();
    if (gradient.defined() && tokens.numel() > 0)
      (dy.is_cuda() ? embedding_backward_cuda : embedding_backward_cpu)(tokens, dy, gradient);
    return {{}, {}, {}};
  }
};

/// The rows that this rank holds, numbered from its first one; zeros for tokens of others.
struct EmbedOwnTokens : torch::autograd::Function<EmbedOwnTokens> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tokens,
                            const std::optional<at::Tensor>&, Parameter* table) {
    context->save_for_backward({tokens});
    keep(context, "table", table);
    const Piece& part = table->parts.front();
    const at::Tensor own = tokens - part.rows.begin;
    const at::Tensor others = own.lt(0).logical_or(own.ge(part.rows.size()));
    const at::Tensor place = own.masked_fill(others, 0);
    at::Tensor out = tokens.is_cuda() ? embedding_forward_cuda(place, table->value)
                                      : embedding_forward_cpu(place, table->value);
    out.masked_fill_(others.unsqueeze(1), 0);
    const at::Tensor unknown = tokens.lt(0).logical_or(tokens.ge(part.shape.front()));
    return out.masked_fill_(unknown.unsqueeze(1), std::numeric_limits<float>::quiet_NaN());
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const at::Tensor dy = dense(grads[0]);
    Parameter& table = kept(context, "table");
    const Range rows = table.parts.front().rows;
    const at::Tensor own = context->get_saved_variables()[0] - rows.begin;
    const at::Tensor gradient = GradientSink(table, dy).any_format();
    if (!gradient.defined()) return {{}, {}, {}};
    if (dy.is_cuda()) {  // leaves out what is not in the table
      embedding_backward_cuda(own, dy, gradient);
    } else {
      const at::Tensor held = own.ge(0).logical_and(own.lt(rows.size())).nonzero().flatten();
      embedding_backward_cpu(own.index_select(0, held), dy.index_select(0, held), gradient);
    }
    return {{}, {}, {}};
  }
};

/// Throws unless the tokens lie where the table does.
void check_tokens(const char* name, const at::Tensor& tokens, const Parameter& table) {
  DSTRAIN_CHECK(table.value.defined() && value_of(table, table.value).dim() == 2 &&
                    tokens.scalar_type() == at::kLong && tokens.device() == table.value.device(),
                fmt::format("{}: tokens {} not int64 on the device of the table {}", name,
                            shape_of(tokens), shape_of(table.value)));
}

}  // namespace

at::Tensor embed_own_tokens(const at::Tensor& tokens, Parameter& table) {
  check_tokens("embed_own_tokens", tokens, table);
  DSTRAIN_CHECK(table.parts.size() == 1, "embed_own_tokens: a table of several tensors");
  return EmbedOwnTokens::apply(dense(tokens).flatten(), anchor_for(table.value, table.trainable),
                               &table);
}

at::Tensor embed_tokens(const at::Tensor& tokens, Parameter& table) {
  check_tokens("embed_tokens", tokens, table);
  return EmbedTokens::apply(dense(tokens).flatten(), anchor_for(table.value, table.trainable),
                            &table);
}

}  // namespace dstrain::ops
