#include "engine/nn/row_tiles.h"

#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/kernels/later_scope.h"

namespace dstrain {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct KeptTiles final : torch::CustomClassHolder {
  explicit KeptTiles(RowTiles own) : tiles(std::move(own)) {}
  RowTiles tiles;
};

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
        y.narrow(0, begin, rows).copy_(kept->tiles.work(x.narrow(0, begin, rows), begin));
      });
    }
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const at::Tensor x = context->get_saved_variables().front();
    const auto held = context->saved_data.at("tiles").toCapsule();
    const RowTiles& tiles = static_cast<const KeptTiles&>(*held).tiles;
    const LaterScope at_once(tiles.parameters, nullptr);
    const at::AutoGradMode graph(true);
    at::Tensor dx = at::empty_like(x);
    each_tile(x.size(0), tiles.rows, [&](std::int64_t begin, std::int64_t rows) {
      const at::Tensor own = x.narrow(0, begin, rows).detach().requires_grad_(true);
      const at::Tensor y = tiles.work(own, begin);
      const at::Tensor gradient =
          torch::autograd::grad({y}, {own}, {grads.front().narrow(0, begin, rows)}).front();
      dx.narrow(0, begin, rows).copy_(gradient);
    });
    return {dx, {}, {}};
  }
};

}  // namespace

at::Tensor in_tiles(const at::Tensor& x_MD, RowTiles tiles, bool skip) {
  DSTRAIN_CHECK(x_MD.dim() == 2 && tiles.rows > 0, "tiles of rows: no rows");
  return InTiles::apply(x_MD, c10::make_intrusive<KeptTiles>(std::move(tiles)), skip);
}

}  // namespace dstrain
