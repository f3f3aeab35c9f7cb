#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "engine/data/dataset.h"
#include "engine/mesh/zigzag.h"

namespace dstrain {

struct LoaderOptions {
  std::int64_t global_batch = 0;
  std::int64_t micro_batch = 0;
  int micro_batches = 1;  ///< per step
  int data_ranks = 1;
  int data_rank = 0;
  Zigzag sequence = {};  ///< of text: which part of each sample is wanted
  std::int64_t seed = 0;
  bool shuffle = true;     ///< evaluation reads in order
  bool drop_last = false;  ///< samples that do not fill a global batch are left out of the epoch
  bool pinned = false;
  int workers = 2;
  int prefetch = 4;             ///< micro-batches decoded ahead
  std::int64_t first_step = 0;  ///< step at which to start (resume): nothing before it is decoded
  std::int64_t last_step = -1;  ///< step after the last one; -1: no end, epochs follow one another
};

/// Positions [first, first + count) in the order of an epoch.
struct BatchRange {
  std::int64_t epoch;
  std::int64_t first;
  std::int64_t count;
};
/// What micro-batch `batch`, counted from the first step of the run, holds on this rank, of a data
/// set of `size` samples.
[[nodiscard]] BatchRange batch_range(const LoaderOptions& options, std::int64_t size,
                                     std::int64_t batch);

/// Hands out the micro-batches of this rank, step by step. Step s of an epoch covers the global
/// samples [s * global_batch, min((s + 1) * global_batch, size)), split evenly over the data ranks
/// and then over the micro-batches; missing samples are filled up with weight 0. So every sample is
/// seen exactly once per epoch at any world size; with drop_last, those of the whole steps are.
class Loader {
 public:
  virtual ~Loader() = default;
  /// The next micro-batch; waits for the decoding threads and rethrows their errors.
  [[nodiscard]] virtual HostBatch next() = 0;
};
[[nodiscard]] std::unique_ptr<Loader> make_loader(std::shared_ptr<const Dataset> dataset,
                                                  const LoaderOptions& options);

/// Samples and optimizer steps of one epoch.
[[nodiscard]] std::int64_t samples_per_epoch(std::int64_t size, std::int64_t global_batch,
                                             bool drop_last);
[[nodiscard]] std::int64_t steps_per_epoch(std::int64_t size, std::int64_t global_batch,
                                           bool drop_last = false);

}  // namespace dstrain
