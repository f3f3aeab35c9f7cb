#pragma once

#include "engine/mesh/mesh.h"

namespace dstrain {

/// One of `count` equal parts.
struct AxisPart {
  int index = 0;
  int count = 1;
  [[nodiscard]] bool whole() const { return count == 1; }
  bool operator==(const AxisPart&) const = default;
};

/// How ranks that have parts of a sample attend to each other's tokens.
enum class SequenceExchange {
  gather,  ///< keys and values of all go to each
  heads,   ///< each gets some heads of all tokens; Jacobs et al. 2023, arXiv:2309.14509
};

/// The parts of a model's blocks that a rank holds (tensor, expert) and of each sample that it
/// works on (sequence).
struct Splits {
  AxisPart tensor = {}, sequence = {}, expert = {};
  SequenceExchange exchange = SequenceExchange::gather;
  bool operator==(const Splits&) const = default;
  /// Part of the experts of a layer, which are spread over expert and tensor ranks, in the order of
  /// Mesh::group.
  [[nodiscard]] AxisPart experts() const {
    return {.index = expert.index * tensor.count + tensor.index,
            .count = expert.count * tensor.count};
  }
};

/// Those of `rank`.
[[nodiscard]] inline Splits splits_at(const Mesh& mesh, int rank) {
  const auto part = [&](Axis axis) {
    return AxisPart{.index = mesh.coordinate(rank, axis), .count = mesh.degree(axis)};
  };
  return {
      .tensor = part(Axis::tensor), .sequence = part(Axis::sequence), .expert = part(Axis::expert)};
}

/// The axis along which ranks hold different elements of a weight.
enum class Cut { none, tensor, expert };
/// The axes on which ranks that differ hold different elements of such weights.
[[nodiscard]] constexpr Axes axes_of(Cut cut) {
  switch (cut) {
    case Cut::none:
      return {};
    case Cut::tensor:
      return Axis::tensor;
    case Cut::expert:
      return {Axis::expert, Axis::tensor};
  }
  return {};
}

}  // namespace dstrain
