#include "test/kernels/devices.h"

namespace dstrain::test {

std::vector<at::Device> devices() { return {at::kCUDA}; }

}  // namespace dstrain::test
