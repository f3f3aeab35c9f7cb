#pragma once

#include <cstdint>

namespace dstrain::comm {

/// GPUs of one host in a group at most.
inline constexpr int kMaxPeers = 16;

enum class SumType { fp32, bf16, fp16 };

/// sum [n] = parts[0] + parts[1] + ... in this order, added in fp32. `sum` may be one of the parts.
struct PeerSum {
  const void* parts[kMaxPeers] = {};  // NOLINT(modernize-avoid-c-arrays): read by the kernel
  int count = 0;
  void* sum = nullptr;
  std::int64_t n = 0;
  SumType type = SumType::fp32;
};
/// `stream`: a cudaStream_t. Error text of CUDA; null: none.
[[nodiscard]] const char* add_parts(const PeerSum& args, void* stream);

/// Waits until each of `count` words is 1 and sets it back to 0, by one warp, so that kernels of
/// other streams keep all other multiprocessors. The rest as add_parts.
[[nodiscard]] const char* await_words(std::uint32_t* words, int count, void* stream);

}  // namespace dstrain::comm
