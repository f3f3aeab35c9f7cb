#pragma once

#include <functional>

namespace dstrain::launcher {

/// A variable of the environment, or nullptr: getenv, or a table in tests.
using Variables = std::function<const char*(const char*)>;

}  // namespace dstrain::launcher
