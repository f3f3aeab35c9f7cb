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

/// Writes parts[i], of `bytes` (a multiple of 16, aligned so), to to[i]; one kernel.
struct PeerParts {
  const void* parts[kMaxPeers] = {};  // NOLINT(modernize-avoid-c-arrays): read by the kernel
  void* to[kMaxPeers] = {};           // NOLINT(modernize-avoid-c-arrays)
  int count = 0;
  std::int64_t bytes = 0;
};
[[nodiscard]] const char* place_parts(const PeerParts& args, void* stream);

/// Writes 1 to `count` words, which may be other GPUs', by one warp. What the stream did before is
/// seen by every reader that sees them.
struct PeerWords {
  std::uint32_t* words[kMaxPeers] = {};  // NOLINT(modernize-avoid-c-arrays): read by the kernel
  int count = 0;
};
[[nodiscard]] const char* write_words(const PeerWords& args, void* stream);

/// Waits until each of `count` words is 1 and sets it back to 0, by one warp, so that kernels of
/// other streams keep all other multiprocessors. The rest as add_parts.
[[nodiscard]] const char* await_words(std::uint32_t* words, int count, void* stream);

}  // namespace dstrain::comm
