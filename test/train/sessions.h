#pragma once

#include <functional>
#include <string>

#include "engine/train/session/session.h"

namespace dstrain::test {

/// Calls `body` on each of `ranks` ranks, which are threads with one core each, with a session of
/// `recipe_of(rank)`. `device`: the name of theirs, by which a machine is known.
void with_sessions(int ranks, const std::function<Recipe(int rank)>& recipe_of,
                   const std::function<void(int rank, Session& session)>& body,
                   const std::string& device = "");

}  // namespace dstrain::test
