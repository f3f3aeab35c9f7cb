#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace dstrain {

/// "CUDA out of memory: 2.00 GiB asked for, 1.20 GiB of 79.11 GiB free on GPU 0", of the text of
/// LibTorch's allocator; the first words alone where it is another text.
[[nodiscard]] std::string device_memory_text(std::string_view text);

/// Runs `body`. Memory of the host that it cannot have becomes host_memory_error(), of a GPU
/// Error{internal} with device_memory_text(), both without the stack that LibTorch adds.
void with_memory_errors(const std::function<void()>& body);

}  // namespace dstrain
