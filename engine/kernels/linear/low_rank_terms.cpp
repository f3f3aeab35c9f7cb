#include "engine/kernels/linear/low_rank_terms.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "engine/base/units.h"
#include "engine/kernels/activation/ops_dropout.h"
#include "engine/kernels/gpu.h"
#include "engine/kernels/gradient_sink.h"
#include "engine/kernels/linear/gemm.h"
#include "engine/kernels/linear/low_rank.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {
namespace {

using kernels::LowRankParts;

constexpr std::int64_t kPack = 8;  // elements of 16 bits that kernels move at once

bool masked(const Terms& terms) {
  return std::ranges::any_of(terms, [](const LowRankTerm& term) { return term.mask.share > 0; });
}

bool trains_a(const Terms& terms) {
  return std::ranges::any_of(terms, [](const LowRankTerm& term) { return term.a->trainable; });
}

/// a of all terms, [rank of all, K].
at::Tensor joined(const Terms& terms, const at::Tensor& x) {
  if (terms.size() == 1) return value_of(*terms.front().a, x);
  std::vector<at::Tensor> all;
  for (const LowRankTerm& term : terms) all.push_back(value_of(*term.a, x));
  return at::cat(all, 0);
}

/// The kernels take these terms; `rows` are as x is.
bool in_kernels(const Terms& terms, const at::Tensor& rows, std::int64_t columns) {
  if (!rows.is_cuda() || !kernels::cuda::multiplies(kernel_dtype(rows)) || columns % kPack != 0)
    return false;
  return std::ranges::all_of(terms, [&](const LowRankTerm& term) {
    return kernels::fits_low_rank(term.a->shape.front()) &&
           term.mask.share <= kernels::kMaxLowRankShare && term.mask.whole_columns % kPack == 0 &&
           term.mask.first_column % kPack == 0 && at_16_bytes(value_of(*term.a, rows));
  });
}

/// Terms in groups that one launch takes, with the first term of each.
struct Launch {
  std::size_t first;
  LowRankParts parts = {};
};
std::vector<Launch> launches_of(const Terms& terms, const at::Tensor& rows) {
  std::vector<Launch> launches;
  std::int64_t column = 0;
  for (std::size_t t = 0; t < terms.size(); ++t) {
    const LowRankTerm& term = terms[t];
    const auto rank = static_cast<int>(term.a->shape.front());
    if (launches.empty() || launches.back().parts.count == kernels::kMaxLowRankParts ||
        kernels::kLowRankTile * launches.back().parts.tiles(kernels::kLowRankTile) +
                round_up(rank, kernels::kLowRankTile) >
            kernels::kMaxLowRank)
      launches.push_back({.first = t});
    LowRankParts& parts = launches.back().parts;
    const DropMask& mask = term.mask;
    const bool drops = mask.share > 0;
    parts.part[parts.count++] = {
        .a = value_of(*term.a, rows).const_data_ptr(),
        .rank = rank,
        .column = static_cast<int>(column),
        .share = static_cast<float>(mask.share),
        .scale_of_a = static_cast<float>(term.a->output_scale),
        .seed = drops ? mask.seed.const_data_ptr<std::int64_t>() : nullptr,
        .place = mask.place,
        .rows = drops && mask.rows.defined() ? mask.rows.const_data_ptr<std::int32_t>() : nullptr,
        .whole_columns = mask.whole_columns,
        .first_column = mask.first_column};
    column += rank;
  }
  return launches;
}

/// Room for the sums of the gradients of all a.
class SumsOfA {
 public:
  SumsOfA(const at::Tensor& du, const Terms& terms)
      : terms_(terms),
        columns_(terms.front().a->shape.back()),
        splits_(kernels::low_rank_splits(du.size(0), columns_)) {
    if (trains_a(terms)) partial_ = scratch(du, {rank_of(terms), splits_ * columns_});
  }
  [[nodiscard]] bool wanted() const { return partial_.defined(); }
  /// Where the next launch puts them; null: not wanted.
  [[nodiscard]] float* next() const {
    return wanted() ? partial_.narrow(0, before_, 1).mutable_data_ptr<float>() : nullptr;
  }
  /// Adds what the launch left.
  void add(const Launch& launch) {
    for (int i = 0; wanted() && i < launch.parts.count; ++i) {
      const std::int64_t rank = launch.parts.part[i].rank;
      GradientSink(*terms_[launch.first + static_cast<std::size_t>(i)].a, partial_)
          .parts(partial_.narrow(0, before_, rank).view({splits_, rank * columns_}));
      before_ += rank;
    }
  }

