#pragma once

#include <optional>
#include <vector>

#include "engine/program/program.h"

namespace dstrain {

/// The parts of an optimizer step as people speak of them.
enum class Phase {
  forward,
  backward,  ///< recomputation included
  norm,
  update,
};
inline constexpr int kNumPhases = 4;
/// "forward".
[[nodiscard]] const char* phase_name(Phase phase);

/// The phase that an action of the compute lane begins or goes on with; nothing for release and
/// discard, which belong to the phase they stand in.
[[nodiscard]] std::optional<Phase> phase_of(ActionKind kind);

/// By action of `program`: the phase that it stands in, on the compute lane, or serves, on others:
/// a reduction serves backward, a load or gather the first action that waits for it.
[[nodiscard]] std::vector<Phase> phases(const Program& program);

}  // namespace dstrain
