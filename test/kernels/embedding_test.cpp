#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <vector>

#include "engine/base/error.h"
#include "engine/kernels/kernels.h"
#include "engine/kernels/op_support.h"
#include "engine/kernels/ops.h"
#include "test/kernels/bounds.h"
#include "test/kernels/devices.h"
#include "test/kernels/reference/reference.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"
#include "test/support/near.h"

namespace dstrain {
namespace {

using test::Bounded;
using test::far;
using test::indices;

/// Row t: the sum of dy's rows at token t, as the product with a matrix of zeros and ones.
Bounded rows_added(const at::Tensor& tokens, const at::Tensor& dy, std::int64_t vocab) {
  return test::weight_gradient(at::one_hot(tokens.cpu(), vocab).to(at::kDouble), dy);
}

TEST_CASE("embed_tokens takes rows by token and adds their gradients up", "[kernels]") {
  const auto device = GENERATE(from_range(test::devices()));
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  CAPTURE(device.str(), c10::toString(dtype));
  test::Random random(1, device);
  Parameter table = random.parameter({6, 8}, dtype);
  const at::Tensor tokens = indices({3, 5, 3, 0, 3, 5}).view({2, 3}).to(device),
                   dy = random({6, 8}, dtype);
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
  const auto device = GENERATE(from_range(test::devices()));
  test::Random random(4, device);
  Parameter table = random.parameter({6, 8}, at::kBFloat16);
  const at::Tensor tokens = indices({3, 5, 3, 0, 3, 5}).to(device),
                   dy = random({6, 8}, at::kBFloat16);
  const at::Tensor start = table.gradient.to(at::kBFloat16);
  table.gradient = start.to(at::kFloat);
  ops::embed_tokens(tokens, table).backward(dy);
  const at::Tensor expected = table.gradient.to(at::kBFloat16);
  table.gradient = start.clone();
  ops::embed_tokens(tokens, table).backward(dy);
  REQUIRE(table.gradient.equal(expected));
}

TEST_CASE("a frozen table leaves no trace in the graph", "[kernels]") {
  const auto device = GENERATE(from_range(test::devices()));
  test::Random random(2, device);
  Parameter table = random.parameter({6, 8}, at::kFloat);
  table.trainable = false;
  table.gradient = at::Tensor();
  REQUIRE_FALSE(ops::embed_tokens(indices({1, 2}).to(device), table).requires_grad());
}

TEST_CASE("a token outside the table is an internal error that names both", "[kernels][cpu]") {
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

/// Tokens of a batch: all sorts, or one of them for most rows, as padding is.
enum class Kind { mixed, same, padded, unknown };

at::Tensor make_tokens(test::Random& random, Kind kind, std::int64_t rows, std::int64_t vocab) {
  at::Tensor tokens = (random({rows}).abs() * 1e6).to(at::kLong).remainder(vocab);
  if (kind == Kind::same) tokens.fill_(vocab - 1);
  if (kind == Kind::padded) tokens.narrow(0, rows / 5, rows - rows / 5).fill_(vocab / 2);
  if (kind == Kind::unknown) {
    tokens[0] = vocab;
    tokens[rows - 1] = -1;
  }
  return tokens;
}

TEST_CASE("token embedding and its gradient equal their references", "[kernels][reference]") {
  const auto device = GENERATE(from_range(test::devices()));
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const auto kind = GENERATE(Kind::mixed, Kind::same, Kind::padded, Kind::unknown);
  const std::int64_t rows = GENERATE(1, 32, 33, 64, 777, 1000, 16385);
  const std::int64_t vocab = GENERATE(3, 500, 151'936);
  const std::int64_t dim = vocab > 1000 ? 8 : 264;
  const at::ScalarType held =
      type == at::kBFloat16 ? GENERATE(at::kFloat, at::kBFloat16) : at::kFloat;
  if (device.is_cpu() && kind == Kind::unknown) return;  // an error, above
  if (!test::worth_it(device, (rows + vocab) * dim)) return;
  const bool empty = GENERATE(false, true);
  CAPTURE(device.str(), c10::toString(type), static_cast<int>(kind), rows, vocab,
          c10::toString(held), empty);
  test::Random random(1);
  const at::Tensor tokens = make_tokens(random, kind, rows, vocab), dy = random({rows, dim}, type),
                   start = random({vocab, dim}, held);
  Parameter table = random.parameter({vocab, dim}, type);
  const at::Tensor y = at::empty({rows, dim}, dy.options()),
                   gradient = empty ? at::zeros_like(start) : start.clone();
  const auto dtype = ops::kernel_dtype(dy);
  kernels::reference::embed_tokens({.tokens = tokens.const_data_ptr<std::int64_t>(),
                                    .table = table.value.const_data_ptr(),
                                    .out = y.mutable_data_ptr(),
                                    .rows = rows,
                                    .vocab = vocab,
                                    .dim = dim,
                                    .dtype = dtype});
  kernels::reference::embed_tokens_backward({.tokens = tokens.const_data_ptr<std::int64_t>(),
                                             .grad_out = dy.const_data_ptr(),
                                             .grad_table = gradient.mutable_data_ptr(),
                                             .scratch = nullptr,
                                             .rows = rows,
                                             .vocab = vocab,
                                             .dim = dim,
                                             .dtype = dtype,
                                             .table = ops::kernel_dtype(start)});
  table.value = table.value.to(device);
  at::Tensor first;
  for (int run = 0; run < 2; ++run) {
    table.gradient = start.clone().to(device);
    if (empty) table.gradient_state = GradientState::empty;
    const at::Tensor found = ops::embed_tokens(tokens.to(device), table);
    found.backward(dy.to(device));
    if (kind == Kind::unknown) {
      const at::Tensor unknown = tokens.lt(0).logical_or(tokens.ge(vocab));
      REQUIRE(found.isnan().all(1).cpu().equal(unknown));
    } else {
      REQUIRE(found.cpu().equal(y));
    }
    REQUIRE(far(table.gradient, gradient, held, rows) == "");
    if (run == 0) first = table.gradient.clone();
  }
  REQUIRE(table.gradient.equal(first));
}

}  // namespace
}  // namespace dstrain
