#include "test/kernels/devices.h"

namespace dstrain::test {

std::vector<at::Device> devices() { return {at::kCPU}; }

}  // namespace dstrain::test
