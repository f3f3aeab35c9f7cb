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
  constexpr std::int64_t kPack = 8;
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

/// du [M, rank of all] to x's gradient and a's gradients by kernels that draw the masks.
at::Tensor gradients_in_kernels(const at::Tensor& du, const at::Tensor& x, const Terms& terms,
                                bool for_input) {
  const std::int64_t rows = du.size(0), columns = terms.front().a->shape.back(),
                     splits = kernels::low_rank_splits(rows, columns);
  at::Tensor dx;
  if (for_input) dx = at::empty({rows, columns}, du.options());
  const bool for_a = trains_a(terms);
  at::Tensor partial;
  if (for_a) partial = scratch(du, {rank_of(terms), splits * columns});
  std::int64_t before = 0;  // ranks
  for (const Launch& launch : launches_of(terms, du)) {
    kernels::cuda::low_rank_gradients(
        {.x = for_a ? x.const_data_ptr() : nullptr,
         .du = du.const_data_ptr(),
         .dx = for_input ? dx.mutable_data_ptr() : nullptr,
         .add = launch.first > 0,
         .partial = for_a ? partial.narrow(0, before, 1).mutable_data_ptr<float>() : nullptr,
         .rows = rows,
         .columns = columns,
         .u_stride = du.size(1),
         .parts = launch.parts,
         .dtype = kernel_dtype(du)},
        current_stream());
    for (int i = 0; for_a && i < launch.parts.count; ++i) {
      const std::int64_t rank = launch.parts.part[i].rank;
      GradientSink(*terms[launch.first + static_cast<std::size_t>(i)].a, du)
          .parts(partial.narrow(0, before, rank).view({splits, rank * columns}));
      before += rank;
    }
  }
  return dx;
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
