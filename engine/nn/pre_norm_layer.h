#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/stable_hash.h"
#include "engine/kernels/activation/ops_drop_path.h"
#include "engine/kernels/activation/ops_layer_scale.h"
#include "engine/nn/attention.h"
#include "engine/nn/block.h"
#include "engine/nn/gated_mlp.h"
#include "engine/nn/layer_cost.h"
#include "engine/nn/moe.h"
#include "engine/nn/parameter_order.h"
#include "engine/nn/row_tiles.h"
#include "engine/nn/tensor_exchanges.h"
#include "engine/program/cost.h"

namespace dstrain {

/// Where a layer stands in its model.
struct LayerPlace {
  std::string name;
  std::int64_t width = 0;
  std::int64_t tokens = 0;       ///< of a sample, on this rank
  bool first = false;            ///< its input is {x}, without a delta
  bool gradients_apart = false;  ///< the block behind it returns the gradients of x and delta apart
  AxisPart tensor = {};        ///< of attention and feed-forward; other rows are those of this rank
  std::int64_t tile_rows = 0;  ///< on which the MLP works at once (memory.tiles); 0: all
  double drop_path = 0;  ///< share of samples that skip each branch; then this rank has all rows
  bool norms_after = false;  ///< norms are of what branches make; then this rank has all heads
  bool parallel = false;     ///< both branches read the same stream
  /// Tensors that what the branches make is multiplied by, column by column, and their first value
  /// (Touvron et al. 2021, arXiv:2103.17239, sec. 3); empty: none.
  std::array<std::string, 2> scales = {};
  double first_scale = 1;

  /// Layers hand on {x + delta}, the sum, for the sake of memory.
  [[nodiscard]] bool joined() const { return tile_rows > 0; }
};

/// Norms of what the branches make, before that is added; without: it is added as it is.
template <class Norm>
struct BranchNorms {
  std::optional<Norm> attention, mlp;
};

/// Pre-norm transformer layer: x + attention(norm(x)), then x + mlp(norm(x)); or with the norms
/// behind the branches: x + norm(attention(x)), then x + norm(mlp(x)); or parallel:
/// x + attention(norm(x)) + mlp(other norm(x)); or with norms on both sides of the branches (Gemma
/// Team 2024, arXiv:2408.00118, sec. 2). Between layers travel
/// {x, delta}: the residual stream and the last branch not yet added to it, so that sum and norm
/// are one pass. Joined, it is their sum, with the same bits: half the bytes, for one pass more.
///
/// Legend: D width, M = B * T rows, of B samples of T tokens, m those of this tensor rank.
template <class Norm, class FeedForward>
class PreNormLayer final : public Block {
 public:
  PreNormLayer(LayerPlace place, Norm before, SelfAttention attention, Norm after, FeedForward mlp,
               BranchNorms<Norm> behind = {})
      : place_(std::move(place)),
        norm_before_(std::move(before)),
        attention_(std::move(attention)),
        norm_after_(std::move(after)),
        mlp_(std::move(mlp)),
        behind_(std::move(behind)) {
    if (place_.scales[0].empty()) return;
    DSTRAIN_CHECK(!place_.norms_after && !place_.parallel && !behind_.attention,
                  place_.name + ": scaled branches that are parallel or normed");
    for (const std::string& scale : place_.scales) {
      Parameter& parameter = scales_.emplace_back();
      parameter.hold({{scale, {place_.width}}});
      parameter.init = Init::constant;
      parameter.init_std = place_.first_scale;
    }
  }

  [[nodiscard]] const std::string& name() const override { return place_.name; }

  [[nodiscard]] std::vector<Parameter*> parameters() override {
    std::vector<Parameter*> list;
    norm_before_.add_parameters(list);
    attention_.add_parameters(list);
    norm_after_.add_parameters(list);
    mlp_.add_parameters(list);
    for (Parameter& scale : scales_) list.push_back(&scale);
    for (std::optional<Norm>* norm : {&behind_.attention, &behind_.mlp})
      if (*norm) (*norm)->add_parameters(list);
    return matrices_first(std::move(list));
  }

  [[nodiscard]] std::vector<Linear*> linears() override {
    std::vector<Linear*> list;
    attention_.add_linears(list);
    mlp_.add_linears(list);
    return list;
  }

  [[nodiscard]] std::optional<KeyValueShape> key_values() const override {
    return attention_.key_values();
  }

