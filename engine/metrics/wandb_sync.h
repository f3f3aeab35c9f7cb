#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <string>

#include "engine/metrics/bounded_log.h"

namespace dstrain {

/// Weights & Biases' own program, `wandb beta sync --live`, which sends a run while it is written.
/// It is a process beside this one: whatever the network does, training goes on.
class WandbSync {
 public:
  /// Why it cannot run here: no program in PATH, no key; empty: it can.
  [[nodiscard]] static std::string obstacle();

  /// Sends `folder` (wandb/offline-run-*); its output goes to `folder`/sync.log, a BoundedLog
  /// without the key and other secrets of the environment.
  explicit WandbSync(std::filesystem::path folder);
  /// Kills it if it still runs.
  ~WandbSync();
  WandbSync(const WandbSync&) = delete;
  WandbSync& operator=(const WandbSync&) = delete;

  /// The file has its last record: waits for the rest to be sent, at most `limit`, then kills.
  /// Returns what went wrong; empty: nothing.
  [[nodiscard]] std::string finish(std::chrono::milliseconds limit);

 private:
  /// False while it runs.
  bool ended();

  std::filesystem::path folder_;
  BoundedLog log_;
  pid_t pid_ = -1;
  int status_ = 0;
};

}  // namespace dstrain
