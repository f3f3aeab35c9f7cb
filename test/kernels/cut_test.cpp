#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <mutex>
#include <vector>

#include "engine/kernels/attention/attention_heads.h"
#include "engine/kernels/kernels.h"
#include "engine/kernels/ops.h"
#include "engine/kernels/tensor/ops_tensor.h"
#include "test/kernels/on_ranks.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"

/// Operators and kernels that work on a part of a tensor, against those that have the whole.
namespace dstrain {
namespace {

constexpr std::int64_t kRows = 12, kWidth = 8, kClasses = 24;

using test::on_ranks, test::part_of;

at::Tensor random(std::initializer_list<std::int64_t> shape, int seed) {
  return at::randn(shape, at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed)));
}

Parameter table_of(const at::Tensor& whole, int rank, int count) {
  Parameter table;
  const std::int64_t own = whole.size(0) / count;
  table.hold({{"table", whole.sizes().vec(), {rank * own, (rank + 1) * own}, {0, whole.size(1)}}});
  table.value = part_of(whole, rank, count);
  table.gradient = at::zeros(table.shape);
  return table;
}

double worst(const at::Tensor& found, const at::Tensor& expected) {
  return (found - expected).abs().max().item<double>() / expected.abs().max().item<double>();
}

TEST_CASE("rows are gathered, summed, taken and collected with their gradients", "[cut]") {
  const int count = GENERATE(2, 3, 4);
  const at::Tensor x = random({kRows, kWidth}, 1), dy = random({kRows, kWidth}, 2);
  on_ranks(count, [&](int rank, Communicator& ranks) {
    at::Tensor own = part_of(x, rank, count).requires_grad_(true);
    const at::Tensor all = ops::all_gather_rows(own, &ranks);
    REQUIRE(all.equal(x));
    all.backward(dy);  // the same on each rank, so the sum is a multiple
    REQUIRE(own.grad().allclose(count * part_of(dy, rank, count)));

    at::Tensor whole = x.clone().requires_grad_(true);
    const at::Tensor sum = ops::reduce_scatter_rows(whole, &ranks);
    REQUIRE(sum.allclose(count * part_of(x, rank, count)));
    sum.backward(part_of(dy, rank, count));
    REQUIRE(whole.grad().equal(dy));

    whole.mutable_grad().reset();
    const at::Tensor taken = ops::own_rows(whole, {rank, count});
    REQUIRE(taken.equal(part_of(x, rank, count)));
    taken.backward(part_of(dy, rank, count));
    at::Tensor expected = at::zeros({kRows, kWidth});
    const std::int64_t m = kRows / count;
    expected.narrow(0, rank * m, m).copy_(dy.narrow(0, rank * m, m));
    REQUIRE(whole.grad().equal(expected));

    own.mutable_grad().reset();
    const at::Tensor rows = at::arange(0, kRows, 5, at::kLong);
    const at::Tensor some = ops::collect_rows(own, rows, &ranks);
    REQUIRE(some.equal(x.index_select(0, rows)));
    some.backward(dy.narrow(0, 0, rows.numel()));
    at::Tensor collected = at::zeros({kRows, kWidth});
    collected.index_copy_(0, rows, count * dy.narrow(0, 0, rows.numel()));
    REQUIRE(own.grad().allclose(part_of(collected, rank, count)));
  });
}

TEST_CASE("a table cut by rows embeds tokens as a whole one", "[cut]") {
  const int count = GENERATE(2, 4);
  const at::Tensor value = random({kClasses, kWidth}, 3), dy = random({kRows, kWidth}, 4);
  const at::Tensor tokens = at::arange(kRows, at::kLong) * 7 % kClasses;
  Parameter whole = table_of(value, 0, 1);
  ops::embed_tokens(tokens, whole).backward(dy);
  on_ranks(count, [&](int rank, Communicator& ranks) {
    Parameter table = table_of(value, rank, count);
    const at::Tensor y = ops::embed_own_tokens(tokens, table);
    at::Tensor sum = y.detach().clone();
    ranks.all_reduce(sum, ReduceOp::sum);
    REQUIRE(sum.equal(value.index_select(0, tokens)));
    y.backward(dy);
    REQUIRE(table.gradient.equal(part_of(whole.gradient, rank, count)));
  });
}

