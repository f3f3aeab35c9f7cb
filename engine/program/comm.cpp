#include "engine/program/comm.h"

namespace dstrain {

const char* comm_axis_name(CommAxis axis) {
  switch (axis) {
    case CommAxis::shard:
      return "shard";
    case CommAxis::data:
      return "data";
    case CommAxis::batch:
      return "batch";
    case CommAxis::tensor:
      return "tensor";
    case CommAxis::sequence:
      return "sequence";
    case CommAxis::expert:
      return "expert";
    case CommAxis::pipeline:
      return "pipeline";
    case CommAxis::world:
      return "world";
    case CommAxis::shard_inner:
      return "shard_inner";
    case CommAxis::shard_outer:
      return "shard_outer";
    case CommAxis::ends:
      return "ends";
  }
  return "?";
}

Axes axes_of(CommAxis axis) {
  switch (axis) {
    case CommAxis::shard:
    case CommAxis::shard_inner:
    case CommAxis::shard_outer:
      return Axis::shard;
    case CommAxis::data:
      return Axis::data;
    case CommAxis::batch:
      return kDataAxes;
    case CommAxis::tensor:
      return Axis::tensor;
    case CommAxis::sequence:
      return Axis::sequence;
    case CommAxis::expert:
      return Axis::expert;
    case CommAxis::pipeline:
    case CommAxis::ends:
      return Axis::pipeline;
    case CommAxis::world:
      return kAllAxes;
  }
  return kDataAxes;
}

const char* comm_name(CommOp op) {
  switch (op) {
    case CommOp::all_gather:
      return "all-gather";
    case CommOp::reduce_scatter:
      return "reduce-scatter";
    case CommOp::all_reduce:
      return "all-reduce";
    case CommOp::all_to_all:
      return "all-to-all";
    case CommOp::send:
      return "send";
    case CommOp::receive:
      return "receive";
  }
  return "?";
}

}  // namespace dstrain