  [[nodiscard]] Tensors forward(const Tensors& input, const Batch& batch,
                                const BlockContext& context) override {
    DSTRAIN_CHECK(input.size() == (sums_first() ? 2u : 1u), name() + ": wrong number of inputs");
    // Texts may be shorter than the model's samples.
    const std::int64_t samples = batch.tokens.defined()
                                     ? batch.tokens.size(0)
                                     : input[0].size(0) * place_.tensor.count / place_.tokens;
    const Call call = Call::of(batch, context);
    if (place_.norms_after) return normed_after(input, samples, batch, context, call);
    if (place_.parallel) return side_by_side(input, samples, batch, context, call);
    const at::Tensor before = attention_.maxima_for_input(input[0], call),
                     after = maxima_for_mlp(input[0], call);
    const auto [x_mD, h_mD] = norm_before_.forward(
        input[0], sums_first() ? std::optional<at::Tensor>(input[1]) : std::nullopt, before);
    const at::Tensor attended_mD = normed(
        behind_.attention, attention_.forward({h_mD, before}, samples, batch.sequences, call));
    const auto [y_mD, g_mD] = norm_after_.forward(x_mD, kept(attended_mD, samples, 0, call), after);
    at::Tensor delta_mD = kept(
        normed(behind_.mlp, feed_forward({g_mD, after}, batch, context, call)), samples, 1, call);
    if (place_.joined()) return {delta_mD.add_(y_mD)};
    return {y_mD, delta_mD};
  }

  void rehearse(const BatchShape& shape, const at::TensorOptions& compute,
                at::ScalarType gradients) override {
    if constexpr (kExperts) mlp_.rehearse(shape.micro_batch * place_.tokens, compute, gradients);
  }

  [[nodiscard]] BlockCost cost(const BatchShape& shape) override {
    const std::int64_t rows = shape.micro_batch * place_.tokens,
                       own_rows = rows / place_.tensor.count;
    const Bytes whole = rows * place_.width * shape.compute_bytes;       // one [M, D]
    const Bytes stream = own_rows * place_.width * shape.compute_bytes;  // one [m, D]
    std::vector<LayerCost> in_mlp_layers = mlp_layers(rows, shape.compute_bytes);
    Workspace in_mlp = mlp_.workspace(rows, shape.compute_bytes);
    if constexpr (!kExperts) {
      if (tiled(own_rows)) in_mlp = take_tiles(in_mlp_layers, stream, shape.compute_bytes);
    }
    const Bytes kept_by_mlp = total(in_mlp_layers).saved_bytes;
    const Workspace in_attention =
        attention_.workspace(shape.micro_batch, place_.tokens, shape.compute_bytes);
    BlockCost cost;
    cost.name = name();
    // The first norm keeps its sum, which is the input where nothing is added; the second norm's
    // sum is handed on, so the boundary counts it, unless what is handed on is another sum. What
    // follows a norm keeps the norm's output, or what it gathers of all ranks'.
    // A norm behind a branch keeps what that makes, and branches keep the sums that they take,
    // unless these are handed on.
    // Parallel branches read the sum that is handed on.
    const bool after = place_.norms_after, parallel = place_.parallel;
    std::vector<LayerCost> layers = {
        norm_before_.cost(own_rows, after || (sums_first() && !parallel) ? stream : 0)};
    const auto append = [&layers](std::vector<LayerCost> more) {
      layers.insert(layers.end(), more.begin(), more.end());
    };
    std::vector<LayerCost> in_attention_layers =
        attention_.layers(shape.micro_batch, place_.tokens, shape.compute_bytes,
                          /*input_is_kept=*/after && !sums_first());
    // Cut between ranks, the branches are gathered before they are whole, and summed after that.
    const bool cut = !place_.tensor.whole();
    const auto add_exchanges = [&](const std::vector<LayerCost>& branch) {
      const int ranks = place_.tensor.count;
      add_all_gather_rows(cost.exchanges, whole, shape.compute_bytes,
                          beside_gather(branch.front(), ranks));
      add_reduce_scatter_rows(cost.exchanges, whole, shape.compute_bytes, /*trained=*/true,
                              beside_sum(branch.back(), ranks));
    };
    for (const Exchange& exchange : attention_.exchanges(rows, shape.compute_bytes))
      cost.exchanges.push_back(exchange);
    if (cut) add_exchanges(in_attention_layers);
    if (cut && !kExperts) add_exchanges(in_mlp_layers);
    append(std::move(in_attention_layers));
    if (!scales_.empty()) append({scale_cost(0, stream)});
    const Bytes kept_sum = after || (place_.joined() && !parallel) ? stream : 0;
    // A norm behind a branch keeps what that made.
    const auto append_behind = [&](const std::optional<Norm>& norm) {
      if (norm) append({norm->cost(own_rows, stream)});
    };
    append_behind(behind_.attention);
    append({norm_after_.cost(own_rows, kept_sum)});
    append(std::move(in_mlp_layers));
    if (!scales_.empty()) append({scale_cost(1, stream)});
    append_behind(behind_.mlp);
    cost.take(std::move(layers));
    const LayerCost sum = total(cost.layers);
    cost.weight_flops = sum.weight_flops;
    // One gradient is that of both branches, unless ranks gather it for each.
    cost.held_bytes = sum.held_bytes - (parallel && !cut ? stream : 0);
    cost.boundary.assign(place_.joined() ? 1 : 2, {{own_rows, place_.width}, shape.compute_bytes});
    // The attention branch until the second norm has added it, or what the MLP needs after that.
    const Bytes gathered = cut ? whole : 0, by_mlp = kExperts ? 0 : gathered;
    cost.forward_workspace =
        std::max(std::max(stream, in_attention.forward) + gathered, in_mlp.forward + by_mlp);
    if constexpr (kExperts) mlp_.complete(cost, rows, shape.compute_bytes);
    // Two places are the largest, counted against what autograd has let go by then: the MLP beside
    // the stream's gradient, which where the sum is handed on is that of the output, and the
    // attention beside the gradients of the stream and of its own output, when the MLP and its norm
    // have gone.
    cost.backward_workspace =
        std::max((place_.joined() ? 0 : stream) + in_mlp.backward + by_mlp,
                 2 * stream + in_attention.backward - kept_by_mlp - kept_sum + gathered) +
        (place_.gradients_apart && !place_.joined() ? stream : 0);
    // Kept, it is not made in the first place, and has been let go by the second.
    if constexpr (!kExperts) cost.hidden_workspace = -cost.hidden_bytes;
    if (place_.drop_path > 0) {
      cost.forward_workspace += stream;
      cost.backward_workspace += stream;
    }
    if (after || parallel || behind_.attention || !scales_.empty()) {
      // A branch's output beside its norm's or the scaled one, or one branch's beside the other.
      cost.forward_workspace += stream;
      cost.backward_workspace += stream;
    }
    return cost;
  }

