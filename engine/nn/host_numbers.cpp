#include "engine/nn/host_numbers.h"

#include "engine/device/pinned.h"

namespace dstrain {

void HostNumbers::fetch(const at::Tensor& numbers) {
  if (!host_.defined() || !host_.sizes().equals(numbers.sizes())) {
    host_ = host_tensor(numbers.sizes(), numbers.scalar_type(), numbers.device());
    there_.emplace(numbers.device());
  }
  host_.copy_(numbers, /*non_blocking=*/true);
  there_->record(Stream::current(numbers.device()));
}

std::vector<std::int64_t> HostNumbers::take() const {
  there_->synchronize();
  const auto* numbers = host_.const_data_ptr<std::int32_t>();
  return {numbers, numbers + host_.numel()};
}

}  // namespace dstrain
