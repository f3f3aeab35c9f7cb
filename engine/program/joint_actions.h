#pragma once

#include <span>
#include <vector>

#include "engine/program/program.h"

namespace dstrain {

/// An action of a program of a line.
struct Member {
  int rank = 0;
  int action = 0;
};

/// Actions of several ranks of a pipeline that run together: each send with its receive, and the
/// collectives of the whole line and of its ends. Of a line that passes `check`.
[[nodiscard]] std::vector<std::vector<Member>> joint_actions(std::span<const Program> line);

}  // namespace dstrain
