#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <vector>

#include "engine/base/error.h"
#include "engine/kernels/kernels.h"
#include "engine/kernels/ops.h"
#include "test/kernels/bounds.h"
#include "test/kernels/reference/reference.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

using test::Bounded;
using test::far;
using test::indices;

/// Row t: the sum of dy's rows at token t, as the product with a matrix of zeros and ones.
Bounded rows_added(const at::Tensor& tokens, const at::Tensor& dy, std::int64_t vocab) {
  return test::weight_gradient(at::one_hot(tokens, vocab).to(at::kDouble), dy);
}

TEST_CASE("embed_tokens takes rows by token and adds their gradients up", "[kernels]") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  CAPTURE(c10::toString(dtype));
  test::Random random(1);
  Parameter table = random.parameter({6, 8}, dtype);
  const at::Tensor tokens = indices({3, 5, 3, 0, 3, 5}).view({2, 3}), dy = random({6, 8}, dtype);
  const at::Tensor y = ops::embed_tokens(tokens, table);
  REQUIRE(y.equal(at::index_select(table.value, 0, tokens.flatten())));
  y.backward(dy);
  const Bounded expected = rows_added(tokens.flatten(), dy, 6);
  REQUIRE(far(table.gradient, expected) == "");

  ops::embed_tokens(tokens, table).backward(dy);  // gradients add up
  REQUIRE(far(table.gradient,
              rows_added(at::cat({tokens, tokens}).flatten(), at::cat({dy, dy}), 6)) == "");
  table.gradient.fill_(1e30);
  table.gradient_state = GradientState::empty;
  ops::embed_tokens(tokens, table).backward(dy);
  REQUIRE(far(table.gradient, expected) == "");
}

TEST_CASE("a table's gradient in bf16 is the sum in fp32, rounded once", "[kernels]") {
  test::Random random(4);
  Parameter table = random.parameter({6, 8}, at::kBFloat16);
  const at::Tensor tokens = indices({3, 5, 3, 0, 3, 5}), dy = random({6, 8}, at::kBFloat16);
  const at::Tensor start = table.gradient.to(at::kBFloat16);
  table.gradient = start.to(at::kFloat);
  ops::embed_tokens(tokens, table).backward(dy);
  const at::Tensor expected = table.gradient.to(at::kBFloat16);
  table.gradient = start.clone();
  ops::embed_tokens(tokens, table).backward(dy);
  REQUIRE(table.gradient.equal(expected));
}

TEST_CASE("a frozen table leaves no trace in the graph", "[kernels]") {
  test::Random random(2);
  Parameter table = random.parameter({6, 8}, at::kFloat);
  table.trainable = false;
  table.gradient = at::Tensor();
  REQUIRE_FALSE(ops::embed_tokens(indices({1, 2}), table).requires_grad());
}

TEST_CASE("a token outside the table is an internal error that names both", "[kernels]") {
  test::Random random(3);
  Parameter table = random.parameter({6, 8}, at::kFloat);
  const std::int64_t wrong = GENERATE(-1, 6);
  try {
    (void)ops::embed_tokens(indices({1, wrong}), table);
    FAIL("no error");
  } catch (const Error& error) {
    REQUIRE(error.kind() == ErrorKind::internal);
    REQUIRE(std::string(error.what()).find(std::to_string(wrong)) != std::string::npos);
    REQUIRE(std::string(error.what()).find("table [6, 8]") != std::string::npos);
  }
}

TEST_CASE("the embedding references agree with the operator", "[kernels][reference]") {
  test::Random random(4);
  Parameter table = random.parameter({5, 8}, at::kFloat);
  const at::Tensor tokens = indices({4, 1, 1, 4, 0}), dy = random({5, 8});
  const at::Tensor y = ops::embed_tokens(tokens, table), y2 = at::empty({5, 8});
  y.backward(dy);
  const at::Tensor gradient = at::zeros({5, 8});
  kernels::reference::embed_tokens({.tokens = tokens.const_data_ptr<std::int64_t>(),
                                    .table = table.value.const_data_ptr(),
                                    .out = y2.mutable_data_ptr(),
                                    .rows = 5,
                                    .vocab = 5,
                                    .dim = 8,
                                    .dtype = kernels::DType::f32});
  kernels::reference::embed_tokens_backward({.tokens = tokens.const_data_ptr<std::int64_t>(),
                                             .grad_out = dy.const_data_ptr(),
                                             .grad_table = gradient.mutable_data_ptr<float>(),
                                             .scratch = nullptr,
                                             .rows = 5,
                                             .vocab = 5,
                                             .dim = 8,
                                             .dtype = kernels::DType::f32});
  REQUIRE(y2.equal(y));
  REQUIRE(far(gradient, rows_added(tokens, dy, 5)) == "");
  REQUIRE(far(table.gradient, rows_added(tokens, dy, 5)) == "");
}

}  // namespace
}  // namespace dstrain
