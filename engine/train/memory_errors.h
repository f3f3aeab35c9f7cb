#pragma once

#include <functional>

namespace dstrain {

/// Runs `body`. Memory of the host that it cannot have becomes host_memory_error(), of a GPU
/// Error{internal} with the allocator's own words, both without the stack that LibTorch adds.
void with_memory_errors(const std::function<void()>& body);

}  // namespace dstrain
