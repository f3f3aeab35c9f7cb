#pragma once

#include <functional>
#include <string>

#include "engine/base/error.h"
#include "engine/store/store.h"

namespace dstrain::test {

/// What every store does alike, checked with two clients of one store (or the same one twice).
void check_store(Store& a, Store& b, const std::string& prefix);
/// Waits that end, and waits that do not.
void check_waiting(Store& store);

/// The Error that `call` ends with; Error{internal, "no error"} when it does not.
[[nodiscard]] Error error_of(const std::function<void()>& call);
[[nodiscard]] bool contains(const Error& error, const std::string& part);

}  // namespace dstrain::test
