#include "engine/kernels/copy/copy.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "engine/device/stream.h"
#include "engine/kernels/copy/kernels.h"

namespace dstrain {
namespace {

/// Where the device reaches the values; null: it does not.
void* reached(const at::Tensor& values) {
  void* data = const_cast<void*>(values.const_data_ptr());
  if (values.is_cuda()) return data;
  return values.is_pinned() ? kernels::cuda::device_pointer(data) : nullptr;
}

/// LibTorch gives page-locked memory that is freed to nobody before the current stream has passed.
void keep_until_copied(const at::Tensor& values, c10::Device device) {
  if (values.is_cuda()) return;
  at::getHostAllocator(device.type())
      ->record_event(const_cast<void*>(values.const_data_ptr()),
                     values.storage().data_ptr().get_context(),
                     c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

}  // namespace

void copy_beside(const at::Tensor& to, const at::Tensor& from) {
  const c10::Device device = (to.is_cuda() ? to : from).device();
  const bool alike = to.scalar_type() == from.scalar_type() && to.is_contiguous() &&
                     from.is_contiguous() && to.numel() == from.numel();
  void* target = device.is_cuda() && alike ? reached(to) : nullptr;
  const void* source = target != nullptr ? reached(from) : nullptr;
  if (source == nullptr) {
    to.copy_(from, /*non_blocking=*/true);
    return;
  }
  kernels::cuda::copy_bytes(
      {.to = target, .from = source, .bytes = static_cast<std::int64_t>(to.nbytes())},
      static_cast<cudaStream_t>(Stream::current(device).handle()));
  keep_until_copied(to, device);
  keep_until_copied(from, device);
}

}  // namespace dstrain
