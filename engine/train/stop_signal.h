#pragma once

namespace dstrain {

/// From now on a first SIGTERM, SIGINT or SIGUSR1 asks this process to save and end, and a later
/// one ends it.
void install_stop_handler();
/// Whether such a signal has come.
[[nodiscard]] bool stop_requested();

}  // namespace dstrain
