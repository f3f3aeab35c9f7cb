#include "engine/nn/linear.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/base/error.h"
#include "engine/comm/communicator.h"
#include "engine/kernels/activation/ops_gated_linear.h"
#include "engine/kernels/tensor/ops_tensor.h"
#include "engine/nn/gathered.h"
#include "engine/nn/layer_cost.h"

namespace dstrain {

Linear::Linear(std::vector<LinearPart> parts, const std::vector<std::int64_t>& columns,
               const InitialWeights& init, bool has_bias, const LinearCut& cut)
    : parts_(std::move(parts)), has_bias_(has_bias), cut_(cut) {
  const auto own = [&](std::int64_t size, bool divided) {
    return divided ? even_part(size, cut.split.count, cut.split.index) : Range{0, size};
  };
  std::vector<Piece> weights, biases;
  for (const LinearPart& part : parts_) {
    std::vector<std::int64_t> shape = {part.rows};
    shape.insert(shape.end(), columns.begin(), columns.end());
    const Range width = own(num_elements(columns), cut.columns());
    const bool apart = cut.rows() && !part.joined.empty();
    std::int64_t first = 0;
    for (const std::int64_t size : apart ? part.joined : std::vector{part.rows}) {
      Range rows = own(size, cut.rows());
      rows = {first + rows.begin, first + rows.end};
      weights.emplace_back(part.name + ".weight", shape, rows, width);
      biases.emplace_back(part.name + ".bias", std::vector{part.rows}, rows, Range{0, 1});
      first += size;
    }
    DSTRAIN_CHECK(first == part.rows, part.name + ": joined matrices of other rows");
  }
  weight_.hold(std::move(weights));
  weight_.init = init.kind;
  weight_.init_std = init.std;
  weight_.cut = cut.split.whole() ? Cut::none : Cut::tensor;
  bias_.hold(std::move(biases));
  bias_.cut = cut.rows() ? Cut::tensor : Cut::none;
}

std::vector<ops::LowRankTerm> Linear::terms(const Call& call) {
  std::vector<ops::LowRankTerm> terms;
  for (LowRank& adapter : adapters_) terms.push_back(adapter.term(call));
  return terms;
}

at::Tensor Linear::product(const ops::Measured& x_MK, Parameter* bias, const Call& call) {
  if (adapters_.empty()) return ops::linear(x_MK, weight_, bias);
  return ops::adapted_linear(x_MK, weight_, bias, terms(call));
}

Communicator* Linear::summing(const Call& call) const {
  DSTRAIN_CHECK(call.tensor() != nullptr && call.tensor()->size() == cut_.split.count,
                parts_.at(0).name + ": a cut matrix without the ranks that have its other parts");
  return call.tensor();
}

at::Tensor Linear::with_bias(const at::Tensor& y_mN) {
  return has_bias_ ? ops::add_bias(y_mN, bias_) : y_mN;
}

at::Tensor Linear::forward(const ops::Measured& x_MK, const Call& call) {
  if (!cut_.columns()) return product(x_MK, bias(), call);
  if (!has_adapters()) return with_bias(ops::summed_linear(x_MK, weight_, summing(call)));
  return with_bias(ops::reduce_scatter_rows(product(x_MK, nullptr, call), summing(call)));
}

Features Linear::run(LayerPass& pass, const Features& x) {
  if (pass.costs == nullptr) return {.tensor = forward(x.measured(), pass.call)};
  Features made = x.sized({x.rows(), weight_.shape[0]});
  LayerCost layer = cost(x.rows(), pass.costs->compute_bytes(), /*input_is_kept=*/x.counted);
  if (cut_.columns()) {
    add_reduce_scatter_rows(pass.costs->exchanges(), made.bytes(), pass.costs->compute_bytes(),
                            /*trained=*/true, beside_sum(layer, cut_.split.count));
    made.size.shape[0] /= cut_.split.count;
  }
  const Flops flops = layer.forward_flops;
  const Bytes moved =
                  layer.saved_bytes + made.bytes() + layer.parameters * pass.costs->compute_bytes(),
              gradient = layer.parameters * kFloatBytes;
  pass.costs->add(
      std::move(layer), {{.products = flops, .bytes = moved}},
      {{.products = flops, .bytes = moved}, {.products = flops, .bytes = moved + gradient}});
  return made;
}

at::Tensor Linear::forward_of_gathered(const ops::Measured& x_mK, const Call& call) {
  DSTRAIN_CHECK(!cut_.columns(), parts_.at(0).name + ": gathered rows of cut columns");
  return has_adapters() ? forward(gathered(x_mK, call), call)
                        : ops::linear_of_gathered(x_mK, weight_, bias(), call.tensor());
}

Features Linear::run_of_gathered(LayerPass& pass, const Features& x) {
  if (pass.costs == nullptr) return {.tensor = forward_of_gathered(x.measured(), pass.call)};
  const int ranks = cut_.split.count;
  const LayerCost layer = cost(x.rows() * ranks, pass.costs->compute_bytes());
  return run(pass, gathered(pass, x, cut_.split, beside_gather(layer, ranks)));
}

at::Tensor Linear::forward_gelu(const at::Tensor& x_MK, ops::Gelu kind, const Call& call) {
  DSTRAIN_CHECK(has_bias_ && !cut_.columns(), parts_.at(0).name + ": GELU without a bias");
  if (adapters_.empty()) return ops::linear_gelu(x_MK, weight_, bias_, kind);
  return ops::bias_gelu(product(x_MK, nullptr, call), bias_, kind);
}

at::Tensor Linear::forward_of_gelu(const at::Tensor& z_MK, Parameter& input_bias, ops::Gelu kind,
                                   const Call& call) {
  DSTRAIN_CHECK(has_bias_ && adapters_.empty(), parts_.at(0).name + ": no bias, or adapters");
  if (!cut_.columns())
    return ops::gelu_linear(z_MK, input_bias, weight_, &bias_, kind, call.hidden());
  return with_bias(
      ops::summed_gelu_linear(z_MK, input_bias, weight_, kind, summing(call), call.hidden()));
}

at::Tensor Linear::forward_gated(const ops::Measured& x_mD, Linear& gate_up,
                                 ops::GateActivation gate, const Call& call) {
  DSTRAIN_CHECK(has_bias_ == gate_up.has_bias_ && !gate_up.cut_.columns(),
                parts_.at(0).name + ": a gated product with one bias, or of cut columns");
  if (!has_bias_ && !has_adapters() && !gate_up.has_adapters())
    return ops::gated_linear(x_mD, gate_up.weight_, weight_,
                             cut_.columns() ? summing(call) : nullptr, call.hidden(), gate);
  const at::Tensor gate_and_up = gate_up.forward_of_gathered(x_mD, call);
  const at::Tensor y_MN = has_adapters()
                              ? ops::adapted_swiglu_linear(gate_and_up, weight_, terms(call), gate)
                              : ops::swiglu_linear(gate_and_up, weight_, gate);
  return with_bias(cut_.columns() ? ops::reduce_scatter_rows(y_MN, summing(call)) : y_MN);
}

void Linear::add_parameters(std::vector<Parameter*>& list) {
  list.push_back(&weight_);
  if (has_bias_) list.push_back(&bias_);
  for (LowRank& adapter : adapters_) adapter.add_parameters(list);
}

void Linear::add_adapter(std::size_t part, const std::string& prefix,
                         const LowRankOptions& options) {
  std::int64_t first_output = 0;
  for (std::size_t i = 0; i < part; ++i)
    for (const Piece& piece : pieces_of(i)) first_output += piece.rows.size();
  LowRankOptions scaled = options;
  scaled.scale *= weight_.output_scale;
  adapters_.emplace_back(prefix, pieces_of(part), first_output, scaled);
}

std::vector<Piece> Linear::pieces_of(std::size_t part) const {
  std::vector<Piece> pieces;
  std::ranges::copy_if(weight_.parts, std::back_inserter(pieces), [&](const Piece& piece) {
    return piece.name == parts_.at(part).name + ".weight";
  });
  return pieces;
}

void Linear::scale_output(double scale) {
  DSTRAIN_CHECK(!has_bias_ && adapters_.empty(), parts_.at(0).name + ": a bias is not scaled");
  weight_.output_scale = scale;
}

Flops Linear::flops(std::int64_t rows) const {
  Flops flops = 2.0 * static_cast<double>(rows) * static_cast<double>(weight_.numel());
  for (const LowRank& adapter : adapters_) flops += adapter.flops(rows);
  return flops;
}

LayerCost Linear::cost(std::int64_t rows, int compute_bytes, bool input_is_kept) const {
  LayerCost cost{.name = parts_.front().name,
                 .forward_flops = flops(rows),
                 .saved_bytes = input_is_kept ? adapter_bytes(rows, compute_bytes)
                                              : saved_bytes(rows, compute_bytes)};
  if (weight_.trainable && adapters_.empty() && !weight_.fp8) {
    cost.weight_flops = flops(rows);
    cost.held_bytes = rows * (columns() + weight_.shape[0]) * compute_bytes;
  }
  if (weight_.fp8) {
    // As if the input and the output's gradient were read twice, first for the largest value, which
    // norms leave; codes are written by rows, and by columns for the weight's gradient. Codes of
    // weights are left out: the two are about as long at 16,384 tokens.
    const Bytes width = 2 * compute_bytes + (weight_.trainable ? 2 : 1);
    cost.fp8_flops = 2.0 * static_cast<double>(rows) * static_cast<double>(weight_.numel());
    cost.forward_traffic = rows * columns() * width;
    cost.backward_traffic = rows * weight_.shape[0] * width;
  }
  if (weight_.nf4) {
    // Decoded into memory, from which the product reads it.
    cost.forward_traffic += 2 * weight_.numel() * compute_bytes;
    cost.backward_traffic += 2 * weight_.numel() * compute_bytes;
  }
  if (!adapters_.empty()) {
    // Their sum is written and read again by the large product.
    cost.forward_traffic += 2 * rows * weight_.shape[0] * compute_bytes;
    cost.backward_traffic += 2 * rows * columns() * compute_bytes;
  }
  for (const LowRank& adapter : adapters_) {
    cost.forward_traffic += adapter.dropped_traffic(rows, compute_bytes, false);
    cost.backward_traffic += adapter.dropped_traffic(rows, compute_bytes, true);
  }
  for (std::size_t i = 1; i < parts_.size(); ++i)
    cost.name += ", " + parts_[i].name.substr(parts_[i].name.rfind('.') + 1);
  count(weight_, cost);
  if (has_bias_) count(bias_, cost);
  for (const LowRank& adapter : adapters_) adapter.count_parameters(cost);
  return cost;
}

Bytes Linear::adapter_bytes(std::int64_t rows, int compute_bytes) const {
  Bytes bytes = 0;
  for (const LowRank& adapter : adapters_) bytes += adapter.saved_bytes(rows, compute_bytes);
  return bytes;
}

bool Linear::gated_in_kernels(int compute_bytes) const {
  return has_adapters() && !weight_.trainable && adapters_.front().in_kernels(compute_bytes);
}

Bytes Linear::saved_bytes(std::int64_t rows, int compute_bytes) const {
  const bool keeps_input = weight_.trainable || !adapters_.empty();
  return (keeps_input ? rows * columns() * compute_bytes : 0) + adapter_bytes(rows, compute_bytes);
}

}  // namespace dstrain
