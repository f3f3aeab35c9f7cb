#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/weights/torch_weights.h"

/// Any file is either refused with Error{data} or gives tensors that can be read.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const int fd = ::memfd_create("fuzz", 0);
  if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, data, size, 0) != static_cast<ssize_t>(size))
    std::abort();
  try {
    const dstrain::TorchWeights weights("/proc/self/fd/" + std::to_string(fd));
    for (const auto& [name, entry] : weights.entries()) {
      if (!dstrain::is_readable(entry.dtype)) continue;
      // A storage may be shown again and again by strides of 0.
      const std::uint64_t elements = (entry.end - entry.begin) / (entry.dtype == "F32" ? 4 : 2);
      std::vector<float> values(std::min<std::uint64_t>(elements, 1000));
      weights.read(name, 0, values);
    }
  } catch (const dstrain::Error& error) {
    if (error.kind() != dstrain::ErrorKind::data) std::abort();
  }
  return 0;
}
