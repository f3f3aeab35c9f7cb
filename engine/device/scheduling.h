#pragma once

namespace dstrain {

/// Asks Linux to schedule all threads of this process, and those that they begin, as a batch job:
/// a thread that wakes up does not take the core from another one at once. Threads of ranks that
/// share cores wake each other in every exchange (two ranks of the quickstart on two cores: 29 to
/// 20 ms a step). Threads with another policy than the usual one, and threads that Linux does not
/// let change, stay as they are.
void schedule_as_batch();

}  // namespace dstrain
