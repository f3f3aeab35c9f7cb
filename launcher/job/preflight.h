#pragma once

#include <string>

#include "launcher/base/console.h"
#include "launcher/hosts/allocation.h"
#include "launcher/transport/transport.h"

namespace dstrain::launcher {

/// Looks at each host of `allocation` as `dstrain doctor` does and leaves out those on which no job
/// can run, so that others take their place before a rank has started; each is told in a line.
/// `transport` reaches them all. Error{hosts} when fewer than `ranks` slots are left.
[[nodiscard]] Allocation without_bad_hosts(Allocation allocation, int ranks, Transport& transport,
                                           const std::string& build, Console& console);

}  // namespace dstrain::launcher
