#include "engine/nn/row_tiles.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/kernels/later_scope.h"
#include "engine/nn/layer_cost.h"
#include "engine/nn/tensor_exchanges.h"

namespace dstrain {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct KeptTiles final : torch::CustomClassHolder {
  KeptTiles(RowTiles own, Call own_call) : tiles(std::move(own)), call(std::move(own_call)) {}
  [[nodiscard]] at::Tensor work(const at::Tensor& rows, std::int64_t begin) const;

  RowTiles tiles;
  Call call;
};

/// `begin` is the first row's place. Dropout goes by the places of rows.
at::Tensor KeptTiles::work(const at::Tensor& rows_rD, std::int64_t begin) const {
  LayerPass pass{.call = call};
  pass.call.keep_hidden = false;  // it is made again all the same
  const std::int64_t rows = rows_rD.size(0);
  if (call.own.rows.defined()) {
    pass.call.own.rows = call.own.rows.narrow(0, begin, rows);
  } else if (call.trains() && call.dropout_seed.defined()) {
    pass.call.own.rows = at::arange(begin, begin + rows, rows_rD.options().dtype(at::kInt));
  }
  return tiles.work(pass, {.tensor = rows_rD}).tensor;
}

template <class Work>
void each_tile(std::int64_t all, std::int64_t rows, const Work& work) {
  for (std::int64_t begin = 0; begin < all; begin += rows) work(begin, std::min(rows, all - begin));
}

struct InTiles : torch::autograd::Function<InTiles> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const c10::intrusive_ptr<KeptTiles>& kept, bool skip) {
    context->save_for_backward({x});
    context->saved_data["tiles"] = at::IValue::make_capsule(kept);
    at::Tensor y = at::empty_like(x);
    if (!skip) {
      each_tile(x.size(0), kept->tiles.rows, [&](std::int64_t begin, std::int64_t rows) {
        y.narrow(0, begin, rows).copy_(kept->work(x.narrow(0, begin, rows), begin));
      });
    }
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const at::Tensor x = context->get_saved_variables().front();
    const auto held = context->saved_data.at("tiles").toCapsule();
    const auto& kept = static_cast<const KeptTiles&>(*held);
    const LaterScope at_once(kept.tiles.parameters, nullptr);
    const at::AutoGradMode graph(true);
    at::Tensor dx = at::empty_like(x);
    each_tile(x.size(0), kept.tiles.rows, [&](std::int64_t begin, std::int64_t rows) {
      const at::Tensor own = x.narrow(0, begin, rows).detach().requires_grad_(true);
      const at::Tensor y = kept.work(own, begin);
      const at::Tensor gradient =
          torch::autograd::grad({y}, {own}, {grads.front().narrow(0, begin, rows)}).front();
      dx.narrow(0, begin, rows).copy_(gradient);
    });
    return {dx, {}, {}};
  }
};

Features count_tiles(LayerCosts& costs, const Features& x, const RowTiles& tiles,
                     const Workspace& beside) {
  LayerCosts of_tile = costs.part(), of_all = costs.part();
  LayerPass tile{.costs = &of_tile}, all{.costs = &of_all};
  (void)tiles.work(tile, x.sized({tiles.rows, x.columns()}));
  (void)tiles.work(all, x);
  DSTRAIN_CHECK(of_all.exchanges().empty(), "tiles of rows: they are exchanged");
  // The layers keep their input alone.
  std::vector<LayerCost> layers = of_all.layers();
  for (LayerCost& layer : layers) {
    layer.made_again += std::exchange(layer.saved_bytes, 0);
    layer.again_flops = layer.forward_flops;
    layer.hidden_bytes = 0;
    put_nothing_off(layer);
  }
  const Bytes input = x.bytes();
  layers.front().saved_bytes = input;
  layers.front().made_again = std::max<Bytes>(layers.front().made_again - input, 0);
  // What a tile keeps, and its output. Backward, the gradient of all rows, and of a tile also its
  // output, its gradient and the input's.
  const Bytes kept = total(of_tile.layers()).saved_bytes,
              rows = x.sized({tiles.rows, x.columns()}).bytes();
  return add_branch(costs, x, std::move(layers), /*tensor=*/{},
                    of_tile.held() + beside +
                        Workspace{.forward = kept + rows, .backward = input + kept + 2 * rows});
}

}  // namespace

Features run_in_tiles(LayerPass& pass, const Features& x, RowTiles tiles, bool skip,
                      const Workspace& beside) {
  DSTRAIN_CHECK(tiles.rows > 0, "tiles of rows: no rows");
  if (pass.costs != nullptr) return count_tiles(*pass.costs, x, tiles, beside);
  DSTRAIN_CHECK(x.tensor.dim() == 2, "tiles of rows: no rows");
  return {.tensor = InTiles::apply(
              x.tensor, c10::make_intrusive<KeptTiles>(std::move(tiles), pass.call), skip)};
}

}  // namespace dstrain
