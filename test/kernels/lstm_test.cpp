#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/lstm_cell.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <vector>

#include "engine/base/error.h"
#include "engine/kernels/op_support.h"
#include "engine/kernels/recurrent/kernels.h"
#include "engine/kernels/recurrent/ops_lstm.h"
#include "test/kernels/reference/reference.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"
#include "test/support/near.h"

// An LSTM's step.

namespace dstrain {
namespace {

using test::exact;
using test::far;
using test::leaf;
using Tensors = std::vector<at::Tensor>;

constexpr std::int64_t kLstmRows = 5, kLstmWidth = 7;

struct Inputs {
  explicit Inputs(at::ScalarType type) : random(1) {
    of_input = random({kLstmRows, 4 * kLstmWidth}, type);
    of_state = random({kLstmRows, 4 * kLstmWidth}, type);
    cell = random({kLstmRows, kLstmWidth});
    dstate = random({kLstmRows, kLstmWidth}, type);
    dnext = random({kLstmRows, kLstmWidth});
  }
  test::Random random;
  at::Tensor of_input, of_state, cell, dstate, dnext;
};

/// State, next cell, gradients of z and of the cell by ATen in double.
Tensors plain_step(const Inputs& in) {
  const at::Tensor z = exact(in.of_input.to(at::kDouble) + in.of_state.to(at::kDouble)),
                   cell = exact(in.cell), unit = at::eye(4 * kLstmWidth, at::kDouble);
  const at::Tensor nothing = at::zeros_like(cell);
  const auto [state, next] =
      at::lstm_cell(z, {nothing, cell}, unit, at::zeros({4 * kLstmWidth, kLstmWidth}, at::kDouble));
  ((state * in.dstate.to(at::kDouble)).sum() + (next * in.dnext.to(at::kDouble)).sum()).backward();
  return {state, next, z.grad(), cell.grad()};
}

TEST_CASE("a step of an LSTM and its gradients equal ATen's", "[kernels]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  CAPTURE(c10::toString(type));
  const Inputs in(type);
  const at::Tensor of_input = leaf(in.of_input), of_state = leaf(in.of_state), cell = leaf(in.cell);
  const auto [state, next] = ops::lstm_step(of_input, of_state, cell);
  ((state.to(at::kFloat) * in.dstate).sum() + (next * in.dnext).sum()).backward();
  const Tensors expected = plain_step(in),
                found{state, next, of_input.grad(), cell.grad(), of_state.grad()};
  for (std::size_t i = 0; i < found.size(); ++i) {
    CAPTURE(i);
    REQUIRE(far(found[i], expected[i == 4 ? 2 : i], type, 8) == "");
  }
  REQUIRE_THROWS_AS(ops::lstm_step(of_input, of_state, cell.narrow(1, 0, 3)), Error);
}

TEST_CASE("the reference of an LSTM's step equals ATen, also between rows of other steps",
          "[kernels][reference]") {
  Inputs in(at::kFloat);
  const at::Tensor apart = in.random({kLstmRows, 12 * kLstmWidth});
  apart.narrow(1, 0, 4 * kLstmWidth).copy_(in.of_input);
  const auto fp32 = [](const at::Tensor& t) { return t.mutable_data_ptr<float>(); };
  const at::Tensor gates = at::empty({kLstmRows, 4 * kLstmWidth}),
                   next = at::empty({kLstmRows, kLstmWidth}),
                   state = at::empty({kLstmRows, kLstmWidth}),
                   dz = at::empty({kLstmRows, 4 * kLstmWidth}),
                   dcell = at::empty({kLstmRows, kLstmWidth});
  kernels::reference::lstm_step({.of_input = apart.const_data_ptr(),
                                 .input_stride = apart.stride(0),
                                 .of_state = in.of_state.const_data_ptr(),
                                 .cell = fp32(in.cell),
                                 .gates = gates.mutable_data_ptr(),
                                 .next = fp32(next),
                                 .state = state.mutable_data_ptr(),
                                 .rows = kLstmRows,
                                 .width = kLstmWidth,
                                 .dtype = kernels::DType::f32});
  kernels::reference::lstm_step_backward({.gates = gates.const_data_ptr(),
                                          .cell = fp32(in.cell),
                                          .next = fp32(next),
                                          .grad_state = in.dstate.const_data_ptr(),
                                          .grad_next = fp32(in.dnext),
                                          .grad_z = dz.mutable_data_ptr(),
                                          .grad_cell = fp32(dcell),
                                          .rows = kLstmRows,
                                          .width = kLstmWidth,
                                          .dtype = kernels::DType::f32});
  const Tensors expected = plain_step(in), found{state, next, dz, dcell};
  for (std::size_t i = 0; i < found.size(); ++i) {
    CAPTURE(i);
    REQUIRE(far(found[i], expected[i], at::kFloat, 8) == "");
  }
}

}  // namespace
}  // namespace dstrain
