#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

#include "engine/device/stream.h"

namespace dstrain {

/// Device memory of a graph that one fill sets to zero when the graph begins. cuBLASLt's kernels
/// for Hopper count their tiles and have a fill of four bytes ahead of each launch, which keeps the
/// GPU idle for 4 us; with words of its own for each launch, all these fills are one.
class GraphZeros {
 public:
  /// A capture is under way on `stream`, and nothing is enqueued yet; `memory` [kBytes] uint8 is
  /// zero when the graph runs.
  GraphZeros(const Stream& stream, at::Tensor memory);
  ~GraphZeros();
  GraphZeros(const GraphZeros&) = delete;
  GraphZeros& operator=(const GraphZeros&) = delete;

  static constexpr std::int64_t kBytes = 512 << 10;
  /// What one launch may have.
  static constexpr std::size_t kMaxPart = 256;

  /// kMaxPart bytes, aligned as much, for a launch on `stream` (a cudaStream_t) of any thread; what
  /// the launch itself fills with zeros of them is taken out by remove_fills. Null outside of a
  /// capture, and where all are given away.
  [[nodiscard]] static void* take(void* stream);

  /// Those of the capture under way on `stream`; null where there is none.
  [[nodiscard]] static const GraphZeros* of(void* stream);
  /// Whether `node` (a cudaGraphNode_t) is a fill that remove_fills takes out.
  [[nodiscard]] bool removes(void* node) const;

  /// Takes out of `graph` (a cudaGraph_t, not instantiated yet) all fills of parts.
  void remove_fills(void* graph) const;

 private:
  at::Tensor memory_;
  std::uint64_t capture_ = 0;  ///< as the driver numbers it
  std::size_t taken_ = 0;
};

}  // namespace dstrain
