#pragma once

#include "engine/base/units.h"
#include "engine/mesh/mesh.h"

/// What a program says of a collective: operation, ranks and bytes.
namespace dstrain {

/// The ranks of a collective: along one axis of the mesh, along both data axes (batch) or along all
/// (world).
enum class CommAxis {
  shard,
  data,
  batch,
  tensor,
  sequence,
  expert,
  pipeline,
  world,
  shard_inner,  ///< neighbours on the shard axis that hold a second shard together
  shard_outer,  ///< those with the same place in their inner groups
  ends,         ///< the two pipeline coordinates that hold a tied group
};
inline constexpr int kNumCommAxes = 11;
[[nodiscard]] const char* comm_axis_name(CommAxis axis);
/// Those of the mesh that its groups lie along; of inner and outer ones, a part of them.
[[nodiscard]] Axes axes_of(CommAxis axis);

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
};

/// A collective inside a block, for one micro-batch.
struct Exchange {
  CommOp op = CommOp::all_reduce;
  CommAxis axis = CommAxis::batch;
  Bytes bytes = 0;  ///< as in Comm
  int width = 4;    ///< as in Comm
  ExchangePass pass = ExchangePass::forward;
};

}  // namespace dstrain
