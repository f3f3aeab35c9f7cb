#include "engine/program/comm.h"

namespace dstrain {

std::string comm_axis_name(CommAxis axis) {
  if (axis == CommAxis::world) return "world";
  if (axis == CommAxis::batch) return "batch";
  if (axis == CommAxis::ends) return "ends";
  std::string name;
  for (const Axis one : kAxes) {
    if (axis.axes().contains(one)) name += (name.empty() ? "" : "+") + std::string(axis_name(one));
  }
  if (axis.part() == CommAxis::Part::inner) name += "_inner";
  if (axis.part() == CommAxis::Part::outer) name += "_outer";
  return name;
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
