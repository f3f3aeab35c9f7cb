#pragma once

#include <ATen/core/Tensor.h>

namespace dstrain {

/// to = from, of one type and one number of elements, in the order of the current stream; one of
/// them on a GPU, the other one there or in page-locked memory. A kernel copies, not a copy engine:
/// an engine serves one stream until that has to wait, so that a batch of 200 kB came 68 ms late
/// behind copies of states (one direction, H200, driver 580). Takes a few multiprocessors while it
/// runs. Other tensors are copied as at::Tensor::copy_ does.
void copy_beside(const at::Tensor& to, const at::Tensor& from);

}  // namespace dstrain
