#pragma once

#include <functional>

#include "engine/train/session/session.h"

namespace dstrain::test {

/// Calls `body` on each of `ranks` ranks, which are threads with one core each, with a session of
/// `recipe_of(rank)`.
void with_sessions(int ranks, const std::function<Recipe(int rank)>& recipe_of,
                   const std::function<void(int rank, Session& session)>& body);

}  // namespace dstrain::test
