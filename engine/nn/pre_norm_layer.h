#pragma once

#include <ATen/TensorOperators.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/kernels/activation/ops_drop_path.h"
#include "engine/kernels/activation/ops_layer_scale.h"
#include "engine/nn/attention.h"
#include "engine/nn/gated_mlp.h"
#include "engine/nn/layer_cost.h"
#include "engine/nn/layered_block.h"
#include "engine/nn/moe.h"
#include "engine/nn/parameter_order.h"
#include "engine/nn/row_tiles.h"
#include "engine/nn/token_pool.h"
#include "engine/nn/workspace.h"
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
class PreNormLayer final : public LayeredBlock {
 public:
  PreNormLayer(LayerPlace place, Norm before, SelfAttention attention, Norm after, FeedForward mlp,
               BranchNorms<Norm> behind = {})
      : LayeredBlock(Works::in_layers),
        place_(std::move(place)),
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

  [[nodiscard]] Tensors input_of(const Tensors& input, const Batch&) const override {
    DSTRAIN_CHECK(input.size() == (sums_first() ? 2u : 1u),
                  place_.name + ": wrong number of inputs");
    return input;
  }
  [[nodiscard]] std::vector<BoundaryTensor> input_sizes(const BatchShape& shape) const override {
    const std::int64_t rows = shape.micro_batch * place_.tokens / place_.tensor.count;
    return std::vector<BoundaryTensor>(sums_first() ? 2 : 1,
                                       {{rows, place_.width}, shape.compute_bytes});
  }

  [[nodiscard]] std::vector<Features> run(LayerPass& pass,
                                          const std::vector<Features>& input) override {
    const Features& in = input.front();
    if (pass.costs != nullptr) hold_beside(*pass.costs, in.bytes());
    // Texts may be shorter than the model's samples.
    const std::int64_t rows = pass.costs == nullptr ? in.tensor.size(0) : in.rows(),
                       samples = pass.batch != nullptr && pass.batch->tokens.defined()
                                     ? pass.batch->tokens.size(0)
                                     : rows * place_.tensor.count / place_.tokens;
    if (place_.norms_after) return run_normed_after(pass, input, samples);
    const at::Tensor before = attention_.maxima_for_input(pass, in),
                     after = mlp_.maxima_for_input(pass, in);
    if (place_.parallel) return run_side_by_side(pass, input, samples, before, after);
    const auto [x, h] = norm_before_.run_sum(pass, input, /*hands_on=*/false, before);
    const Features attended = normed(pass, behind_.attention, attention_.run(pass, h, samples));
    const auto [y, g] = norm_after_.run_sum(pass, {x, kept(pass, attended, samples, 0)},
                                            /*hands_on=*/!place_.joined(), after);
    if (place_.joined()) let_go(pass, y);
    return handed_on(pass, y,
                     kept(pass, normed(pass, behind_.mlp, feed_forward(pass, g)), samples, 1));
  }

  void rehearse(const BatchShape& shape, const at::TensorOptions& compute,
                at::ScalarType gradients) override {
    if constexpr (kExperts) mlp_.rehearse(shape.micro_batch * place_.tokens, compute, gradients);
  }

 private:
  /// run() with the norms behind the branches.
  [[nodiscard]] std::vector<Features> run_normed_after(LayerPass& pass,
                                                       const std::vector<Features>& input,
                                                       std::int64_t samples) {
    const Features x = sum_of(pass, input);
    Features y =
        sum_of(pass, {x, norm_before_.run_sum(pass, {attention_.run(pass, x, samples)}).normed});
    y.counted = !place_.joined();
    let_go(pass, y);  // it takes as much as what the second norm keeps
    return handed_on(pass, y, norm_after_.run_sum(pass, {feed_forward(pass, y)}).normed);
  }

  /// run() of parallel branches.
  [[nodiscard]] std::vector<Features> run_side_by_side(LayerPass& pass,
                                                       const std::vector<Features>& input,
                                                       std::int64_t samples,
                                                       const at::Tensor& before,
                                                       const at::Tensor& after) {
    const auto [x, h] = norm_before_.run_sum(pass, input, /*hands_on=*/true, before);
    const Features g = norm_after_.run_sum(pass, {x}, /*hands_on=*/true, after).normed,
                   attended = attention_.run(pass, h, samples);
    const bool held = holds(pass);
    const Features delta = feed_forward(pass, g);
    if (pass.costs == nullptr) delta.tensor.add_(attended.tensor);
    // One gradient is that of both branches, unless ranks gather it for each.
    if (held && holds(pass) && place_.tensor.whole())
      pass.costs->add_to_last({.name = {}, .held_bytes = -x.bytes()});
    return handed_on(pass, x, delta);
  }