 private:
  const Terms& terms_;
  std::int64_t columns_, splits_, before_ = 0;  ///< the last in ranks
  at::Tensor partial_;
};

/// du [M, rank of all] to x's gradient and a's gradients by kernels that draw the masks.
at::Tensor gradients_in_kernels(const at::Tensor& du, const at::Tensor& x, const Terms& terms,
                                bool for_input) {
  SumsOfA sums(du, terms);
  at::Tensor dx;
  if (for_input) dx = at::empty({du.size(0), terms.front().a->shape.back()}, du.options());
  for (const Launch& launch : launches_of(terms, du)) {
    kernels::cuda::low_rank_gradients({.x = sums.wanted() ? x.const_data_ptr() : nullptr,
                                       .du = du.const_data_ptr(),
                                       .dx = for_input ? dx.mutable_data_ptr() : nullptr,
                                       .add = launch.first > 0,
                                       .partial = sums.next(),
                                       .rows = du.size(0),
                                       .columns = terms.front().a->shape.back(),
                                       .u_stride = du.size(1),
                                       .parts = launch.parts,
                                       .dtype = kernel_dtype(du)},
                                      current_stream());
    sums.add(launch);
  }
  return dx;
}

/// Where one read of dy for both gradients is faster than a product for each.
bool outputs_in_kernel(const LowRankTerm& term, const at::Tensor& dy, const at::Tensor& u) {
  constexpr std::int64_t kManyColumns = 4096;
  const std::int64_t columns = term.b->shape.front(), rank = term.b->shape.back();
  return dy.is_cuda() && kernels::cuda::multiplies(kernel_dtype(dy)) && term.b->trainable &&
         columns >= kManyColumns && columns % kPack == 0 && term.column % kPack == 0 &&
         dy.stride(0) % kPack == 0 && at_16_bytes(dy) && u.stride(0) % kPack == 0 &&
         at_16_bytes(u) && rank % kPack == 0 && rank <= kernels::kMaxOutputRank &&
         kernels::cuda::low_rank_outputs_fit();
}

}  // namespace

std::int64_t rank_of(const Terms& terms) {
  std::int64_t rank = 0;
  for (const LowRankTerm& term : terms) rank += term.a->shape.front();
  return rank;
}

std::vector<at::Tensor> by_term(const at::Tensor& all, const Terms& terms) {
  std::vector<at::Tensor> parts;
  std::int64_t first = 0;
  for (const LowRankTerm& term : terms) {
    const std::int64_t rank = term.a->shape.front();
    parts.push_back(all.narrow(1, first, rank));
    first += rank;
  }
  return parts;
}

at::Tensor narrow_rows(const at::Tensor& x, const Terms& terms) {
  const at::Tensor u = at::empty({x.size(0), rank_of(terms)}, x.options());
  if (!masked(terms)) {
    multiply(x, joined(terms, x).t(), u);
    return u;
  }
  if (in_kernels(terms, x, x.size(1)) && at_16_bytes(x)) {
    for (const Launch& launch : launches_of(terms, x))
      kernels::cuda::low_rank_rows({.x = x.const_data_ptr(),
                                    .u = u.mutable_data_ptr(),
                                    .rows = x.size(0),
                                    .columns = x.size(1),
                                    .u_stride = u.size(1),
                                    .parts = launch.parts,
                                    .dtype = kernel_dtype(x)},
                                   current_stream());
    return u;
  }
  const std::vector<at::Tensor> parts = by_term(u, terms);
  for (std::size_t t = 0; t < terms.size(); ++t)
    multiply(drop(x, terms[t].mask), value_of(*terms[t].a, x).t(), parts[t]);
  return u;
}

bool gated_in_kernels(const at::Tensor& gate_up, const Terms& terms) {
  return terms.size() == 1 && at_16_bytes(gate_up) &&
         in_kernels(terms, gate_up, gate_up.size(1) / 2);
}