 private:
  /// forward() with the norms behind the branches.
  [[nodiscard]] Tensors normed_after(const Tensors& input, std::int64_t samples, const Batch& batch,
                                     const BlockContext& context, const Call& call) {
    const at::Tensor x_mD = sums_first() ? input[0] + input[1] : input[0];
    const at::Tensor attended_mD = attention_.forward({x_mD}, samples, batch.sequences, call);
    const at::Tensor y_mD = x_mD + norm_before_.forward(attended_mD, std::nullopt).second;
    at::Tensor delta_mD =
        norm_after_.forward(feed_forward({y_mD}, batch, context, call), std::nullopt).second;
    if (place_.joined()) return {delta_mD.add_(y_mD)};
    return {y_mD, delta_mD};
  }

  /// forward() of parallel branches.
  [[nodiscard]] Tensors side_by_side(const Tensors& input, std::int64_t samples, const Batch& batch,
                                     const BlockContext& context, const Call& call) {
    const at::Tensor before = attention_.maxima_for_input(input[0], call),
                     after = maxima_for_mlp(input[0], call);
    const auto [x_mD, h_mD] = norm_before_.forward(
        input[0], sums_first() ? std::optional<at::Tensor>(input[1]) : std::nullopt, before);
    const at::Tensor g_mD = norm_after_.forward(x_mD, std::nullopt, after).second,
                     attended_mD =
                         attention_.forward({h_mD, before}, samples, batch.sequences, call);
    at::Tensor delta_mD = feed_forward({g_mD, after}, batch, context, call).add_(attended_mD);
    if (place_.joined()) return {delta_mD.add_(x_mD)};
    return {x_mD, delta_mD};
  }

  [[nodiscard]] std::vector<LayerCost> mlp_layers(std::int64_t rows, int compute_bytes) const {
    if constexpr (std::is_same_v<FeedForward, GatedMlp>)
      return mlp_.layers(rows, compute_bytes,
                         /*input_is_kept=*/place_.norms_after && !place_.joined());
    else
      return mlp_.layers(rows, compute_bytes);
  }

  [[nodiscard]] static at::Tensor normed(std::optional<Norm>& norm, const at::Tensor& branch_mD) {
    return norm ? norm->forward(branch_mD, std::nullopt).second : branch_mD;
  }

  /// These work on this rank's own rows, and exchange others.
  static constexpr bool kExperts = std::is_same_v<FeedForward, Moe>;