  [[nodiscard]] std::vector<Features> handed_on(const LayerPass& pass, const Features& sum,
                                                const Features& delta) const {
    if (!place_.joined()) return {sum, delta};
    if (pass.costs == nullptr) delta.tensor.add_(sum.tensor);
    return {delta};
  }

  [[nodiscard]] static Features normed(LayerPass& pass, std::optional<Norm>& norm,
                                       const Features& branch) {
    return norm ? norm->run_sum(pass, {branch}).normed : branch;
  }

  /// The last layer keeps the gradient of its output.
  [[nodiscard]] static bool holds(const LayerPass& pass) {
    return pass.costs != nullptr && pass.costs->layers().back().held_bytes > 0;
  }

  /// Backward of the attention finds `kept` gone.
  static void let_go(LayerPass& pass, const Features& kept) {
    if (pass.costs != nullptr) pass.costs->let_go(kept.bytes());
  }

  /// What stands beside the branches, of `stream` bytes each.
  void hold_beside(LayerCosts& costs, Bytes stream) const {
    if (place_.gradients_apart && !place_.joined()) costs.hold_also(0, stream);
    if (place_.drop_path > 0) costs.hold_also(stream, stream);
    // A branch's output beside its norm's or the scaled one, or one branch's beside the other.
    if (place_.norms_after || place_.parallel || behind_.attention || !scales_.empty())
      costs.hold_also(stream, stream);
  }

  /// Their products differ in size from call to call.
  static constexpr bool kExperts = std::is_same_v<FeedForward, Moe>;

  /// A branch, scaled, which some samples skip while training.
  [[nodiscard]] Features kept(LayerPass& pass, const Features& made, std::int64_t samples,
                              int branch) {
    const Features scaled = scales_.empty() ? made : scale(pass, made, branch);
    if (place_.drop_path == 0) return scaled;  // before a name is made for it
    const ops::DropMask mask =
        pass.drop(place_.drop_path, place_.name + ".drop_path." + std::to_string(branch));
    if (mask.share == 0) return scaled;
    return {.tensor = ops::drop_path(scaled.tensor, samples, mask)};
  }

  /// It keeps what it scales.
  [[nodiscard]] Features scale(LayerPass& pass, const Features& made, int branch) {
    Parameter& scale = scales_.at(static_cast<std::size_t>(branch));
    if (pass.costs == nullptr) return {.tensor = ops::scale_columns(made.tensor, scale)};
    LayerCost cost{.name = place_.scales.at(static_cast<std::size_t>(branch)),
                   .saved_bytes = scale.trainable ? made.bytes() : 0};
    count(scale, cost);
    pass.costs->add(std::move(cost));
    return made;
  }

  [[nodiscard]] Features feed_forward(LayerPass& pass, const Features& g) {
    // The stream's gradient, which where the sum is handed on is that of the output.
    const Workspace beside{.backward = place_.joined() ? 0 : g.bytes()};
    const std::int64_t rows = pass.costs == nullptr ? g.tensor.size(0) : g.rows();
    if (place_.tile_rows == 0 || place_.tile_rows >= rows) return mlp_.run(pass, g, beside);
    RowTiles tiles{.rows = place_.tile_rows, .work = [this](LayerPass& tile, const Features& own) {
                     return mlp_.run(tile, own, {});
                   }};
    mlp_.add_parameters(tiles.parameters);
    // What is computed again is wanted for the backward alone, unless a norm or a scale behind
    // reads it.
    const bool is_read = place_.norms_after || behind_.mlp || !scales_.empty();
    return run_in_tiles(pass, g, std::move(tiles), pass.call.mode == Mode::recompute && !is_read,
                        beside);
  }

  /// Its input is {x, delta}.
  [[nodiscard]] bool sums_first() const { return !place_.first && !place_.joined(); }

  LayerPlace place_;
  Norm norm_before_;
  SelfAttention attention_;
  Norm norm_after_;
  FeedForward mlp_;
  std::vector<Parameter> scales_;  ///< of both branches, or none
  BranchNorms<Norm> behind_;
};

}  // namespace dstrain
