#pragma once

#include <string>

#include "engine/program/simulate.h"

namespace dstrain {

/// How many threads the blocks of a rank on the CPU are worth. Operators of a small model end
/// before threads that sleep have woken up, and spinning ones keep each other from the cores. By
/// the built-in rates, never by measured ones: sums depend on the number of threads.
struct UsefulThreads {
  double block_s = 0;  ///< the median block's forward for one micro-batch, on one thread
  double wake_s = 0;   ///< that a thread more waits in its kernels
  int max = 1;         ///< each has as much to do as that
};
[[nodiscard]] UsefulThreads useful_threads(const Layout& layout, const ModelCost& cost);

/// "threads: 1 of 4 ...", why a rank uses fewer than it is given.
[[nodiscard]] std::string fewer_threads_text(const UsefulThreads& useful, int given);

/// `machine` with Machine::threads, where that is 0: the rank's part of its host's cores, but no
/// more than its blocks are worth.
[[nodiscard]] Machine with_threads(Machine machine, const Layout& layout, const ModelCost& cost);

/// The rates of a rank with its threads, beside as many of each other rank on its host: where they
/// are more than the host's cores, they take turns.
[[nodiscard]] Machine rank_rates(Machine machine, const Layout& layout, const ModelCost& cost);

/// "1, whose 4 ranks share 2 cores, as this machine has": where `world` ranks on the CPU run.
[[nodiscard]] std::string hosts_text(const Machine& machine, int world);

}  // namespace dstrain
