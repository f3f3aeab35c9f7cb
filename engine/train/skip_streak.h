#pragma once

namespace dstrain {

/// How many steps in a row were skipped as not finite. A step that lowers a dynamic loss scale is
/// part of the search for it and not counted; the least scale (engine/kernels/optimizer/control.h)
/// ends that.
class SkipStreak {
 public:
  /// `loss_scale`: before the next step.
  void restart(double loss_scale) {
    loss_scale_ = loss_scale;
    length_ = 0;
  }
  /// `loss_scale`: after the step.
  void add(bool skipped, double loss_scale) {
    if (!skipped) length_ = 0;
    if (skipped && loss_scale >= loss_scale_) ++length_;
    loss_scale_ = loss_scale;
  }
  [[nodiscard]] int length() const { return length_; }

 private:
  double loss_scale_ = 1;
  int length_ = 0;
};

}  // namespace dstrain
