#pragma once

#include <ATen/core/Tensor.h>

/// What a product reads of its output's gradient beside the elements, so that the kernel that
/// writes the gradient finds it on the way. The output carries what is needed, the gradient what
/// was found; a copy, a sum with another gradient or a message between ranks carries nothing, and
/// then the product reads the gradient itself. What operators share; of other layers only who
/// copies the inputs of blocks hands on what is needed, so that gradients have the same bits.
namespace dstrain::ops {

struct GradientNeeds {
  bool column_sums = false;  ///< for a bias
  bool maxima = false;       ///< for codes of eight bits
};

/// Says so on `output`, which no other tensor shares yet.
void set_needs(const at::Tensor& output, const GradientNeeds& needs);
/// Says the same on `copy` as on `output`.
void copy_needs(const at::Tensor& output, const at::Tensor& copy);
/// Nothing where none were set.
[[nodiscard]] GradientNeeds needs_of(const at::Tensor& output);

struct GradientFindings {
  at::Tensor column_sums = {};  ///< fp32 [parts, N], sums over parts of the rows
  at::Tensor maxima = {};       ///< [kAbsMaxPartials], largest absolute values of parts
};

/// Says so on `gradient`, of the values that it holds now.
void set_findings(const at::Tensor& gradient, const GradientFindings& findings);
/// Nothing where none were set, or the gradient was written since.
[[nodiscard]] GradientFindings findings_of(const at::Tensor& gradient);

}  // namespace dstrain::ops
