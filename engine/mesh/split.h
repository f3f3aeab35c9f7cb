#pragma once

namespace dstrain {

/// One of `count` equal parts.
struct AxisPart {
  int index = 0;
  int count = 1;
  [[nodiscard]] bool whole() const { return count == 1; }
  bool operator==(const AxisPart&) const = default;
};

/// The parts of a model's blocks that a rank holds (tensor, expert) and of each sample that it
/// works on (sequence).
struct Splits {
  AxisPart tensor, sequence, expert;
  bool operator==(const Splits&) const = default;
};

/// The axis along which ranks hold different elements of a weight.
enum class Cut { none, tensor, expert };

}  // namespace dstrain
