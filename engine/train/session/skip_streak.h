#pragma once

namespace dstrain {

/// How many steps in a row were skipped as not finite. A step that lowers a dynamic loss scale, or
/// that its hysteresis takes up, is part of the search for it and not counted; the least scale
/// (engine/kernels/optimizer/loss_scale.h) ends that.
class SkipStreak {
 public:
  /// Loss scale and steps that hysteresis has taken up, before the next step.
  void restart(double loss_scale, double tolerated = 0) {
    loss_scale_ = loss_scale;
    tolerated_ = tolerated;
    length_ = 0;
  }
  /// The same after the step.
  void add(bool skipped, double loss_scale, double tolerated = 0) {
    if (!skipped) length_ = 0;
    if (skipped && loss_scale >= loss_scale_ && tolerated <= tolerated_) ++length_;
    loss_scale_ = loss_scale;
    tolerated_ = tolerated;
  }
  [[nodiscard]] int length() const { return length_; }

 private:
  double loss_scale_ = 1;
  double tolerated_ = 0;
  int length_ = 0;
};

}  // namespace dstrain
