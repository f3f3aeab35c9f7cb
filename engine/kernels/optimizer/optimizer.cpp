#include "engine/kernels/optimizer/optimizer.h"

#include <fmt/format.h>

#include <utility>

#include "engine/base/error.h"
#include "engine/kernels/gradient_format.h"
#include "engine/kernels/op_support.h"
#include "engine/kernels/optimizer/kernels.h"
#include "engine/kernels/optimizer/optimizer_cpu.h"

namespace dstrain::optimizer {
namespace {

void check_flat(const char* what, const at::Tensor& tensor, const at::Tensor& like,
                at::ScalarType dtype = at::kFloat) {
  DSTRAIN_CHECK(tensor.defined() && tensor.dim() == 1 && tensor.is_contiguous() &&
                    tensor.device() == like.device() && tensor.numel() == like.numel() &&
                    tensor.scalar_type() == dtype,
                fmt::format("optimizer: {} is not flat dense {} like the master weights", what,
                            c10::toString(dtype)));
}

void check_control(const at::Tensor& control, const at::Tensor& like) {
  DSTRAIN_CHECK(control.defined() && control.numel() >= kControlSize && control.is_contiguous() &&
                    control.scalar_type() == at::kFloat && control.device() == like.device(),
                "optimizer: the control tensor is not fp32 of kControlSize on the device");
}

/// In one of the formats of gradients.
void check_gradient(const at::Tensor& gradient, const at::Tensor& like) {
  DSTRAIN_CHECK(gradient.defined(), "optimizer: there is no gradient");
  const bool held = kernels::with_gradient(ops::kernel_dtype(gradient), [&](auto) {
    check_flat("the gradient", gradient, like, gradient.scalar_type());
  });
  DSTRAIN_CHECK(held, "optimizer: a gradient is fp32 or bf16");
}

/// The compute copy's pointer and dtype; null and fp32 where there is none.
std::pair<void*, kernels::DType> compute_of(const at::Tensor& compute, const at::Tensor& master) {
  if (!compute.defined()) return {nullptr, kernels::DType::f32};
  DSTRAIN_CHECK(compute.dim() == 1 && compute.is_contiguous() &&
                    compute.device() == master.device() && compute.numel() == master.numel(),
                "optimizer: the compute copy is not flat and dense like the master weights");
  return {compute.mutable_data_ptr(), ops::kernel_dtype(compute)};
}

/// Whether the states are all bf16, checked.
bool bf16_states(const at::Tensor& parameters, const at::Tensor& compute) {
  if (!parameters.defined() || parameters.scalar_type() != at::kBFloat16) return false;
  check_flat("the bf16 parameters", parameters, parameters, at::kBFloat16);
  DSTRAIN_CHECK(!compute.defined() || compute.is_same(parameters) ||
                    (compute.scalar_type() == at::kBFloat16 &&
                     compute.const_data_ptr() == parameters.const_data_ptr()),
                "optimizer: parameters in bf16 have no compute copy beside them");
  return true;
}

}  // namespace

void add_squares(const at::Tensor& gradient, double factor, const at::Tensor& sum) {
  check_gradient(gradient, gradient);
  DSTRAIN_CHECK(
      sum.numel() >= 1 && sum.scalar_type() == at::kFloat && sum.device() == gradient.device(),
      "optimizer: the sum of squares is not fp32 on the gradient's device");
  kernels::AddSquares args{.x = gradient.const_data_ptr(),
                           .type = ops::kernel_dtype(gradient),
                           .partial = nullptr,
                           .sum = sum.mutable_data_ptr<float>(),
                           .count = gradient.numel(),
                           .factor = static_cast<float>(factor)};
  if (!gradient.is_cuda()) return kernels::cpu::add_squares(args);
  const at::Tensor partial = ops::scratch(gradient, {kernels::kSquarePartials});
  args.partial = partial.mutable_data_ptr<float>();
  kernels::cuda::add_squares(args, ops::current_stream());
}

void finish_gradients(const at::Tensor& control, const at::Tensor& sum,
                      const FinishOptions& options) {
  check_control(control, sum);
  DSTRAIN_CHECK(sum.numel() >= 1 && sum.scalar_type() == at::kFloat,
                "optimizer: the sum of squares is not fp32");
  const kernels::FinishGradients args{.control = control.mutable_data_ptr<float>(),
                                      .sum = sum.const_data_ptr<float>(),
                                      .clip_norm = static_cast<float>(options.clip_norm),
                                      .loss_scaling = options.loss_scaling,
                                      .beta1 = options.beta1,
                                      .beta2 = options.beta2};
  if (control.is_cuda()) {
    kernels::cuda::finish_gradients(args, ops::current_stream());
  } else {
    kernels::reference::finish_gradients(args);  // few scalars: as good as anything
  }
}

namespace {

/// Checks the step.
kernels::OptimizerUpdate arguments(const Step& step, const at::Tensor& control) {
  const bool direction = is_direction(step.rule);
  const bool rounded = bf16_states(step.master, direction ? at::Tensor() : step.compute);
  const bool halves = step.master.defined() && step.master.scalar_type() == at::kShort;
  const at::ScalarType type = rounded ? at::kBFloat16 : at::kFloat;
  check_flat("the master weights", step.master, step.master, halves ? at::kShort : type);
  check_gradient(step.gradient, step.master);
  check_control(control, step.master);
  const auto [compute, compute_type] =
      rounded && !direction ? std::pair<void*, kernels::DType>(nullptr, kernels::DType::bf16)
                            : compute_of(step.compute, step.master);
  kernels::OptimizerUpdate args{.states = rounded ? kernels::DType::bf16 : kernels::DType::f32,
                                .parameters = step.master.mutable_data_ptr(),
                                .moments = {},
                                .gradient = step.gradient.const_data_ptr(),
                                .gradient_type = ops::kernel_dtype(step.gradient),
                                .compute = compute,
                                .compute_type = compute_type,
                                .split = halves,
                                .control = control.const_data_ptr<float>(),
                                .count = step.master.numel(),
                                .rule = step.rule,
                                .seed = step.seed,
                                .first_element = step.first_element};
  DSTRAIN_CHECK(
      !direction || (step.compute.defined() && (compute_type == kernels::DType::bf16 ||
                                                (compute_type == kernels::DType::f32 && !rounded))),
      "optimizer: a direction is fp32 or bf16, and bf16 beside bf16 states");
  DSTRAIN_CHECK(
      !halves || (!direction && compute != nullptr && compute_type == kernels::DType::bf16),
      "optimizer: lower halves of weights want the upper ones as bf16 parameters");
  DSTRAIN_CHECK(
      args.gradient_type == kernels::DType::f32 || rounded || compute_type == args.gradient_type,
      "optimizer: a gradient in 16 bits is one of a computation in them");
  DSTRAIN_CHECK(std::cmp_equal(step.moments.size(), num_moments(step.rule)),
                "optimizer: the rule has another number of moments");
  for (std::size_t m = 0; m < step.moments.size(); ++m) {
    check_flat("a moment", step.moments[m], step.master, type);
    args.moments[m] = step.moments[m].mutable_data_ptr();
  }
  return args;
}

}  // namespace

void update(const Step& step, const at::Tensor& control) {
  const kernels::OptimizerUpdate args = arguments(step, control);
  if (step.master.is_cuda()) {
    kernels::cuda::update(args, ops::current_stream());
  } else {
    kernels::cpu::update(args);
  }
}

void update_range(const Step& step, const at::Tensor& control, std::int64_t begin,
                  std::int64_t end) {
  DSTRAIN_CHECK(!step.master.is_cuda(), "optimizer: a thread of the host updates its own memory");
  kernels::cpu::update_range(arguments(step, control), begin, end);
}

}  // namespace dstrain::optimizer