TEST_CASE("the loss of a table cut by rows is that of a whole one", "[cut]") {
  const int count = GENERATE(2, 4);
  const bool training = GENERATE(true, false);
  CAPTURE(count, training);
  const at::Tensor value = random({kClasses, kWidth}, 5), x = random({kRows, kWidth}, 6);
  const at::Tensor labels = at::arange(kRows, at::kLong) * 5 % kClasses;
  at::Tensor weights = at::full({kRows}, 1, at::kFloat);
  weights[3] = 0;
  Parameter whole = table_of(value, 0, 1);
  at::Tensor whole_x = x.clone().requires_grad_(training);
  const at::Tensor totals = at::zeros({4});
  whole.trainable = training;
  const at::Tensor loss = ops::linear_cross_entropy(whole_x, whole, labels, weights, totals);
  if (training) loss.backward(at::full({}, 0.5, at::kFloat));
  at::Tensor counted = at::zeros({4});
  std::mutex mutex;
  on_ranks(count, [&](int rank, Communicator& ranks) {
    Parameter table = table_of(value, rank, count);
    table.trainable = training;
    at::Tensor own = part_of(x, rank, count).requires_grad_(training);
    const at::Tensor own_totals = at::zeros({4});
    const at::Tensor marked =
        ops::cut_cross_entropy(own, table, labels, weights, own_totals, ranks);
    if (training) {
      marked.backward(at::full({}, 0.5, at::kFloat));
      REQUIRE(worst(own.grad(), part_of(whole_x.grad(), rank, count)) < 1e-5);
      REQUIRE(worst(table.gradient, part_of(whole.gradient, rank, count)) < 1e-5);
    }
    const std::lock_guard lock(mutex);
    counted.add_(own_totals);
  });
  REQUIRE(worst(counted, totals) < 1e-6);
}

TEST_CASE("the most likely class of cut logits is the lowest of the largest", "[cut]") {
  const at::Tensor logits = at::zeros({3, 8});
  logits[0][5] = 1;
  logits[1][2] = logits[1][6] = 2;
  on_ranks(2, [&](int rank, Communicator& ranks) {
    const at::Tensor chosen =
        ops::most_likely_class(logits.narrow(1, rank * 4, 4).contiguous(), ranks);
    REQUIRE(chosen[0].item<std::int64_t>() == 5);
    REQUIRE(chosen[1].item<std::int64_t>() == 2);
    REQUIRE(chosen[2].item<std::int64_t>() == 0);
  });
}

TEST_CASE("dropout of some columns drops what dropout of all does there", "[cut]") {
  const std::int64_t rows = 9, columns = 20, first = GENERATE(0, 4, 7), width = GENERATE(4, 5, 12);
  const at::Tensor x = random({rows, columns}, 7), all = at::empty({rows, columns});
  const std::int64_t seed = 77;
  kernels::Dropout args{.x = x.const_data_ptr(),
                        .y = all.mutable_data_ptr(),
                        .count = x.numel(),
                        .seed = &seed,
                        .place = 3,
                        .share = 0.4F,
                        .dtype = kernels::DType::f32};
  kernels::reference::dropout(args);
  const at::Tensor part = x.narrow(1, first, width).contiguous(), some = at::empty({rows, width});
  args.x = part.const_data_ptr();
  args.y = some.mutable_data_ptr();
  args.count = part.numel();
  args.columns = width;
  args.whole_columns = columns;
  args.first_column = first;
  kernels::reference::dropout(args);
  REQUIRE(some.equal(all.narrow(1, first, width)));
}

TEST_CASE("attention of some heads with linear biases is that of all there", "[cut]") {
  const std::int64_t heads = 6, head_dim = 8, tokens = 10, first = GENERATE(0, 2, 4), own = 2;
  const at::Tensor qkv = random({tokens, 3 * heads * head_dim}, 8);
  ops::AttentionShape shape{.batch = 1,
                            .heads = heads,
                            .kv_heads = heads,
                            .head_dim = head_dim,
                            .interleaved = true,
                            .causal = true,
                            .alibi = true};
  const at::Tensor all = ops::attention(qkv.clone(), shape);
  shape.heads = shape.kv_heads = own;
  shape.model_heads = heads;
  shape.first_head = first;
  const at::Tensor part = qkv.narrow(1, 3 * first * head_dim, 3 * own * head_dim).contiguous();
  REQUIRE(worst(ops::attention(part.clone(), shape),
                all.narrow(1, first * head_dim, own * head_dim)) < 1e-5);
  const at::Tensor stretched = ops::attention_stretched(part.clone(), shape, {}, {16, 8});
  REQUIRE(worst(stretched, all.narrow(1, first * head_dim, own * head_dim)) < 1e-3);
}

}  // namespace
}  // namespace dstrain
