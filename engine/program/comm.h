#pragma once

#include <compare>
#include <string>

#include "engine/base/units.h"
#include "engine/mesh/mesh.h"

/// What a program says of a collective: operation, ranks and bytes.
namespace dstrain {

/// The ranks of a collective: those that differ on some axes of the mesh only, or a part of them.
class CommAxis {
 public:
  enum class Part {
    all,
    inner,  ///< neighbours that hold a second shard together
    outer,  ///< those with the same place in their inner groups
    ends,   ///< the first and the last
  };
  constexpr CommAxis(Axes axes, Part part = Part::all) : axes_(axes), part_(part) {}
  constexpr CommAxis(Axis axis) : axes_(axis) {}

  /// All data axes (batch); all axes (world); parts of the shard axis; the two pipeline coordinates
  /// that hold a tied group (ends).
  static const CommAxis batch, world, shard_inner, shard_outer, ends;

  [[nodiscard]] constexpr Axes axes() const { return axes_; }
  [[nodiscard]] constexpr Part part() const { return part_; }
  constexpr auto operator<=>(const CommAxis&) const = default;

 private:
  Axes axes_;
  Part part_ = Part::all;
};
inline constexpr CommAxis CommAxis::batch{kDataAxes};
inline constexpr CommAxis CommAxis::world{kAllAxes};
inline constexpr CommAxis CommAxis::shard_inner{Axis::shard, Part::inner};
inline constexpr CommAxis CommAxis::shard_outer{Axis::shard, Part::outer};
inline constexpr CommAxis CommAxis::ends{Axis::pipeline, Part::ends};
/// "shard", "batch", "shard+tensor".
[[nodiscard]] std::string comm_axis_name(CommAxis axis);

enum class CommOp { all_gather, reduce_scatter, all_reduce, all_to_all, send, receive };
[[nodiscard]] const char* comm_name(CommOp op);

/// One collective of an action.
struct Comm {
  CommOp op = CommOp::all_reduce;
  CommAxis axis = CommAxis::batch;
  int width = 4;    ///< bytes of an element on the wire
  Bytes bytes = 0;  ///< of the full buffer: the output of an all-gather, else the input
  int peer = -1;    ///< send, receive: coordinate of the other rank on the axis
  bool operator==(const Comm&) const = default;
};

/// In which runs of its block an exchange takes place.
enum class ExchangePass {
  forward,   ///< every forward
  train,     ///< forwards of a training step, the second one of a recomputed block included
  backward,  ///< every backward
  evaluate,  ///< forwards outside training steps
};

/// A collective inside a block, for one micro-batch.
struct Exchange {
  CommOp op = CommOp::all_reduce;
  CommAxis axis = CommAxis::batch;
  Bytes bytes = 0;  ///< as in Comm
  int width = 4;    ///< as in Comm
  ExchangePass pass = ExchangePass::forward;
  /// Work of products that run beside it, between GPUs of one host (ops::linear_of_gathered).
  double beside_flops = 0;
};

}  // namespace dstrain
