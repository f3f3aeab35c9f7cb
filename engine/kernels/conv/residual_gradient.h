#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include <optional>

/// The gradient of x in norm(f(x)) + g(x), f beginning with a product. The norm leaves its part of
/// it here where g(x) is x; a convolution in g does, which runs behind that product. The product of
/// backward adds to that: autograd, which would add both in a pass of its own, gets the whole.
namespace dstrain::ops {

class ResidualGradient {
 public:
  /// The parts are added by autograd.
  ResidualGradient() = default;
  /// The gradient of x: on a GPU, where it needs one.
  explicit ResidualGradient(const at::Tensor& x) {
    if (x.is_cuda() && x.requires_grad()) part_ = c10::List<at::Tensor>();
  }
  /// One that was kept in an autograd context, which is the same object.
  explicit ResidualGradient(const c10::IValue& kept) {
    if (!kept.isNone()) part_ = kept.toTensorList();
  }

  [[nodiscard]] bool used() const { return part_.has_value(); }
  [[nodiscard]] c10::IValue keep() const { return used() ? c10::IValue(*part_) : c10::IValue(); }
  void leave(const at::Tensor& part) { part_->push_back(part); }
  /// What was left, to be written over; undefined: nothing.
  [[nodiscard]] at::Tensor take() {
    if (!used() || part_->empty()) return {};
    at::Tensor part = part_->get(0);
    part_->clear();
    return part;
  }

 private:
  std::optional<c10::List<at::Tensor>> part_;
};

}  // namespace dstrain::ops
