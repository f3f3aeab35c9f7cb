#pragma once

namespace dstrain {

/// From now on a first SIGTERM, SIGINT or SIGUSR1 asks this process to save and end, and a later
/// one ends it. With `speaks` the first is answered by a line on standard error, as the step under
/// way may take minutes.
void install_stop_handler(bool speaks);
/// Whether such a signal has come.
[[nodiscard]] bool stop_requested();

}  // namespace dstrain
