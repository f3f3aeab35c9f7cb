#pragma once

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>
#include <vector>

#include "engine/kernels/ops.h"
#include "test/support/catch.h"

/// What both losses count of rows whose logits are not finite, for the CPU and for a GPU.
namespace dstrain::test {

constexpr std::int64_t kLabel = 3;

struct Counted {
  double loss = 0, top1 = 0, top5 = 0;
};

inline Counted counted(const at::Tensor& totals) {
  const at::Tensor host = totals.cpu();
  return {host[0].item<double>(), host[1].item<double>(), host[2].item<double>()};
}

/// One row: the logits of `row`, the label kLabel.
inline Counted counted_by_softmax(const at::Tensor& row, double smoothing) {
  const auto floats = row.options().dtype(at::kFloat);
  const at::Tensor totals = at::zeros({4}, floats);
  (void)ops::softmax_cross_entropy(row.view({1, -1}),
                                   at::full({1}, kLabel, row.options().dtype(at::kLong)),
                                   at::full({1}, 1, floats), smoothing, totals);
  return counted(totals);
}

/// The same by a head: its table's one column holds the logits, the input is 1.
inline Counted counted_by_head(const at::Tensor& row, bool training) {
  const auto floats = row.options().dtype(at::kFloat);
  Parameter table;
  table.shape = {row.numel(), 8};
  table.value = at::zeros({row.numel(), 8}, row.options());
  table.value.select(1, 0).copy_(row);
  table.gradient = at::zeros({row.numel(), 8}, floats);
  table.trainable = training;
  at::Tensor x = at::zeros({1, 8}, row.options());
  x.select(1, 0).fill_(1);
  x.requires_grad_(training);
  const at::Tensor totals = at::zeros({4}, floats);
  const at::Tensor loss =
      ops::linear_cross_entropy(x, table, at::full({1}, kLabel, row.options().dtype(at::kLong)),
                                at::full({1}, 1, floats), totals);
  if (training) loss.backward();
  return counted(totals);
}

/// Zeros, but for the label's.
inline at::Tensor right_row(at::Device device, at::ScalarType type, std::int64_t classes) {
  const at::Tensor row = at::zeros({classes}, at::TensorOptions(device).dtype(type));
  row[kLabel].fill_(4);
  return row;
}

/// Rows of which none may count as right, whatever the comparisons of nan and infinity say.
inline std::vector<at::Tensor> rows_not_finite(at::Device device, at::ScalarType type,
                                               std::int64_t classes) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<at::Tensor> rows;
  const auto add = [&](std::int64_t place, float value) {
    rows.push_back(right_row(device, type, classes));
    const at::Tensor spoiled = place < 0 ? rows.back() : rows.back()[place];
    spoiled.fill_(value);
  };
  for (const std::int64_t place : {std::int64_t{-1}, kLabel, std::int64_t{0}, classes - 1}) {
    add(place, kNan);
    add(place, kInfinity);
  }
  add(-1, -kInfinity);
  add(kLabel, -kInfinity);
  return rows;
}

/// For all of them, in both losses, in training and evaluation.
inline void require_none_counts(at::Device device, at::ScalarType type, std::int64_t classes) {
  const at::Tensor right = right_row(device, type, classes);
  for (const Counted& c : {counted_by_softmax(right, 0), counted_by_softmax(right, 0.1)}) {
    REQUIRE(std::isfinite(c.loss));
    REQUIRE(c.top1 == 1);
    REQUIRE(c.top5 == 1);
  }
  for (const bool training : {false, true}) REQUIRE(counted_by_head(right, training).top1 == 1);
  const std::vector<at::Tensor> rows = rows_not_finite(device, type, classes);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    CAPTURE(i);
    for (const double smoothing : {0.0, 0.1}) {
      CAPTURE(smoothing);
      const Counted c = counted_by_softmax(rows[i], smoothing);
      REQUIRE_FALSE(std::isfinite(c.loss));
      REQUIRE(c.top1 == 0);
      REQUIRE(c.top5 == 0);
    }
    for (const bool training : {false, true}) {
      CAPTURE(training);
      const Counted c = counted_by_head(rows[i], training);
      REQUIRE_FALSE(std::isfinite(c.loss));
      REQUIRE(c.top1 == 0);
    }
  }
}

}  // namespace dstrain::test
