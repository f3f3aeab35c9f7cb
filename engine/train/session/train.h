#pragma once

#include <string>
#include <vector>

namespace dstrain {

struct TrainOptions {
  std::string recipe;                  ///< file
  std::vector<std::string> overrides;  ///< "path.to.key=value"
  std::string resume = "never";        ///< or a run directory or a checkpoint directory
  std::string evaluate;  ///< run, checkpoint or "-": evaluate_finished() instead of training
  std::string measure;   ///< file: measure_hosts() instead of training
  int verify_steps = 0;                ///< above 0: compare with one rank instead of training
};

/// One rank of a job from start to end; the environment says which rank. Returns the exit code: 0
/// when all steps are done or when it was asked to stop (SIGTERM or SIGINT) and saved, 1 when a
/// verification failed. Throws Error.
int train(const TrainOptions& options);

}  // namespace dstrain
