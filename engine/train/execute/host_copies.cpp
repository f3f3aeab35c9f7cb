#include "engine/train/execute/host_copies.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "engine/device/numa.h"

namespace dstrain {
namespace {

/// One thread writes new pageable memory at 2 to 7 GB/s, a link brings 50.
constexpr int kMaxThreads = 8;

}  // namespace

HostCopies::HostCopies(c10::Device device, const std::string& pci_bus)
    : stream_(Stream::current(device)) {
  if (!device.is_cuda()) return;
  std::vector<int> cores = cores_near(pci_bus);
  const int threads = std::min(kMaxThreads, static_cast<int>(cores.size()));
  staged_.emplace(device,
                  StagedCopy::Options{.work = {.threads = threads, .cores = std::move(cores)}});
}

at::Tensor HostCopies::copy(const at::Tensor& values, at::ScalarType type) {
  if (!staged_ || !values.is_cuda())
    return values.to(at::kCPU, type, /*non_blocking=*/false, /*copy=*/true);
  const at::Tensor whole = values.to(type).contiguous();
  at::Tensor copy = at::empty(whole.sizes(), at::TensorOptions(type));
  staged_->to_host(stream_, copy, whole);
  return copy;
}

void HostCopies::finish() {
  stream_.synchronize();
  if (staged_) staged_->rethrow();
}

}  // namespace dstrain
