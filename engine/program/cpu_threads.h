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

/// The rates of a rank of `machine`, whose rates are those of one thread, with so many, beside as
/// many of each other of the job's `ranks` on its host: where they are more than its cores, they
/// take turns.
[[nodiscard]] Machine on_threads(Machine machine, int threads, int ranks = 1);

}  // namespace dstrain
