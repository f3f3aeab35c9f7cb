#include "engine/nn/block_state.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "engine/base/error.h"

namespace dstrain {
namespace {

constexpr std::size_t kLimbs = 3;  ///< of an int64
constexpr int kLimbBits = 22;

}  // namespace

Bytes state_bytes(const BlockState& state) {
  return num_elements(state.part.shape) * static_cast<Bytes>(c10::elementSize(state.type));
}

Piece stored_part(const BlockState& state) {
  std::vector<std::int64_t> shape = state.part.shape;
  if (state.type == at::kLong) shape.push_back(kLimbs);
  return {state.part.name, std::move(shape)};
}

std::vector<float> stored_values(const BlockState& state) {
  const at::Tensor host = state.value.to(at::kCPU).contiguous();
  const auto count = static_cast<std::size_t>(host.numel());
  if (state.type != at::kLong) {
    const auto* values = host.const_data_ptr<float>();
    return {values, values + count};
  }
  const std::span values(host.const_data_ptr<std::int64_t>(), count);
  std::vector<float> stored;
  for (const std::int64_t value : values) {
    const auto bits = static_cast<std::uint64_t>(value);
    for (int limb = kLimbs - 1; limb >= 0; --limb)
      stored.push_back(static_cast<float>(bits >> (kLimbBits * limb) & ((1U << kLimbBits) - 1)));
  }
  return stored;
}

at::Tensor from_stored(const BlockState& state, std::span<const float> stored) {
  at::Tensor value = at::empty(state.part.shape, state.type);
  const auto count = static_cast<std::size_t>(value.numel());
  DSTRAIN_CHECK(stored.size() == count * (state.type == at::kLong ? kLimbs : 1),
                "wrong number of values for " + state.part.name);
  if (state.type != at::kLong) {
    std::ranges::copy(stored, value.mutable_data_ptr<float>());
    return value;
  }
  const std::span values(value.mutable_data_ptr<std::int64_t>(), count);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t bits = 0;
    for (const float limb : stored.subspan(i * kLimbs, kLimbs))
      bits = bits << kLimbBits | static_cast<std::uint64_t>(limb);
    values[i] = static_cast<std::int64_t>(bits);
  }
  return value;
}

}  // namespace dstrain
