#pragma once

#include "engine/kernels/conv/kernels.h"

/// The GPU's depthwise kernels, thread by thread on the host: what is tested are their tiles and
/// indices. Arguments as those of the kernels, with host pointers.
namespace dstrain::test {

void depthwise_on_host(const kernels::Depthwise& args);
void depthwise_on_host(const kernels::DepthwiseBackward& args);

}  // namespace dstrain::test
