#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/kernels/gradient_sink.h"
#include "engine/kernels/op_context.h"
#include "engine/kernels/op_support.h"
#include "engine/kernels/tensor/ops_tensor.h"
#include "engine/kernels/tensor/rows_beside.h"

namespace dstrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct AllGatherRows : torch::autograd::Function<AllGatherRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, Communicator* ranks) {
    keep_ranks(context, ranks);
    return all_gathered(x, *ranks);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    return {reduce_scattered(grads[0], kept_ranks(context)), {}};
  }
};

struct ReduceScatterRows : torch::autograd::Function<ReduceScatterRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, Communicator* ranks) {
    keep_ranks(context, ranks);
    return reduce_scattered(x, *ranks);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    return {all_gathered(grads[0], kept_ranks(context)), {}};
  }
};

struct TakeOwnRows : torch::autograd::Function<TakeOwnRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const AxisPart& part) {
    const std::int64_t own = x.size(0) / part.count, first = part.index * own;
    context->saved_data["rows"] = x.size(0);
    context->saved_data["first"] = first;
    return x.narrow(0, first, own).clone();
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto& data = context->saved_data;
    at::Tensor dx = at::zeros({data.at("rows").toInt(), grads[0].size(1)}, grads[0].options());
    dx.narrow(0, data.at("first").toInt(), grads[0].size(0)).copy_(grads[0]);
    return {dx, {}};
  }
};

/// Places of `rows` among this rank's `own`, 0 for others', and [n, 1] which are others'.
std::pair<at::Tensor, at::Tensor> own_places(const at::Tensor& rows, std::int64_t own, int rank) {
  const at::Tensor place = rows - rank * own;
  const at::Tensor others = place.lt(0).logical_or(place.ge(own));
  return {place.masked_fill(others, 0), others.unsqueeze(1)};
}

struct CollectRows : torch::autograd::Function<CollectRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& rows,
                            Communicator* ranks) {
    keep_ranks(context, ranks);
    context->save_for_backward({rows});
    context->saved_data["own"] = x.size(0);
    const auto [place, others] = own_places(rows, x.size(0), ranks->rank());
    at::Tensor out = x.index_select(0, place).masked_fill_(others, 0);
    ranks->all_reduce(out, ReduceOp::sum);  // one rank has the row, the others zeros
    return out;
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    Communicator& ranks = kept_ranks(context);
    const std::int64_t own = context->saved_data.at("own").toInt();
    at::Tensor sum = grads[0].contiguous().clone();
    ranks.all_reduce(sum, ReduceOp::sum);
    const auto [place, others] = own_places(context->get_saved_variables()[0], own, ranks.rank());
    at::Tensor dx = at::zeros({own, sum.size(1)}, sum.options());
    dx.index_add_(0, place, sum.masked_fill_(others, 0));
    return {dx, {}, {}};
  }
};

struct AddBias : torch::autograd::Function<AddBias> {
  static at::Tensor forward(AutogradContext* context, at::Tensor x,
                            const std::optional<at::Tensor>&, Parameter* bias) {
    keep(context, "bias", bias);
    x.add_(value_of(*bias, x));
    context->mark_dirty({x});
    return x;
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const at::Tensor dy = dense(grads[0]);
    GradientSink(kept(context, "bias"), dy).rows(dy);
    return {grads[0], {}, {}};
  }
};

void check_rows(const char* name, const at::Tensor& x, int parts) {
  DSTRAIN_CHECK(x.dim() == 2 && x.size(0) % parts == 0,
                fmt::format("{}: x {} on {} ranks", name, shape_of(x), parts));
}

}  // namespace

at::Tensor all_gathered(const at::Tensor& x, Communicator& ranks) {
  at::Tensor all = at::empty({ranks.size() * x.size(0), x.size(1)}, x.options());
  ranks.all_gather(all, dense(x));
  return all;
}

at::Tensor reduce_scattered(const at::Tensor& x, Communicator& ranks,
                            const Communicator::Work& meanwhile) {
  at::Tensor own = at::empty({x.size(0) / ranks.size(), x.size(1)}, x.options());
  ranks.reduce_scatter(own, dense(x), meanwhile);
  return own;
}

at::Tensor all_gather_rows(const at::Tensor& x, Communicator* ranks) {
  check_rows("all_gather_rows", x, 1);
  return others(ranks) == nullptr ? x : AllGatherRows::apply(x, ranks);
}

at::Tensor reduce_scatter_rows(const at::Tensor& x, Communicator* ranks) {
  if (others(ranks) == nullptr) return x;
  check_rows("reduce_scatter_rows", x, ranks->size());
  return ReduceScatterRows::apply(x, ranks);
}

at::Tensor own_rows(const at::Tensor& x, const AxisPart& part) {
  if (part.whole()) return x;
  check_rows("own_rows", x, part.count);
  return TakeOwnRows::apply(x, part);
}

at::Tensor collect_rows(const at::Tensor& x, const at::Tensor& rows, Communicator* ranks) {
  check_rows("collect_rows", x, 1);
  DSTRAIN_CHECK(others(ranks) != nullptr && rows.dim() == 1 && rows.scalar_type() == at::kLong,
                "collect_rows: rows of several ranks by int64 numbers");
  return CollectRows::apply(x, rows, ranks);
}

at::Tensor add_bias(const at::Tensor& x, Parameter& bias) {
  DSTRAIN_CHECK(x.dim() == 2 && x.is_contiguous() && value_of(bias, x).numel() == x.size(1),
                fmt::format("add_bias: x {}, bias {}", shape_of(x), shape_of(bias.value)));
  return AddBias::apply(x, anchor_for(x, bias.trainable), &bias);
}

}  // namespace dstrain::ops