at::Tensor narrow_gradient(const at::Tensor& dy, const at::Tensor& u, const Terms& terms,
                           bool wanted) {
  const at::Tensor du = at::empty({dy.size(0), rank_of(terms)}, dy.options());
  const std::vector<at::Tensor> du_parts = by_term(du, terms);
  std::vector<at::Tensor> u_parts(terms.size());
  if (u.defined()) u_parts = by_term(u, terms);
  for (std::size_t t = 0; t < terms.size(); ++t) {
    const LowRankTerm& term = terms[t];
    const at::Tensor &own_u = u_parts[t], &up = value_of(*term.b, dy);
    const std::int64_t columns = up.size(0), rank = up.size(1);
    const at::Tensor own = dy.narrow(1, term.column, columns);
    if (wanted && outputs_in_kernel(term, dy, own_u)) {
      const std::int64_t splits = kernels::low_rank_output_splits(dy.size(0), columns);
      const at::Tensor sums = scratch(dy, {splits, columns * rank}),
                       strips = scratch(dy, {kernels::low_rank_strips(columns) * dy.size(0), rank});
      kernels::cuda::low_rank_outputs(
          {.dy = own.const_data_ptr(),
           .u = own_u.const_data_ptr(),
           .b = up.const_data_ptr(),
           .partial_u = strips.mutable_data_ptr<float>(),
           .partial_b = sums.mutable_data_ptr<float>(),
           .du = du_parts[t].mutable_data_ptr(),
           .scale = static_cast<float>(term.scale),
           .scale_of_b = static_cast<float>(term.scale * term.b->output_scale),
           .rows = dy.size(0),
           .columns = columns,
           .dy_stride = dy.stride(0),
           .u_stride = u.size(1),
           .rank = static_cast<int>(rank),
           .dtype = kernel_dtype(dy)},
          current_stream());
      GradientSink(*term.b, dy).parts(sums);
      continue;
    }
    if (term.b->trainable) GradientSink(*term.b, dy).product(own.t(), own_u, {.alpha = term.scale});
    if (wanted) multiply(own, up, du_parts[t], {.alpha = term.scale});
  }
  return du;
}

at::Tensor gated_gradient(const at::Tensor& du, const at::Tensor& dh, const at::Tensor& gate_up,
                          GateActivation gate, const Terms& terms) {
  SumsOfA sums(du, terms);
  const at::Tensor grad = at::empty_like(gate_up);
  const Launch launch = launches_of(terms, du).front();
  kernels::cuda::low_rank_gate({.gate_up = gate_up.const_data_ptr(),
                                .grad_h = dh.const_data_ptr(),
                                .du = du.const_data_ptr(),
                                .grad_gate_up = grad.mutable_data_ptr(),
                                .partial = sums.next(),
                                .rows = du.size(0),
                                .columns = dh.size(1),
                                .u_stride = du.size(1),
                                .parts = launch.parts,
                                .dtype = kernel_dtype(du),
                                .gate = gate},
                               current_stream());
  sums.add(launch);
  return grad;
}

at::Tensor wide_gradient(const at::Tensor& du, const at::Tensor& x, const Terms& terms,
                         bool for_input) {
  if (!for_input && !trains_a(terms)) return {};
  const std::int64_t columns = terms.front().a->shape.back();
  const std::vector<at::Tensor> parts = by_term(du, terms);
  const bool drops = masked(terms);
  if (drops && in_kernels(terms, du, columns) && (!x.defined() || at_16_bytes(x)))
    return gradients_in_kernels(du, x, terms, for_input);
  for (std::size_t t = 0; t < terms.size(); ++t) {
    if (terms[t].a->trainable)
      GradientSink(*terms[t].a, du).product(parts[t].t(), drop(x, terms[t].mask));
  }
  if (!for_input) return {};
  at::Tensor dx = at::empty({du.size(0), columns}, du.options());
  if (!drops) {
    multiply(du, joined(terms, du), dx);
    return dx;
  }
  for (std::size_t t = 0; t < terms.size(); ++t) {
    const at::Tensor own = t == 0 ? dx : at::empty_like(dx);
    multiply(parts[t], value_of(*terms[t].a, du), own);
    const at::Tensor dropped = drop(own, terms[t].mask);
    if (t == 0)
      dx = dropped;
    else
      dx.add_(dropped);
  }
  return dx;
}

}  // namespace dstrain::ops
