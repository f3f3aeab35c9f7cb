#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

#include "engine/kernels/kernels.h"
#include "engine/kernels/ops.h"
#include "test/gpu/compare.h"
#include "test/kernels/reference/reference.h"
#include "test/kernels/tensors.h"

/// The kernels around matrix products against their references, and the operators made of both
/// against the CPU.
namespace dstrain {
namespace {

using test::compare;
using test::far;
using test::fp32;
using test::in;
using test::out;
using test::Tensors;

at::TensorOptions gpu_floats() { return at::TensorOptions(at::kCUDA).dtype(at::kFloat); }
std::uint8_t* bytes(const at::Tensor& codes) {
  return static_cast<std::uint8_t*>(codes.mutable_data_ptr());
}

TEST_CASE("GPU: tanh and quick GELU equal their references, with and without the bias' gradient",
          "[gpu][kernels]") {
  const auto kind = GENERATE(kernels::Gelu::tanh, kernels::Gelu::quick);
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const std::int64_t rows = GENERATE(1, 591), cols = GENERATE(10, 64, 1000, 4096);
  const bool bias_too = GENERATE(true, false);
  CAPTURE(c10::toString(type), rows, cols, bias_too);
  test::Random random(1);
  const at::Tensor z = random({rows, cols}, type) * 2, bias = random({cols}, type);
  const at::Tensor partial = at::empty({kernels::column_partials(rows, cols), cols}, gpu_floats());
  compare(
      {z, bias, z}, 2, 8,
      [&](const Tensors& t) {
        return kernels::BiasGelu{.z = in(t[0]),
                                 .bias = in(t[1]),
                                 .y = out(t[2]),
                                 .rows = rows,
                                 .cols = cols,
                                 .dtype = ops::kernel_dtype(t[0]),
                                 .kind = kind};
      },
      kernels::cuda::bias_gelu, kernels::reference::bias_gelu);
  compare(
      {z, bias, random({rows, cols}, type), z, random({cols}), z}, 3,
      std::max<std::int64_t>(rows, 8),
      [&](const Tensors& t) {
        return kernels::BiasGeluBackward{.z = in(t[0]),
                                         .bias = in(t[1]),
                                         .grad_y = in(t[2]),
                                         .grad_z = out(t[3]),
                                         .grad_bias = bias_too ? fp32(t[4]) : nullptr,
                                         .partial = bias_too ? fp32(partial) : nullptr,
                                         .rows = rows,
                                         .cols = cols,
                                         .dtype = ops::kernel_dtype(t[0]),
                                         .kind = kind,
                                         .y = bias_too ? out(t[5]) : nullptr};
      },
      kernels::cuda::bias_gelu_backward, kernels::reference::bias_gelu_backward);
}

TEST_CASE("GPU: scaled columns and the gradient of the scale equal their references",
          "[gpu][kernels]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const std::int64_t rows = GENERATE(1, 591), cols = GENERATE(10, 64, 768, 1000);
  CAPTURE(c10::toString(type), rows, cols);
  test::Random random(3);
  const at::Tensor x = random({rows, cols}, type), scale = random({cols}, type);
  const at::Tensor partial = at::empty({kernels::column_partials(rows, cols), cols}, gpu_floats());
  compare(
      {x, scale, x}, 2, 1,
      [&](const Tensors& t) {
        return kernels::ColumnScale{.x = in(t[0]),
                                    .scale = in(t[1]),
                                    .y = out(t[2]),
                                    .rows = rows,
                                    .cols = cols,
                                    .dtype = ops::kernel_dtype(t[0])};
      },
      kernels::cuda::column_scale, kernels::reference::column_scale);
  compare(
      {x, scale, random({rows, cols}, type), x, random({cols})}, 3, std::max<std::int64_t>(rows, 8),
      [&](const Tensors& t) {
        return kernels::ColumnScaleBackward{.x = in(t[0]),
                                            .scale = in(t[1]),
                                            .grad_y = in(t[2]),
                                            .grad_x = out(t[3]),
                                            .grad_scale = fp32(t[4]),
                                            .partial = fp32(partial),
                                            .rows = rows,
                                            .cols = cols,
                                            .dtype = ops::kernel_dtype(t[0])};
      },
      kernels::cuda::column_scale_backward, kernels::reference::column_scale_backward);
}

TEST_CASE("GPU: gated products equal their reference, and backward gives h bit for bit",
          "[gpu][kernels]") {
  const auto gate = GENERATE(kernels::GateActivation::silu, kernels::GateActivation::gelu);
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const std::int64_t rows = GENERATE(1, 7, 591), cols = GENERATE(1, 10, 64, 1000, 11008);
  const bool again = GENERATE(true, false);
  CAPTURE(c10::toString(type), rows, cols, again, static_cast<int>(gate));
  test::Random random(2);
  const at::Tensor gate_up = random({rows, 2 * cols}, type) * 3, h = random({rows, cols}, type);
  const auto forward = [&](const Tensors& t) {
    return kernels::Swiglu{.gate_up = in(t[0]),
                           .h = out(t[1]),
                           .rows = rows,
                           .cols = cols,
                           .dtype = ops::kernel_dtype(t[0]),
                           .gate = gate};
  };
  const auto backward = [&](const Tensors& t) {
    return kernels::SwigluBackward{.gate_up = in(t[0]),
                                   .grad_h = in(t[1]),
                                   .grad_gate_up = out(t[2]),
                                   .h = again ? out(t[3]) : nullptr,
                                   .rows = rows,
                                   .cols = cols,
                                   .dtype = ops::kernel_dtype(t[0]),
                                   .gate = gate};
  };
  compare({gate_up, h}, 1, 8, forward, kernels::cuda::swiglu, kernels::reference::swiglu);
  compare({gate_up, h, gate_up, h}, 2, 8, backward, kernels::cuda::swiglu_backward,
          kernels::reference::swiglu_backward);
  if (!again) return;
  const Tensors gpu = test::clones({gate_up, h, gate_up, h}, at::kCUDA);
  const at::Tensor h_forward = at::zeros_like(gpu[3]);
  kernels::cuda::swiglu(forward({gpu[0], h_forward}), ops::current_stream());
  kernels::cuda::swiglu_backward(backward(gpu), ops::current_stream());
  REQUIRE(gpu[3].equal(h_forward));
}

TEST_CASE("GPU: dropout equals its reference bit for bit", "[gpu][kernels]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const std::int64_t count = GENERATE(1, 8, 1003, 300000);
  const float share = GENERATE(0.05f, 0.5f);
  // Rows of a larger tensor, whose packs do not begin with a row where there are 17.
  const std::int64_t columns = GENERATE(0, 8, 17);
  CAPTURE(c10::toString(type), count, share, columns);
  const bool in_rows = columns > 0 && count % columns == 0;
  test::Random random(3);
  const Tensors host = {random({count}, type), at::zeros({count}, type),
                        at::full({}, 0x123456789abcdef, at::kLong),
                        at::arange(in_rows ? count / columns : 1, at::kInt).flip(0) * 3},
                gpu = test::clones(host, at::kCUDA);
  const auto args = [&](const Tensors& t) {
    return kernels::Dropout{.x = in(t[0]),
                            .y = out(t[1]),
                            .count = count,
                            .seed = t[2].const_data_ptr<std::int64_t>(),
                            .place = 5,
                            .share = share,
                            .dtype = ops::kernel_dtype(t[0]),
                            .rows = in_rows ? t[3].const_data_ptr<std::int32_t>() : nullptr,
                            .columns = columns};
  };
  kernels::reference::dropout(args(host));
  kernels::cuda::dropout(args(gpu), ops::current_stream());
  REQUIRE(gpu[1].cpu().equal(host[1]));
}

TEST_CASE("GPU: dropout of some columns equals its reference bit for bit", "[gpu][kernels]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const std::int64_t rows = 301, columns = GENERATE(5, 8, 64), first = GENERATE(0, 4, 7);
  CAPTURE(c10::toString(type), columns, first);
  test::Random random(4);
  const Tensors host = {random({rows, columns}, type), at::zeros({rows, columns}, type),
                        at::full({}, 0x123456789abcdef, at::kLong)},
                gpu = test::clones(host, at::kCUDA);
  const auto args = [&](const Tensors& t) {
    return kernels::Dropout{.x = in(t[0]),
                            .y = out(t[1]),
                            .count = rows * columns,
                            .seed = t[2].const_data_ptr<std::int64_t>(),
                            .place = 5,
                            .share = 0.3f,
                            .dtype = ops::kernel_dtype(t[0]),
                            .columns = columns,
                            .whole_columns = 128,
                            .first_column = first};
  };
  kernels::reference::dropout(args(host));
  kernels::cuda::dropout(args(gpu), ops::current_stream());
  REQUIRE(gpu[1].cpu().equal(host[1]));
}

TEST_CASE("GPU: FP8 codes and scale equal the reference bit for bit", "[gpu][kernels][fp8]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const auto format = GENERATE(kernels::Fp8Format::e4m3, kernels::Fp8Format::e5m2);
  const auto [rows, cols] = GENERATE(std::pair{16, 16}, std::pair{144, 272}, std::pair{128, 2048},
                                     std::pair{1040, 48}, std::pair{2048, 1024});
  const bool by_rows = GENERATE(true, false), by_columns = GENERATE(true, false),
             known = GENERATE(false, true);
  CAPTURE(c10::toString(type), rows, cols, by_rows, by_columns, known);
  test::Random random(4);
  const auto codes = at::TensorOptions(at::kByte);
  const Tensors host = {random({rows, cols}, type) * 0.3, at::zeros({rows, cols}, codes),
                        at::zeros({cols, rows}, codes), at::zeros({kernels::kAbsMaxPartials}),
                        at::full({1}, 0.01, at::kFloat)};
  const Tensors gpu = test::clones(host, at::kCUDA);
  const auto max = [&](const Tensors& t) {
    return kernels::AbsMax{.x = in(t[0]),
                           .partial = fp32(t[3]),
                           .count = t[0].numel(),
                           .dtype = ops::kernel_dtype(t[0])};
  };
  const auto args = [&, r = rows, c = cols](const Tensors& t) {
    return kernels::Quantize{.x = in(t[0]),
                             .out = by_rows ? bytes(t[1]) : nullptr,
                             .out_t = by_columns ? bytes(t[2]) : nullptr,
                             .partial = known ? nullptr : fp32(t[3]),
                             .scale = fp32(t[4]),
                             .rows = r,
                             .cols = c,
                             .format = format,
                             .dtype = ops::kernel_dtype(t[0])};
  };
  kernels::reference::abs_max(max(host));
  kernels::reference::quantize(args(host));
  kernels::cuda::abs_max(max(gpu), ops::current_stream());
  kernels::cuda::quantize(args(gpu), ops::current_stream());
  REQUIRE(gpu[3].max().item<float>() == host[3].max().item<float>());
  for (const std::size_t i : {1, 2, 4}) {
    CAPTURE(i);
    REQUIRE(gpu[i].cpu().equal(host[i]));
  }
}

TEST_CASE("GPU: the vocabulary loss equals its reference", "[gpu][kernels]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  // From 65,536 classes on a cluster of blocks takes a row, up to 262,144.
  const std::int64_t rows = GENERATE(1, 70);
  const std::int64_t classes =
      GENERATE(2, 10, 1003, 8200, 50257, 65536, 100003, 151936, 250887, 262144, 300001);
  const bool training = GENERATE(true, false);
  CAPTURE(c10::toString(type), rows, classes, training);
  test::Random random(5);
  const std::int64_t stride = (classes + 7) / 8 * 8;
  const at::Tensor weights = random({rows}).gt(-1).to(at::kFloat);
  const at::Tensor labels = (random({rows}).abs() * 10000).to(at::kLong).remainder(classes);
  at::Tensor logits = random({rows, stride}, type);
  if (rows > 1) {
    logits[1][classes / 2].fill_(9);  // the label's own
    labels[1] = classes / 2;
    weights[1] = 0.5f;
    logits[2].fill_(1);  // all alike
    labels[2] = 0;
    weights[2] = 1;
  }
  const at::Tensor grad_loss = at::full({1}, 3, at::kFloat), zeros = at::zeros({rows});
  compare(
      {labels, weights, grad_loss, logits, zeros, zeros}, 3, classes,
      [&](const Tensors& t) {
        return kernels::VocabLoss{.logits = out(t[3]),
                                  .labels = t[0].const_data_ptr<std::int64_t>(),
                                  .weights = fp32(t[1]),
                                  .grad_loss = training ? fp32(t[2]) : nullptr,
                                  .loss = fp32(t[4]),
                                  .top1 = fp32(t[5]),
                                  .rows = rows,
                                  .classes = classes,
                                  .stride = stride,
                                  .dtype = ops::kernel_dtype(t[3])};
      },
      kernels::cuda::vocab_loss, kernels::reference::vocab_loss);
  compare(
      {random({rows}), random({rows}), weights, at::zeros({1}), random({4})}, 3, rows,
      [&](const Tensors& t) {
        return kernels::VocabTotals{.loss = fp32(t[0]),
                                    .top1 = fp32(t[1]),
                                    .weights = fp32(t[2]),
                                    .loss_sum = fp32(t[3]),
                                    .totals = fp32(t[4]),
                                    .rows = rows};
      },
      kernels::cuda::vocab_totals, kernels::reference::vocab_totals);
}

TEST_CASE("GPU: the loss of a part of the vocabulary equals its reference", "[gpu][kernels]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const std::int64_t rows = GENERATE(1, 70), classes = GENERATE(2, 10, 1003, 8200);
  const int parts = GENERATE(2, 4);
  const bool training = GENERATE(true, false);
  CAPTURE(c10::toString(type), rows, classes, parts, training);
  test::Random random(6);
  const std::int64_t stride = (classes + 7) / 8 * 8, all_classes = parts * classes;
  const at::Tensor weights = random({rows}).gt(-1).to(at::kFloat);
  const at::Tensor labels = (random({rows}).abs() * 10000).to(at::kLong).remainder(all_classes);
  at::Tensor found = at::zeros({parts, rows, 4});
  at::Tensor logits;
  for (int part = 0; part < parts; ++part) {
    logits = random({rows, stride}, type);
    if (rows > 1) logits[1].fill_(1);  // all alike
    const at::Tensor own = at::zeros({rows, 4});
    const auto args = [&](const Tensors& t) {
      return kernels::VocabPart{.logits = in(t[1]),
                                .labels = t[0].const_data_ptr<std::int64_t>(),
                                .found = fp32(t[2]),
                                .rows = rows,
                                .classes = classes,
                                .stride = stride,
                                .first_class = part * classes,
                                .dtype = ops::kernel_dtype(t[1])};
    };
    compare({labels, logits, own}, 2, classes, args, kernels::cuda::vocab_part,
            kernels::reference::vocab_part);
    kernels::reference::vocab_part(args({labels, logits, own}));
    found[part].copy_(own);
  }
  const at::Tensor grad_loss = at::full({1}, 3, at::kFloat), zeros = at::zeros({rows});
  compare(
      {labels, weights, grad_loss, found, logits, zeros, zeros}, 4, classes,
      [&](const Tensors& t) {
        return kernels::VocabPartLoss{.logits = out(t[4]),
                                      .labels = t[0].const_data_ptr<std::int64_t>(),
                                      .weights = fp32(t[1]),
                                      .grad_loss = training ? fp32(t[2]) : nullptr,
                                      .found = fp32(t[3]),
                                      .loss = fp32(t[5]),
                                      .top1 = fp32(t[6]),
                                      .rows = rows,
                                      .classes = classes,
                                      .stride = stride,
                                      .first_class = (parts - 1) * classes,
                                      .all_classes = all_classes,
                                      .parts = parts,
                                      .dtype = ops::kernel_dtype(t[4])};
      },
      kernels::cuda::vocab_part_loss, kernels::reference::vocab_part_loss);
}

/// Its gradient is to be overwritten.
Parameter scaled_parameter(test::Random& random, at::IntArrayRef sizes, at::ScalarType type,
                           double scale) {
  Parameter made = test::parameter_of(random(sizes, type) * scale);
  made.gradient.fill_(7);
  made.gradient_state = GradientState::empty;
  return made;
}

TEST_CASE("GPU: gated products and low-rank terms equal those on the CPU", "[gpu][kernels]") {
  const auto type = GENERATE(from_range(test::with_products({at::kFloat, at::kBFloat16})));
  const bool fp8 = GENERATE(false, true), frozen = GENERATE(false, true),
             every = GENERATE(false, true);  // output has a term
  const double dropout = GENERATE(0.0, 0.25);
  CAPTURE(c10::toString(type), fp8, frozen, every, dropout);
  if (fp8 && type == at::kFloat) return;
  const auto run = [&](at::Device device) -> Tensors {
    test::Random random(6, device);
    const std::int64_t rows = 208, wide = 160, width = 96, rank = 8;
    const auto parameter = [&](at::IntArrayRef sizes) {
      return scaled_parameter(random, sizes, type, 0.1);
    };
    Parameter up = parameter({2 * wide, width}), down = parameter({width, wide}),
              a = parameter({rank, width}), b = parameter({wide, rank}),
              first_a = parameter({2 * rank, width}), first_b = parameter({wide, 2 * rank});
    up.fp8 = down.fp8 = fp8;
    if (frozen) {
      up.trainable = down.trainable = false;
      up.gradient = down.gradient = at::Tensor();
    }
    const at::Tensor x = test::leaf(random({rows, width}, type));
    const ops::DropMask mask{.share = dropout,
                             .seed = at::full({}, 5, x.options().dtype(at::kLong))};
    std::vector<ops::LowRankTerm> terms = {
        {.a = &a, .b = &b, .scale = 2, .column = wide, .mask = mask}};
    if (every) terms.push_back({.a = &first_a, .b = &first_b, .mask = mask});
    const at::Tensor both = ops::adapted_linear(x, up, nullptr, terms);
    const at::Tensor y = ops::swiglu_linear(both, down);
    y.backward(random({rows, width}, type));
    Tensors all = {y, x.grad(), a.gradient, b.gradient};
    if (!frozen) all.insert(all.end(), {up.gradient, down.gradient});
    return all;
  };
  const Tensors gpu = run(at::kCUDA), cpu = run(at::kCPU);
  for (std::size_t i = 0; i < gpu.size(); ++i) {
    CAPTURE(i);
    // An element of 8 bits that the two round to different codes moves a sum by up to a sixteenth
    // of the largest; with dropout the elements that are left are larger by a third.
    REQUIRE(far(gpu[i], cpu[i], type, fp8 ? 1 << 20 : 8192) == "");
  }
}

TEST_CASE("GPU: many chunks of a wide head give what one gives", "[gpu][kernels]") {
  const std::int64_t rows = 6000, classes = 151'936, width = 64;  // two chunks
  const at::ScalarType type = test::short_type();
  test::Random random(6, at::kCUDA);
  Parameter table = scaled_parameter(random, {classes, width}, type, 0.2), other = table;
  other.gradient = at::zeros_like(table.gradient);
  const at::Tensor x = test::leaf(random({rows, width}, type)),
                   labels = (random({rows}).abs() * 10000).to(at::kLong).remainder(classes),
                   weights = random({rows}).gt(-0.5).to(at::kFloat),
                   totals = at::zeros({4}, gpu_floats()), parts = at::zeros({4}, gpu_floats());
  ops::linear_cross_entropy(x, table, labels, weights, totals).backward();
  const at::Tensor dx = x.grad().clone();
  x.mutable_grad() = at::Tensor();
  for (std::int64_t first = 0; first < rows; first += 1000) {
    const auto part = [&](const at::Tensor& all) { return all.narrow(0, first, 1000); };
    ops::linear_cross_entropy(part(x), other, part(labels), part(weights), parts).backward();
  }
  REQUIRE(far(totals, parts, at::kFloat, rows) == "");
  REQUIRE(far(dx, x.grad(), type, classes) == "");
  REQUIRE(far(table.gradient, other.gradient, at::kFloat, rows) == "");
}

}  // namespace
}  // namespace dstrain
