#pragma once

#include <vector>

#include "engine/program/program.h"

namespace dstrain {

inline constexpr int kNumPhases = 4;
/// "forward".
[[nodiscard]] const char* phase_name(Phase phase);

/// By action of `program`: the phase that it stands in, on the compute lane, or serves, on others:
/// a reduction serves backward, a load or gather the first action that waits for it.
[[nodiscard]] std::vector<Phase> phases(const Program& program);

}  // namespace dstrain