  /// It keeps what it scales.
  [[nodiscard]] LayerCost scale_cost(std::size_t branch, Bytes stream) const {
    const Parameter& scale = scales_.at(branch);
    LayerCost cost{.name = place_.scales.at(branch), .saved_bytes = scale.trainable ? stream : 0};
    count(scale, cost);
    return cost;
  }

  /// A branch, scaled, which some samples skip while training.
  [[nodiscard]] at::Tensor kept(const at::Tensor& made_mD, std::int64_t samples, int branch,
                                const Call& call) {
    const at::Tensor branch_mD =
        scales_.empty() ? made_mD
                        : ops::scale_columns(made_mD, scales_.at(static_cast<std::size_t>(branch)));
    if (place_.drop_path == 0 || !call.trains() || !call.dropout_seed.defined()) return branch_mD;
    return ops::drop_path(
        branch_mD, samples,
        {.share = place_.drop_path,
         .seed = call.dropout_seed,
         .place = stable_hash(place_.name + ".drop_path." + std::to_string(branch))});
  }

  /// Experts work on samples, and among ranks, too.
  [[nodiscard]] at::Tensor feed_forward(const ops::Measured& g_mD, const Batch& batch,
                                        const BlockContext& context, const Call& call) {
    if constexpr (kExperts) {
      return mlp_.forward(g_mD.rows, batch, context);
    } else {
      if (!tiled(g_mD.rows.size(0))) return mlp_.forward(g_mD, call);
      RowTiles tiles{.rows = place_.tile_rows,
                     .work = [this, call](const at::Tensor& rows, std::int64_t begin) {
                       return mlp_.forward({rows}, of_tile(call, rows, begin));
                     }};
      mlp_.add_parameters(tiles.parameters);
      // What is computed again is wanted for the backward alone, unless a norm or a scale behind
      // reads it.
      const bool is_read = place_.norms_after || behind_.mlp || !scales_.empty();
      return in_tiles(g_mD.rows, std::move(tiles), call.mode == Mode::recompute && !is_read);
    }
  }

  /// The input of experts is read by the router, and spread.
  [[nodiscard]] at::Tensor maxima_for_mlp(const at::Tensor& x_mD, const Call& call) {
    if constexpr (kExperts) {
      return {};
    } else {
      return mlp_.maxima_for_input(x_mD, call);
    }
  }

  /// The call of one tile. Dropout goes by the places of rows.
  [[nodiscard]] static Call of_tile(Call call, const at::Tensor& rows_rD, std::int64_t begin) {
    call.keep_hidden = false;  // it is made again all the same
    const std::int64_t rows = rows_rD.size(0);
    if (call.own.rows.defined()) {
      call.own.rows = call.own.rows.narrow(0, begin, rows);
    } else if (call.trains() && call.dropout_seed.defined()) {
      call.own.rows = at::arange(begin, begin + rows, rows_rD.options().dtype(at::kInt));
    }
    return call;
  }

  /// Makes the MLP's layers those of tiles, which keep the input alone, of `stream` bytes; what
  /// they hold at once beside that and the output.
  [[nodiscard]] Workspace take_tiles(std::vector<LayerCost>& layers, Bytes stream,
                                     int compute_bytes) const {
    const Bytes of_tile = total(mlp_.layers(place_.tile_rows, compute_bytes)).saved_bytes,
                rows = place_.tile_rows * place_.width * compute_bytes;
    const Workspace inside = mlp_.workspace(place_.tile_rows, compute_bytes);
    for (LayerCost& layer : layers) {
      layer.made_again += std::exchange(layer.saved_bytes, 0);
      layer.again_flops = layer.forward_flops;
      layer.hidden_bytes = 0;
      put_nothing_off(layer);
    }
    layers.front().saved_bytes = stream;
    layers.front().made_again = std::max<Bytes>(layers.front().made_again - stream, 0);
    // Backward, the gradient of all rows, and of a tile also its output, its gradient and the
    // input's.
    return {.forward = of_tile + inside.forward + rows,
            .backward = stream + of_tile + inside.backward + 2 * rows};
  }
  /// Its input is {x, delta}.
  [[nodiscard]] bool sums_first() const { return !place_.first && !place_.joined(); }
  /// The MLP works on so many rows in tiles.
  [[nodiscard]] bool tiled(std::int64_t rows) const {
    return place_.tile_rows > 0 && place_.tile_rows < rows;
  }

  LayerPlace place_;
  Norm norm_before_;
  SelfAttention attention_;
  Norm norm_after_;
  FeedForward mlp_;
  std::vector<Parameter> scales_;  ///< of both branches, or none
  BranchNorms<Norm> behind_;
};

}  // namespace dstrain
